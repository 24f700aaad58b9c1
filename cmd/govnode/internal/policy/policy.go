package policy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Command is `govnode policy`.
func Command() *cobra.Command {
	return terminal.Group("policy", "Judge policies, put them on the cluster and look at them",
		policyValidateCommand(), policyLintCommand(), policyEvalCommand(), policyScanCommand(), policyTestCommand(), policyDiffCommand(),
		policyPutCommand(), policyListCommand(), policyGetCommand(), policyDeleteCommand())
}

func policyPutCommand() *cobra.Command {
	var name string
	cmd := config.Leaf(&cobra.Command{
		Use:   "put FILE|DIR|-",
		Short: "Put a policy: one file, or a folder with all its policy files",
		Long: `Puts a policy: one file, standard input (-), or a folder with all its files, where tables
of tests and names that begin with a dot are left out. Its name points to it from then on; sessions that
are open keep the one they began with. The same content again changes nothing.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		source, err := readPolicy(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		for _, p := range source.located(source.leftOut()) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "warning:", terminal.Printable(p.String()))
		}
		req := &govnodev1.PutPolicyRequest{Name: name, RequestId: remote.NewRequestID(), Client: remote.ClientName}
		for _, f := range source.files {
			req.Files = append(req.Files, &govnodev1.TextFile{Path: f.Path, Content: string(f.Content)})
		}
		return remote.Answer(cmd, c, remote.Node.PutPolicy, req, func(w io.Writer, answer *govnodev1.PutPolicyResponse) error {
			for _, warning := range answer.Warnings {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "warning:", terminal.Printable(warning))
			}
			return terminal.Say(w, "%s version %d %s", answer.Name, answer.Version, answer.Digest)
		})
	})
	cmd.Flags().StringVar(&name, "name", "", "name of the policy; the one in its file if empty")
	return cmd
}

func policyListCommand() *cobra.Command {
	return remote.Lister[*govnodev1.ListPoliciesRequest, *govnodev1.ListPoliciesResponse, *govnodev1.Policy]{
		Method: remote.Node.ListPolicies,
		Request: func(size int32, token string) *govnodev1.ListPoliciesRequest {
			return &govnodev1.ListPoliciesRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListPoliciesResponse) *[]*govnodev1.Policy { return &p.Policies },
		Text: func(w io.Writer, all *govnodev1.ListPoliciesResponse) error {
			t := terminal.NewTable(w, "POLICY", "VERSION", "DIGEST", "PINNED")
			for _, p := range all.Policies {
				t.Row(p.Name, p.Version, p.Digest, p.Pinned)
			}
			return t.Flush()
		},
	}.Command(&cobra.Command{Use: "list", Short: "List policies, and how many open sessions are pinned to each"})
}

func policyGetCommand() *cobra.Command {
	var to string
	cmd := config.Leaf(&cobra.Command{
		Use:   "get NAME|DIGEST",
		Short: "Print the files of a policy, or write them to a folder",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		answer, err := remote.Call(cmd.Context(), c, remote.Node.GetPolicy, policyRef(args[0]))
		if err != nil {
			return err
		}
		if to != "" {
			if err := writePolicy(to, answer.Policy.GetFiles()); err != nil {
				return err
			}
		}
		return remote.Show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error {
			p := answer.Policy
			if to != "" {
				return terminal.Say(w, "wrote %d files of %s to %s", len(p.GetFiles()), p.GetName(), to)
			}
			_, _ = fmt.Fprintf(w, "# %s version %d %s, pinned by %d\n", terminal.Printable(p.GetName()), p.GetVersion(), p.GetDigest(), p.GetPinned())
			for _, f := range p.GetFiles() {
				_, _ = fmt.Fprintf(w, "\n# file %s\n%s", terminal.Printable(f.Path), printableLines(f.Content))
			}
			return nil
		})
	})
	cmd.Flags().StringVar(&to, "to", "", "folder to write the files to, byte for byte; nothing in it is overwritten")
	return cmd
}

// writePolicy writes files into a folder and nowhere else, whatever their paths
// say.
func writePolicy(folder string, files []*govnodev1.TextFile) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, f := range files {
		if err := root.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
			return err
		}
		file, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if _, err := file.WriteString(f.Content); err != nil {
			return errors.Join(err, file.Close())
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// printableLines is a text whose lines stay lines and end with one.
func printableLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")
		b.WriteString(terminal.Printable(line) + "\n")
	}
	return b.String()
}

// policyRef asks for a policy by its name or by its digest.
func policyRef(ref string) *govnodev1.GetPolicyRequest {
	if isDigest(ref) {
		return &govnodev1.GetPolicyRequest{Ref: &govnodev1.GetPolicyRequest_Digest{Digest: ref}}
	}
	return &govnodev1.GetPolicyRequest{Ref: &govnodev1.GetPolicyRequest_Name{Name: ref}}
}

func isDigest(ref string) bool { return strings.HasPrefix(ref, "sha256:") }

func policyDeleteCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "delete NAME|DIGEST",
		Short: "Delete a policy that no open session is pinned to",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.DeletePolicyRequest{
			Ref:       &govnodev1.DeletePolicyRequest_Name{Name: args[0]},
			RequestId: remote.NewRequestID(), Client: remote.ClientName,
		}
		if isDigest(args[0]) {
			req.Ref = &govnodev1.DeletePolicyRequest_Digest{Digest: args[0]}
		}
		return remote.AdviseOnDeleted(remote.Answer(cmd, c, remote.Node.DeletePolicy, req, func(w io.Writer, answer *govnodev1.DeletePolicyResponse) error {
			return terminal.Say(w, "deleted %s", args[0])
		}), "policy list", args[0])
	})
}
