package policy

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine"
)

// `govnode policy test`.

func policyTestCommand() *cobra.Command {
	var run string
	cmd := terminal.Local(&cobra.Command{
		Use:   "test DIR",
		Short: "Run the tables of tests beside a policy; needs no node",
		Long: `Runs the tables of tests in a folder, *_test.yaml beside the policies that they test:

  cases:
    - name: deletes are denied
      tool: delete_resource
      context: {role: guest}
      expect: {action: deny, rule: no-delete}

No guardrail is really asked: a table says under stubs what they answer, as in
"stubs: {scanner: allow}", beside its cases or in one of them.

The exit code is 0 if all pass, 1 if one fails or there is none, and 2 if the policy or
a table is not valid or not there.`,
		Args: terminal.Arguments(1, 1),
	}, []string{"text", "json", "junit"}, func(cmd *cobra.Command, output string, args []string) error {
		only, err := regexp.Compile(run)
		if err != nil {
			return terminal.Usagef("run: %q (flag --run): must be a regular expression: %w", run, err)
		}
		s, p, err := compiled(cmd, args[0])
		if err != nil {
			return err
		}
		report, err := engine.RunTests(cmd.Context(), p, s.tests, only)
		if err != nil {
			return terminal.Unusable(s.locate(err))
		}
		for i := range report.Cases {
			report.Cases[i].Path = s.file(report.Cases[i].Path)
		}
		for i := range report.Coverage {
			report.Coverage[i].Path = s.file(report.Coverage[i].Path)
		}
		if err := printTests(cmd.OutOrStdout(), output, report); err != nil {
			return err
		}
		switch {
		case len(report.Cases) == 0 && run != "":
			return &terminal.ExitError{Code: terminal.ExitNo, Err: fmt.Errorf("%s: no test has a name that matches %q (flag --run)", s.path, run)}
		case len(report.Cases) == 0:
			return &terminal.ExitError{Code: terminal.ExitNo, Err: fmt.Errorf("%s: holds no test: put cases into files that end in _test.yaml", s.path)}
		case report.Failed > 0:
			return &terminal.ExitError{Code: terminal.ExitNo, Err: errors.New(failedText(report))}
		}
		return nil
	})
	cmd.Flags().StringVar(&run, "run", "", "run only the cases whose names match this regular expression")
	return cmd
}

func failedText(r engine.TestReport) string {
	return fmt.Sprintf("%d of %d tests failed", r.Failed, len(r.Cases))
}

func printTests(w io.Writer, output string, r engine.TestReport) error {
	switch output {
	case "json":
		return terminal.WriteJSON(w, testsJSON(r))
	case "junit":
		return writeJUnit(w, r)
	}
	for _, c := range r.Cases {
		mark := "ok  "
		if len(c.Failures) > 0 {
			mark = "FAIL"
		}
		_, _ = fmt.Fprintf(w, "%s  %s:%d: %s\n", mark, c.Path, c.Line, terminal.Printable(c.Name))
		for _, f := range c.Failures {
			_, _ = fmt.Fprintf(w, "      %s\n", terminal.Printable(f))
		}
	}
	hit, missed := coverage(r)
	_, _ = fmt.Fprintf(w, "\n%d tests, %d failed; %d of %d rules decided a test\n", len(r.Cases), r.Failed, hit, len(r.Coverage))
	for _, c := range missed {
		_, _ = fmt.Fprintf(w, "no test:  %s:%d: %s\n", c.Path, c.Line, terminal.Printable(c.Rule))
	}
	return nil
}

func coverage(r engine.TestReport) (hit int, missed []engine.RuleCoverage) {
	for _, c := range r.Coverage {
		if c.Hits > 0 {
			hit++
		} else {
			missed = append(missed, c)
		}
	}
	return hit, missed
}

type (
	testsReport struct {
		Tests    int              `json:"tests"`
		Failed   int              `json:"failed"`
		Cases    []caseReport     `json:"cases"`
		Coverage []coverageReport `json:"coverage"`
	}
	caseReport struct {
		Path     string   `json:"path"`
		Line     int      `json:"line"`
		Name     string   `json:"name"`
		Passed   bool     `json:"passed"`
		Failures []string `json:"failures,omitempty"`
		Action   string   `json:"action"`
		Rule     string   `json:"rule,omitempty"`
		Reason   string   `json:"reason"`
	}
	coverageReport struct {
		Path string `json:"path"`
		Line int    `json:"line"`
		Rule string `json:"rule"`
		Hits int    `json:"hits"`
	}
)

func testsJSON(r engine.TestReport) testsReport {
	out := testsReport{Tests: len(r.Cases), Failed: r.Failed, Cases: []caseReport{}, Coverage: []coverageReport{}}
	for _, c := range r.Cases {
		out.Cases = append(out.Cases, caseReport{
			c.Path, c.Line, c.Name, len(c.Failures) == 0, c.Failures,
			c.Decision.Action, c.Decision.MatchedRule, c.Decision.Reason,
		})
	}
	for _, c := range r.Coverage {
		out.Coverage = append(out.Coverage, coverageReport{c.Path, c.Line, c.Rule, c.Hits})
	}
	return out
}

// The JUnit format, as far as the servers that read it agree.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		File    string        `xml:"file,attr"`
		Line    int           `xml:"line,attr"`
		Seconds string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// writeJUnit makes a suite of each table.
func writeJUnit(w io.Writer, r engine.TestReport) error {
	all := junitSuites{Tests: len(r.Cases), Failures: r.Failed}
	for _, c := range r.Cases {
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != c.Path {
			all.Suites = append(all.Suites, junitSuite{Name: c.Path})
		}
		suite := &all.Suites[len(all.Suites)-1]
		j := junitCase{Class: c.Path, Name: c.Name, File: c.Path, Line: c.Line, Seconds: fmt.Sprintf("%.6f", c.Duration.Seconds())}
		if len(c.Failures) > 0 {
			suite.Failures++
			j.Failure = &junitFailure{Message: c.Failures[0], Text: strings.Join(c.Failures, "\n")}
		}
		suite.Tests++
		suite.Cases = append(suite.Cases, j)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
