package policy

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine"
)

// `govnode policy validate` and `govnode policy lint`.

// A policyReport says what is wrong or odd in one policy.
type policyReport struct {
	Path     string          `json:"path"`
	Valid    bool            `json:"valid"`
	Name     string          `json:"name,omitempty"`
	Digest   string          `json:"digest,omitempty"`
	Problems []problemReport `json:"problems"`
	Warnings []problemReport `json:"warnings"`

	mark string // before each warning
}

type problemReport struct {
	Path    string `json:"path"`
	Line    int    `json:"line,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

func reportOf(problems []engine.Problem) []problemReport {
	list := make([]problemReport, 0, len(problems))
	for _, p := range problems {
		list = append(list, problemReport{p.Path, p.Line, p.Field, p.Message})
	}
	return list
}

// judgePolicies compiles each policy and reports what is wrong with it, or what
// look finds in it.
func judgePolicies(cmd *cobra.Command, paths []string, mark string, look func(*engine.Policy) []engine.Problem) ([]policyReport, error) {
	var reports []policyReport
	for _, path := range paths {
		s, p, err := compiled(cmd, path)
		if err != nil && problemsOf(err) == nil {
			return nil, err
		}
		if err != nil {
			reports = append(reports, policyReport{Path: path, Problems: reportOf(problemsOf(err)), Warnings: []problemReport{}})
			continue
		}
		reports = append(reports, policyReport{
			Path: path, Valid: true, Name: p.Name(), Digest: p.Digest().String(),
			Problems: []problemReport{}, Warnings: reportOf(s.located(append(s.leftOut(), look(p)...))), mark: mark,
		})
	}
	return reports, nil
}

// print writes one line for each problem, path:line: field: message.
func (r policyReport) print(w io.Writer) error {
	for _, p := range r.Problems {
		if err := p.print(w, ""); err != nil {
			return err
		}
	}
	for _, p := range r.Warnings {
		if err := p.print(w, r.mark); err != nil {
			return err
		}
	}
	if r.Valid {
		_, err := fmt.Fprintf(w, "%s: valid, %s %s\n", terminal.Printable(r.Path), terminal.Printable(r.Name), r.Digest)
		return err
	}
	return nil
}

func (p problemReport) print(w io.Writer, mark string) error {
	place := p.Path
	if p.Line > 0 {
		place = fmt.Sprintf("%s:%d", p.Path, p.Line)
	}
	_, err := fmt.Fprintln(w, terminal.OneLine(place+": "+mark+engine.Problem{Field: p.Field, Message: p.Message}.String()))
	return err
}

func policyValidateCommand() *cobra.Command {
	return terminal.Local(&cobra.Command{
		Use:   "validate FILE|DIR|-...",
		Short: "Say whether policies are valid; needs no node",
		Long: `Checks policies as PutPolicy does and prints what is wrong as path:line: field: message.
- is standard input. The exit code is 1 if one of them is not valid, 2 if one is not there.`,
		Args: cobra.MinimumNArgs(1),
	}, []string{"text", "json"}, func(cmd *cobra.Command, output string, args []string) error {
		reports, err := judgePolicies(cmd, args, "warning: ", (*engine.Policy).Warnings)
		if err != nil {
			return err
		}
		bad := func(r policyReport) bool { return !r.Valid }
		return printReports(cmd.OutOrStdout(), output, reports, bad, terminal.ExitNo)
	})
}

func policyLintCommand() *cobra.Command {
	return terminal.Local(&cobra.Command{
		Use:   "lint FILE|DIR|-...",
		Short: "Report what is valid and probably not meant; needs no node",
		Long: `Reports rules that can never decide, denies that an absent field evades, patterns that
need backtracking or match more than they seem to, limits that contradict each other,
and what has no effect where it stands. - is standard input. The exit code is 1 if there
is something to report, and 2 if a policy is not valid or not there.`,
		Args: cobra.MinimumNArgs(1),
	}, []string{"text", "json"}, func(cmd *cobra.Command, output string, args []string) error {
		reports, err := judgePolicies(cmd, args, "", engine.Lint)
		if err != nil {
			return err
		}
		code := terminal.ExitNo
		if slices.ContainsFunc(reports, func(r policyReport) bool { return !r.Valid }) {
			code = terminal.ExitUsage
		}
		bad := func(r policyReport) bool { return !r.Valid || len(r.Warnings) > 0 }
		return printReports(cmd.OutOrStdout(), output, reports, bad, code)
	})
}

// printReports prints and ends with a code if one report is bad.
func printReports(w io.Writer, output string, reports []policyReport, bad func(policyReport) bool, code int) error {
	if output == "json" {
		if err := terminal.WriteJSON(w, reports); err != nil {
			return err
		}
	} else {
		for _, r := range reports {
			if err := r.print(w); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(reports, bad) {
		return &terminal.ExitError{Code: code}
	}
	return nil
}
