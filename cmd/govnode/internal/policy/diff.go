package policy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine"
)

// `govnode policy diff`.

// storedPrefix begins an argument that names a policy on a node.
const storedPrefix = "node:"

func policyDiffCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "diff POLICY [POLICY]",
		Short: "Print in what two policies differ",
		Long: `Prints in what two policies differ that may change a decision: mode and other settings of
the tree, the GovernancePolicy, documents with their defaults, scopes and rules, files
of Cedar and Rego; and whether one of the two GovernancePolicies is stricter.

A policy is a file, a folder, - for standard input, node:NAME for the newest of this name
on a node, or a digest for one that is stored there. With one policy it is compared with
the stored one of its name, which comes first. Files alone need no node.

The exit code is 0 if they are the same, 1 if they differ, and 2 if one of them is not
valid or not there.`,
		Example: `  govnode policy diff policies/
  govnode policy diff node:careful sha256:… --addr 127.0.0.1:7070`,
		Args: terminal.Arguments(1, 2),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		if len(args) == 2 && args[0] == stdinName && args[1] == stdinName {
			return terminal.Usagef("-: is given twice, and standard input can be read once")
		}
		var sources []*policySource
		var pair []*engine.Policy
		add := func(s *policySource, err error) error {
			if err != nil {
				return err
			}
			p, err := s.compile()
			sources, pair = append(sources, s), append(pair, p)
			return err
		}
		for _, arg := range args {
			if err := add(policyNamed(cmd, c, arg)); err != nil {
				return err
			}
		}
		if len(args) == 1 {
			if err := add(storedPolicy(cmd.Context(), c, pair[0].Name())); err != nil {
				return err
			}
			sources[0], sources[1], pair[0], pair[1] = sources[1], sources[0], pair[1], pair[0]
		}
		d := diffPolicies(pair[0], pair[1])
		d.Same = d.Same || sources[0].renamed(sources[1]) && len(d.Differences) == 0
		if err := d.print(cmd.OutOrStdout(), c.Output); err != nil {
			return err
		}
		if !d.Same {
			return &terminal.ExitError{Code: terminal.ExitNo}
		}
		return nil
	})
}

// policyNamed finds a policy on disk or on a node.
func policyNamed(cmd *cobra.Command, c *config.Config, arg string) (*policySource, error) {
	name, stored := strings.CutPrefix(arg, storedPrefix)
	if stored || isDigest(arg) {
		return storedPolicy(cmd.Context(), c, name)
	}
	return readPolicy(arg, cmd.InOrStdin())
}

// storedPolicy asks a node for a policy, by its name or digest.
func storedPolicy(ctx context.Context, c *config.Config, ref string) (*policySource, error) {
	answer, err := remote.Call(ctx, c, remote.Node.GetPolicy, policyRef(ref))
	if err != nil {
		return nil, err
	}
	s := &policySource{path: storedPrefix + ref, folder: len(answer.Policy.GetFiles()) > 1}
	for _, f := range answer.Policy.GetFiles() {
		s.files = append(s.files, engine.File{Path: f.Path, Content: []byte(f.Content)})
	}
	return s, nil
}

// renamed reports whether both are single files of the same content. Their
// digests differ with their names.
func (s *policySource) renamed(other *policySource) bool {
	return len(s.files) == 1 && len(other.files) == 1 && bytes.Equal(s.files[0].Content, other.files[0].Content)
}

type (
	policyDiff struct {
		Same        bool             `json:"same"`
		Stricter    string           `json:"stricter"` // first, second or neither
		Differences []differenceJSON `json:"differences"`
	}
	differenceJSON struct {
		Path   string `json:"path,omitempty"`
		What   string `json:"what"`
		Change string `json:"change"` // added, removed or changed
		Old    string `json:"old,omitempty"`
		New    string `json:"new,omitempty"`
	}
)

func diffPolicies(a, b *engine.Policy) policyDiff {
	d := policyDiff{Same: a.Digest() == b.Digest(), Stricter: "neither", Differences: []differenceJSON{}}
	for _, x := range engine.DiffPolicies(a, b) {
		change := "changed"
		switch {
		case x.Added:
			change = "added"
		case x.Removed:
			change = "removed"
		}
		d.Differences = append(d.Differences, differenceJSON{x.Path, x.What, change, x.Old, x.New})
	}
	switch {
	case a.Governance().StricterThan(b.Governance()):
		d.Stricter = "first"
	case b.Governance().StricterThan(a.Governance()):
		d.Stricter = "second"
	}
	return d
}

// print writes a line for each difference in a field, and the old and the new
// text of a rule or a file below its name.
func (d policyDiff) print(w io.Writer, output string) error {
	switch {
	case output == "json":
		return terminal.WriteJSON(w, d)
	case d.Same:
		_, err := fmt.Fprintln(w, "Policies are identical.")
		return err
	case len(d.Differences) == 0:
		_, _ = fmt.Fprintln(w, "The files differ in nothing that decides, such as comments or their names.")
	}
	for _, x := range d.Differences {
		what := terminal.Printable(x.What)
		if x.Path != "" {
			what = terminal.Printable(x.Path) + ": " + what
		}
		if x.Change == "changed" && !strings.HasPrefix(x.What, "rule ") && x.What != "the file" {
			_, _ = fmt.Fprintf(w, "%s: %s -> %s\n", what, terminal.Printable(x.Old), terminal.Printable(x.New))
			continue
		}
		_, _ = fmt.Fprintf(w, "%s: %s\n", what, x.Change)
		for _, side := range [][2]string{{"  - ", x.Old}, {"  + ", x.New}} {
			if side[1] == "" {
				continue
			}
			for line := range strings.Lines(printableLines(side[1])) {
				_, _ = io.WriteString(w, side[0]+line)
			}
		}
	}
	if d.Stricter != "neither" {
		_, _ = fmt.Fprintf(w, "The %s is the stricter one in the numbers and lists of its GovernancePolicy.\n", d.Stricter)
	}
	return nil
}
