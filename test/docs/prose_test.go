//go:build unix

package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var (
	span   = regexp.MustCompile("`([^`\n]+)`")
	flag   = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*)`)
	metric = regexp.MustCompile(`\bgov_[a-z_]+[a-z]\b`)
	link   = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	target = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// What the prose names is there: commands and their flags, targets of make,
// metrics, files and links.
func TestProse(t *testing.T) {
	cli := commands(t)
	for _, name := range append(documents(t), "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md") {
		_, prose, err := blocks(read(t, name))
		if name == "CONTRIBUTING.md" || name == "ARCHITECTURE.md" || name == "CHANGELOG.md" || name == "SECURITY.md" {
			prose, err = read(t, name), nil
		}
		require.NoError(t, err, name)
		for _, m := range span.FindAllStringSubmatch(prose, -1) {
			if err := cli.check(m[1]); err != nil {
				t.Errorf("%s: `%s`: %v", name, m[1], err)
			}
			if err := checkTargets(t, m[1]); err != nil {
				t.Errorf("%s: `%s`: %v", name, m[1], err)
			}
		}
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1]))
			if err != nil {
				t.Errorf("%s: the link to %s leads nowhere", name, m[1])
			}
		}
		if err := documented(prose); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Documents are for people who have read nothing else.
func TestNothingIsCitedThatAReaderLacks(t *testing.T) {
	cited := regexp.MustCompile(`(?i)\b(engine spec|adapter contract|the specifications?|spec) ?\d*|\(\d+\.\d+\)|§`)
	for _, name := range documents(t) {
		for i, line := range strings.Split(read(t, name), "\n") {
			if m := cited.FindString(line); m != "" {
				t.Errorf("%s:%d cites %q", name, i+1, m)
			}
		}
	}
}

// A cli is what govnode says of itself: the help of each command.
type cli map[string]string

func commands(t *testing.T) cli {
	t.Helper()
	built, err := program()
	require.NoError(t, err)
	all := cli{}
	var visit func(path ...string)
	visit = func(path ...string) {
		out, err := exec.Command(built, append(slices.Clone(path), "--help")...).Output()
		require.NoError(t, err, path)
		all[strings.Join(path, " ")] = string(out)
		_, list, _ := strings.Cut(string(out), "Available Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for _, line := range strings.Split(list, "\n") {
			if f := strings.Fields(line); len(f) > 1 && f[0] != "help" && f[0] != "completion" {
				visit(append(slices.Clone(path), f[0])...)
			}
		}
	}
	visit()
	return all
}

// check finds commands and flags that there are not.
func (c cli) check(text string) error {
	text = strings.TrimPrefix(text, "./bin/")
	words := strings.Fields(text)
	if words[0] != "govnode" {
		if strings.HasPrefix(text, "--") {
			for _, help := range c {
				if strings.Contains(help, "  "+words[0]+" ") || strings.Contains(help, ", "+words[0]+" ") || strings.Contains(help, words[0]+"\n") {
					return nil
				}
			}
			if ours := regexp.MustCompile(`^--[a-z-]+$`); ours.MatchString(words[0]) {
				return fmt.Errorf("no command has the flag")
			}
		}
		return nil
	}
	path := ""
	for _, w := range words[1:] {
		if !regexp.MustCompile(`^[a-z|]+$`).MatchString(w) {
			break
		}
		first := strings.Split(w, "|")
		for _, one := range first {
			if _, ok := c[strings.TrimSpace(path+" "+one)]; !ok {
				if strings.Contains(c[path], "Available Commands:") && one != "help" && one != "completion" {
					return fmt.Errorf("there is no such command")
				}
				first = nil
				break
			}
		}
		if first == nil {
			break
		}
		path = strings.TrimSpace(path + " " + first[0])
	}
	for _, m := range flag.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(c[path], m[1]) {
			return fmt.Errorf("`govnode %s` has no flag %s", path, m[1])
		}
	}
	return nil
}

// checkTargets finds targets of make that there are not.
func checkTargets(t *testing.T, text string) error {
	t.Helper()
	makefile := read(t, "Makefile")
	for _, line := range strings.Split(text, "\n") {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "make ")
		if !ok {
			continue
		}
		rest, _, _ = strings.Cut(rest, "#")
		for _, name := range strings.Fields(rest) {
			there := slices.ContainsFunc(target.FindAllStringSubmatch(makefile, -1), func(m []string) bool { return m[1] == name })
			if !there {
				return fmt.Errorf("make has no target %s", name)
			}
		}
	}
	return nil
}

// documented finds metrics that docs/metrics.md does not list.
func documented(text string) error {
	list, err := os.ReadFile(root + "/docs/metrics.md")
	if err != nil {
		return err
	}
	for _, name := range metric.FindAllString(text, -1) {
		base := name
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			base = strings.TrimSuffix(base, part)
		}
		if !strings.Contains(string(list), "| `"+base+"` |") && !strings.Contains(string(list), "| `"+name+"` |") {
			return fmt.Errorf("%s is not in docs/metrics.md", name)
		}
	}
	return nil
}

// checkAlerts reads rules for Prometheus as far as can be done without it.
func checkAlerts(text string) error {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		return err
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			switch {
			case r.Alert == "" || r.Expr == "":
				return fmt.Errorf("a rule of %s has no alert or no expr", g.Name)
			case strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") || strings.Count(r.Expr, "[") != strings.Count(r.Expr, "]"):
				return fmt.Errorf("%s: a bracket is not closed: %s", r.Alert, r.Expr)
			}
		}
	}
	return documented(text)
}
