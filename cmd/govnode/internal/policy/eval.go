package policy

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// `govnode policy eval`.

// evalFlags is a call as it is described on the command line.
type evalFlags struct {
	tool, agent, kind, order, arguments, context, metadata string
	explain                                                bool
}

var evalKinds = map[string]engine.Kind{
	"tool": engine.KindTool, "model": engine.KindModel, "agent": engine.KindAgent, "handoff": engine.KindHandoff, "sampling": engine.KindSampling,
}

var evalOrders = map[string]engine.Order{
	"union": engine.OrderUnion, "interceptor": engine.OrderInterceptor, "pre_execute": engine.OrderPreExecute,
}

func policyEvalCommand() *cobra.Command {
	var f evalFlags
	cmd := terminal.Local(&cobra.Command{
		Use:   "eval FILE|DIR|-",
		Short: "Judge one call by a policy; needs no node",
		Long: `Judges one call by a policy, as a node would, and counts nothing. - is standard input. The
exit code is 0 if the call is allowed, 1 if it is denied or people are to be asked about
it, and 2 if the policy is not valid or not there.`,
		Example: `  govnode policy eval policy.yaml --tool delete_file --args '{"path":"/etc"}' --context '{"role":"admin"}' --explain`,
		Args:    terminal.Arguments(1, 1),
	}, []string{"text", "json"}, func(cmd *cobra.Command, output string, args []string) error {
		in, err := f.input()
		if err != nil {
			return err
		}
		_, p, err := compiled(cmd, args[0])
		if err != nil {
			return err
		}
		d := p.Evaluate(cmd.Context(), in)
		if err := f.print(cmd.OutOrStdout(), output, d, p.Digest()); err != nil {
			return err
		}
		if !d.Allowed {
			return &terminal.ExitError{Code: terminal.ExitNo}
		}
		return nil
	})
	fs := cmd.Flags()
	fs.StringVar(&f.tool, "tool", "", "name of the tool; rules on the context alone need none")
	fs.StringVar(&f.arguments, "args", "", "its arguments, a JSON object")
	fs.StringVar(&f.context, "context", "", "what is known about the call, a JSON object; path selects the folder")
	fs.StringVar(&f.metadata, "metadata", "", "what an adapter sends beside the call, such as content_hash, a JSON object")
	fs.StringVar(&f.agent, "agent", "", "id of the agent")
	fs.StringVar(&f.kind, "kind", "tool", "what is called: tool|model|agent|handoff|sampling")
	fs.StringVar(&f.order, "order", "union", "order of the checks: union|interceptor|pre_execute")
	fs.BoolVar(&f.explain, "explain", false, "print how the decision came about")
	return cmd
}

func (f *evalFlags) input() (engine.Input, error) {
	in := engine.Input{Tool: f.tool, AgentID: f.agent, Explain: f.explain}
	var ok bool
	if in.Kind, ok = evalKinds[f.kind]; !ok {
		return in, terminal.Usagef("kind: %q (flag --kind): must be tool, model, agent, handoff or sampling", f.kind)
	}
	if in.Order, ok = evalOrders[f.order]; !ok {
		return in, terminal.Usagef("order: %q (flag --order): must be union, interceptor or pre_execute", f.order)
	}
	var err error
	if in.Arguments, err = jsonObject("args", f.arguments); err != nil {
		return in, err
	}
	said, err := jsonObject("context", f.context)
	if err != nil {
		return in, err
	}
	metadata, err := jsonObject("metadata", f.metadata)
	in.Context = engine.WithMetadata(said, metadata)
	return in, err
}

func jsonObject(flag, text string) (value.Value, error) {
	if text == "" {
		return value.Value{}, nil
	}
	v, err := value.Parse([]byte(text))
	if err != nil {
		return v, terminal.Usagef("%s (flag --%s): is not JSON: %w", flag, flag, err)
	}
	if v.Kind() != value.Map {
		return v, terminal.Usagef("%s (flag --%s): must be a JSON object, as {\"name\": \"value\"}", flag, flag)
	}
	return v, nil
}

func (f *evalFlags) print(w io.Writer, output string, d engine.Decision, digest engine.Digest) error {
	if output == "json" {
		out, err := evaluation(d, digest)
		if err != nil {
			return err
		}
		return terminal.PrintJSON(w, out)
	}
	verdict := "denied"
	switch {
	case d.Ask != nil:
		verdict = "ask"
	case d.Allowed:
		verdict = "allowed"
	}
	t := terminal.NewTable(w, "DECISION", verdict)
	t.Row("ACTION", d.Action)
	t.Row("POLICY", d.Policy)
	t.Row("RULE", d.MatchedRule)
	t.Row("REASON", d.Reason)
	t.Row("CATEGORY", d.Category)
	t.Row("CHAIN", strings.Join(d.PolicyChain, " > "))
	if a := d.Ask; a != nil {
		onTimeout := engine.Deny
		if a.AllowOnTimeout {
			onTimeout = engine.Allow
		}
		t.Row("APPROVAL", fmt.Sprintf("%d to allow, %d to deny, %s after %s", a.Required, a.Denials, onTimeout, a.Timeout))
	}
	if d.Backend != "" {
		t.Row("BACKEND", d.Backend)
	}
	if d.Error != "" {
		t.Row("ERROR", d.Error)
	}
	if d.ModifiedArguments != nil {
		t.Row("ARGUMENTS", d.ModifiedArguments.JSON())
	}
	if err := t.Flush(); err != nil || len(d.Trace) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	for _, line := range d.Trace {
		if _, err := fmt.Fprintln(w, terminal.Printable(line)); err != nil {
			return err
		}
	}
	return nil
}

// evaluation is a decision as a node answers it.
func evaluation(d engine.Decision, digest engine.Digest) (out *govnodev1.EvaluateResponse, err error) {
	out = &govnodev1.EvaluateResponse{Trace: d.Trace, Decision: &govnodev1.Decision{
		Allowed: d.Allowed, Action: d.Action, Policy: d.Policy, MatchedRule: d.MatchedRule, Reason: d.Reason,
		Category: d.Category, PolicyDigest: digest.String(), PolicyChain: d.PolicyChain, Backend: d.Backend,
		EvaluationTime: durationpb.New(d.EvaluationTime), Error: d.Error, PublicMessage: d.PublicMessage,
		RulesEvaluated: int32(d.RulesEvaluated), SideEffect: d.SideEffect, Source: d.Source,
	}}
	for _, r := range d.Records {
		rule := &govnodev1.RuleRecord{
			Rule: r.Rule, Type: r.Type, Passed: r.Passed, Message: r.Message, Observed: r.Observed, Candidate: r.Candidate,
			PolicyError: r.PolicyError, Tags: r.Tags,
		}
		if r.Metadata.Kind() == value.Map {
			if rule.Metadata, err = r.Metadata.Struct(); err != nil {
				return nil, err
			}
		}
		out.Decision.Rules = append(out.Decision.Rules, rule)
	}
	if d.ModifiedArguments != nil {
		out.ModifiedArguments, err = d.ModifiedArguments.Struct()
	}
	return out, err
}
