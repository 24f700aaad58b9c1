package edictum

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// A caseResult is what became of one case.
type caseResult struct {
	ID       string `json:"id"`
	Tool     string `json:"tool_name"`
	Decision string `json:"decision"`
	Expected string `json:"expected"`
	Passed   bool   `json:"passed"`
	Rule     string `json:"rule"`
	Message  string `json:"message"`
}

// A callResult is what became of one call.
type callResult struct {
	Decision string   `json:"decision"`
	Tool     string   `json:"tool_name"`
	Rules    int      `json:"rules_evaluated"`
	Blocks   []string `json:"block_reasons"`
	Warns    []string `json:"warn_reasons"`
}

func testCommand() *cobra.Command {
	var cases, calls, environment string
	cmd := command(&cobra.Command{
		Use:   "test FILE",
		Short: "Judge cases, or calls, by a ruleset",
		Long: `Judges the cases of a YAML file (cases: id, tool, args, expect, and where it is wanted
principal, environment, match_contract), or shows what becomes of the calls of a JSON
file (a list of tool, args, and where it is wanted principal, output, environment).`,
		Example: "  govnode edictum test base.yaml --cases cases.yaml",
		Args:    terminal.Arguments(1, 1),
	}, func(o *output, files []string) error {
		rs, _, err := load(files)
		switch {
		case err != nil:
			return err
		case (cases == "") == (calls == ""):
			return terminal.Usagef("give one of --cases and --calls")
		case cases != "":
			return testCases(o, rs, cases, environment)
		}
		return showCalls(o, rs, calls, environment)
	})
	cmd.Flags().StringVar(&cases, "cases", "", "YAML `file` of cases")
	cmd.Flags().StringVar(&calls, "calls", "", "JSON `file` of calls")
	cmd.Flags().StringVar(&environment, "environment", "production", "`name` of the environment of those that name none")
	return cmd
}

// readValue reads a file of YAML or JSON.
func readValue(file string) (value.Value, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return value.Value{}, err
	}
	v, err := edictum.ParseValue(raw)
	if err != nil {
		return value.Value{}, fmt.Errorf("%s: %w", file, err)
	}
	return v, nil
}

// callOf is a call as these files have it.
func callOf(v value.Value, environment string) (*edictum.Call, error) {
	c := &edictum.Call{Tool: v.TextAt("tool"), Environment: v.TextAt("environment"), Explain: true, Args: value.OfMap()}
	if args, ok := v.Get("args"); ok {
		c.Args = args
	}
	if c.Environment == "" {
		c.Environment = environment
	}
	if c.Tool == "" || c.Args.Kind() != value.Map {
		return nil, errors.New("tool must be a text, and args a mapping")
	}
	c.Principal, _ = v.Get("principal")
	return c, nil
}

// expectations are the words of cases.
var expectations = map[string]string{"allow": "allow", "block": "block", "deny": "block", "ask": "ask", "warn": "warn"}

func testCases(o *output, rs *edictum.Ruleset, file, environment string) error {
	v, err := readValue(file)
	if err != nil {
		return err
	}
	list, _ := v.Get("cases")
	if list.Kind() != value.List || list.Len() == 0 {
		return fmt.Errorf("%s: cases: it must be a list of one or more", file)
	}
	results, failed, i := []caseResult{}, 0, 0
	for item := range list.Items() {
		r, err := testCase(rs, item, environment)
		if err != nil {
			return fmt.Errorf("%s: cases[%d]: %w", file, i, err)
		}
		if !r.Passed {
			failed++
		}
		results = append(results, r)
		i++
	}
	if o.json {
		err = o.print(results)
	} else {
		err = sayCases(o, results, failed)
	}
	if err == nil && failed > 0 {
		return no()
	}
	return err
}

func testCase(rs *edictum.Ruleset, item value.Value, environment string) (caseResult, error) {
	call, err := callOf(item, environment)
	if err != nil {
		return caseResult{}, err
	}
	expected, known := expectations[item.TextAt("expect")]
	if !known {
		return caseResult{}, errors.New("expect: it must be allow, block, ask or warn")
	}
	r := judgeCall(rs, call, item)
	out := caseResult{ID: item.TextAt("id"), Tool: call.Tool, Decision: r.decision, Expected: expected, Rule: r.rule, Message: r.message}
	out.Passed = r.decision == expected
	if wanted := item.TextAt("match_contract"); wanted != "" {
		out.Passed = out.Passed && r.failed[wanted]
	}
	return out, nil
}

// A judged is what became of a call, and of its output if that is given.
type judged struct {
	decision, rule, message string
	rules                   int
	failed                  map[string]bool
	blocks, warns           []string
}

func judgeCall(rs *edictum.Ruleset, call *edictum.Call, item value.Value) judged {
	v := rs.Before(call)
	j := judged{decision: decisions[v.Action], rule: v.Rule, message: v.Reason, rules: len(v.Records), failed: map[string]bool{}, blocks: []string{}, warns: []string{}}
	records := v.Records
	if v.Action != edictum.Allow {
		j.blocks = append(j.blocks, v.Reason)
	} else if out, ok := item.Get("output"); ok {
		after := rs.After(call, edictum.Output{Value: out})
		records = append(records, after.Records...)
		j.rules += len(after.Records)
		j.warns = append(j.warns, after.Warnings...)
		if len(after.Warnings) > 0 {
			j.decision = "warn"
		}
	}
	for _, r := range records {
		if r.Passed {
			continue
		}
		j.failed[r.Rule] = true
		if j.rule == "" && !r.Observed {
			j.rule, j.message = r.Rule, r.Message
		}
	}
	return j
}

func sayCases(o *output, results []caseResult, failed int) error {
	for _, r := range results {
		mark := "✓"
		if !r.Passed {
			mark = "✗"
		}
		line := fmt.Sprintf("%s %s: %s", mark, terminal.Printable(r.ID), r.Decision)
		if !r.Passed {
			line += fmt.Sprintf(", expected %s", r.Expected)
		}
		if r.Rule != "" {
			line += " by " + r.Rule
		}
		if err := o.say("%s", line); err != nil {
			return err
		}
	}
	return o.say("%d/%d passed, %d failed", len(results)-failed, len(results), failed)
}

func showCalls(o *output, rs *edictum.Ruleset, file, environment string) error {
	v, err := readValue(file)
	if err != nil {
		return err
	}
	if v.Kind() != value.List {
		return fmt.Errorf("%s: it must be a list of calls", file)
	}
	results, stopped, i := []callResult{}, false, 0
	for item := range v.Items() {
		call, err := callOf(item, environment)
		if err != nil {
			return fmt.Errorf("%s: [%d]: %w", file, i, err)
		}
		j := judgeCall(rs, call, item)
		results = append(results, callResult{j.decision, call.Tool, j.rules, j.blocks, j.warns})
		stopped = stopped || j.decision == "block" || j.decision == "ask"
		i++
	}
	if o.json {
		err = o.print(results)
	} else {
		t := terminal.NewTable(o.out, "TOOL", "DECISION", "RULES", "WHY")
		for _, r := range results {
			why := ""
			for _, w := range append(r.Blocks, r.Warns...) {
				why = w
				break
			}
			t.Row(r.Tool, r.Decision, r.Rules, why)
		}
		err = t.Flush()
	}
	if err == nil && stopped {
		return no()
	}
	return err
}
