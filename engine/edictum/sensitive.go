package edictum

import (
	"fmt"
	"strings"

	"example.com/govnode/engine/edictum/sandbox"
)

// Sensitive denies what reads secrets: Edictum's built-in rule deny_sensitive_reads
// (seed: Edictum architecture, builtins).
type Sensitive struct {
	Paths    []string // parts of paths
	Commands []string // first words of commands, as a whole
}

// DefaultSensitive is what the rule looks for where nobody says otherwise.
func DefaultSensitive() Sensitive {
	return Sensitive{
		Paths: []string{
			"/.ssh/", "/var/run/secrets/", "/.env", "/.aws/credentials", "/.git-credentials", "/id_rsa", "/id_ed25519",
		},
		Commands: []string{"printenv", "env"},
	}
}

// Denies tells whether a call is denied, and why.
func (s *Sensitive) Denies(c *Call) (reason string, denied bool) {
	if file, ok := sandbox.FilePath(c.Tool, c.Args); ok {
		for _, p := range s.Paths {
			if strings.Contains(file, p) {
				return fmt.Sprintf("Access to sensitive path denied: %s. This file may contain secrets or credentials.", file), true
			}
		}
	}
	if c.Tool != "Bash" {
		return "", false
	}
	command, _, err := sandbox.Command(c.Args)
	if err != nil {
		return "The command is no text, so what it reads is not known.", true
	}
	trimmed := strings.TrimSpace(command)
	for _, name := range s.Commands {
		if trimmed == name || strings.HasPrefix(trimmed, name+" ") {
			return fmt.Sprintf("Sensitive command denied: %s. This command may expose secrets or environment variables.", trimmed), true
		}
	}
	for _, p := range s.Paths {
		if strings.Contains(command, p) {
			return fmt.Sprintf("Bash command accesses sensitive path: %s. This file may contain secrets or credentials.", p), true
		}
	}
	return "", false
}
