package policy

import (
	"io"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// `govnode policy scan`.

var scanKinds = map[string]engine.ScanKind{
	"input": engine.ScanInput, "output": engine.ScanOutput, "memory": engine.ScanMemory, "message": engine.ScanMessage,
}

func policyScanCommand() *cobra.Command {
	var kind, text string
	cmd := terminal.Local(&cobra.Command{
		Use:   "scan FILE|DIR",
		Short: "Judge a text by a policy; needs no node",
		Long: `Judges a text by a policy, as a node would: blocked patterns, credentials and personal
data. The text is that of --text, else standard input. The exit code is 0 if it is
allowed, also where it has to be redacted, 1 if it is denied, and 2 if the policy is not
valid or not there.`,
		Example: `  govnode policy scan policy.yaml --kind output < answer.txt`,
		Args:    terminal.Arguments(1, 1),
	}, []string{"text", "json"}, func(cmd *cobra.Command, output string, args []string) error {
		k, ok := scanKinds[kind]
		if !ok {
			return terminal.Usagef("kind: %q (flag --kind): must be input, output, memory or message", kind)
		}
		if args[0] == "-" {
			return terminal.Usagef("FILE: standard input is the text; name a file or a folder")
		}
		_, p, err := compiled(cmd, args[0])
		if err != nil {
			return err
		}
		if !cmd.Flags().Changed("text") {
			b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), engine.MaxScan+1))
			if err != nil {
				return terminal.Unusable(err)
			}
			text = string(b)
		}
		r := p.Scan(cmd.Context(), k, text)
		if err := printScan(cmd.OutOrStdout(), output, r, p.Digest()); err != nil {
			return err
		}
		if !r.Decision.Allowed {
			return &terminal.ExitError{Code: terminal.ExitNo}
		}
		return nil
	})
	cmd.Flags().StringVar(&kind, "kind", "input", "what the text is: input|output|memory|message")
	cmd.Flags().StringVar(&text, "text", "", "the text; standard input if not given")
	return cmd
}

func printScan(w io.Writer, output string, r engine.ScanResult, digest engine.Digest) error {
	d := r.Decision
	if output == "json" {
		out := &govnodev1.ScanResponse{Allowed: d.Allowed, Action: d.Action, Redacted: r.Redacted, Reason: d.Reason,
			Category: d.Category, PublicMessage: d.PublicMessage, PolicyDigest: digest.String()}
		for _, f := range r.Findings {
			out.Findings = append(out.Findings, &govnodev1.ScanFinding{Type: f.Type, Rule: f.Rule, Count: int32(f.Count)})
		}
		return terminal.PrintJSON(w, out)
	}
	t := terminal.NewTable(w, "ACTION", d.Action)
	t.Row("REASON", d.Reason)
	t.Row("CATEGORY", d.Category)
	for _, f := range r.Findings {
		t.Row("FOUND", f.Type+" "+f.Rule, f.Count)
	}
	if r.Redacted != "" {
		t.Row("REDACTED", r.Redacted)
	}
	return t.Flush()
}
