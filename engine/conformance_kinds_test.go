package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/value"
)

func limitsValue(l Limits) value.Value {
	return value.OfMap(
		value.Pair{Key: "max_tokens", Value: value.OfInt(l.MaxTokens)},
		value.Pair{Key: "max_tool_calls", Value: value.OfInt(l.MaxToolCalls)},
		value.Pair{Key: "max_attempts", Value: value.OfInt(l.MaxAttempts)},
		value.Pair{Key: "max_calls_per_tool", Value: listOf(l.MaxCallsPerTool, func(t ToolLimit) value.Value {
			return value.OfList(text(t.Tool), value.OfInt(t.Max))
		})},
		value.Pair{Key: "timeout", Value: text(l.Timeout.String())},
		value.Pair{Key: "max_concurrent", Value: value.OfInt(int64(l.MaxConcurrent))},
		value.Pair{Key: "backpressure_threshold", Value: value.OfInt(int64(l.BackpressureThreshold))},
		value.Pair{Key: "checkpoint_frequency", Value: value.OfInt(int64(l.CheckpointFrequency))},
		value.Pair{Key: "drift_threshold", Value: value.OfInt(l.DriftThreshold)},
		value.Pair{Key: "log_all_calls", Value: value.OfBool(l.LogAllCalls)},
	)
}

func (a *archive) roundTrip(g *GovernancePolicy) {
	a.Helper()
	want := a.json("governance.json")
	a.subset("governance.json", want, g.Dict())
	fromYAML, err := GovernancePolicyFromYAML(g.YAML())
	require.NoError(a, err)
	require.Equal(a, g.Dict().JSON(), fromYAML.Dict().JSON())
	fromDict, err := GovernancePolicyFromDict(g.Dict())
	require.NoError(a, err)
	require.Equal(a, g.Dict().JSON(), fromDict.Dict().JSON())
}

func (a *archive) compare() {
	older, err := GovernancePolicyFromYAML(a.text("old.yaml"))
	require.NoError(a, err)
	newer, err := GovernancePolicyFromYAML(a.text("new.yaml"))
	require.NoError(a, err)
	c := older.CompareVersions(newer)
	changes := listOf(c.Changes, func(c Change) value.Value { return value.OfList(text(c.Field), c.Old, c.New) })
	a.subset("want.json", a.json("want.json"), value.OfMap(
		value.Pair{Key: "new_is_stricter", Value: value.OfBool(newer.StricterThan(older))},
		value.Pair{Key: "old_is_stricter", Value: value.OfBool(older.StricterThan(newer))},
		value.Pair{Key: "old_version", Value: text(c.OldVersion)},
		value.Pair{Key: "new_version", Value: text(c.NewVersion)},
		value.Pair{Key: "versions_differ", Value: value.OfBool(c.VersionsDiffer)},
		value.Pair{Key: "changes", Value: changes},
		value.Pair{Key: "conflicts_of_new", Value: listOf(newer.DetectConflicts(), value.OfString)},
	))
}

func (a *archive) resolve() {
	v := a.json("resolve.json")
	list, _ := v.Get("candidates")
	var candidates []Candidate
	for c := range list.Items() {
		priority, _ := c.Get("priority")
		n, _ := priority.AsInt()
		candidates = append(candidates, Candidate{
			Action: Action(contextString(c, "action")), Priority: n, Level: Level(contextString(c, "scope")),
			Policy: contextString(c, "policy"), Rule: contextString(c, "rule"), Reason: contextString(c, "reason"),
		})
	}
	r := Resolver{Strategy: Strategy(contextString(v, "strategy")), TieBreakDeny: contextString(v, "tie_break") == "deny"}
	res, err := r.Resolve(candidates)
	message := ""
	if err != nil {
		message = err.Error()
	}
	a.subset("want.json", a.json("want.json"), value.OfMap(
		value.Pair{Key: "winner", Value: text(res.Winner.Rule)},
		value.Pair{Key: "action", Value: text(string(res.Winner.Action))},
		value.Pair{Key: "strategy", Value: text(string(res.Strategy))},
		value.Pair{Key: "candidates_evaluated", Value: value.OfInt(int64(res.Candidates))},
		value.Pair{Key: "conflict_detected", Value: value.OfBool(res.Conflict)},
		value.Pair{Key: "trace", Value: listOf(res.Trace, value.OfString)},
		value.Pair{Key: "error", Value: text(message)},
	))
}

func (a *archive) drift() {
	v := a.json("drift.json")
	baseline, _ := v.Get("baseline")
	current, _ := v.Get("current")
	threshold, _ := v.Get("threshold")
	t, _ := threshold.AsFloat()
	r := Drift(OutputText(baseline), OutputText(current), t)
	a.subset("want.json", a.json("want.json"), value.OfMap(
		value.Pair{Key: "score", Value: text(fmt.Sprintf("%.6f", r.Score))},
		value.Pair{Key: "exceeded", Value: value.OfBool(r.Exceeded)},
		value.Pair{Key: "threshold", Value: value.OfFloat(r.Threshold)},
		value.Pair{Key: "same_hash", Value: value.OfBool(r.BaselineHash == r.CurrentHash)},
		value.Pair{Key: "current_hash", Value: text(r.CurrentHash)},
		value.Pair{Key: "events", Value: listOf(AfterEvents(Input{}, "", &r), func(e Event) value.Value {
			return value.OfList(text(string(e.Type)), text(e.Reason))
		})},
	))
}

// chain builds interceptors from JSON and intercepts a call.
func (a *archive) chain() {
	v := a.json("chain.json")
	composite := NewCompositeInterceptor()
	composite.Log = discard
	list, _ := v.Get("interceptors")
	var asked []string
	for spec := range list.Items() {
		require.Same(a, composite, composite.Add(a.interceptor(spec, &asked)))
	}
	call, _ := v.Get("call")
	args, _ := call.Get("arguments")
	meta, _ := call.Get("metadata")
	res := composite.Intercept(context.Background(), ToolCall{
		ToolName: contextString(call, "tool_name"), Arguments: args, Metadata: meta,
		CallID: contextString(call, "call_id"), AgentID: contextString(call, "agent_id"),
	})
	modified := value.Value{}
	if res.ModifiedArguments != nil {
		modified = *res.ModifiedArguments
	}
	a.subset("want.json", a.json("want.json"), value.OfMap(
		value.Pair{Key: "allowed", Value: value.OfBool(res.Allowed)},
		value.Pair{Key: "reason", Value: orNull(res.Reason)},
		value.Pair{Key: "modified_arguments", Value: modified},
		value.Pair{Key: "asked", Value: listOf(asked, value.OfString)},
	))
}

// scripted is an interceptor that does what a test says, and notes that it was
// asked.
type scripted struct {
	name  string
	asked *[]string
	do    func(ToolCall) ToolResult
}

func (s scripted) Intercept(_ context.Context, call ToolCall) ToolResult {
	*s.asked = append(*s.asked, s.name)
	return s.do(call)
}

func (a *archive) interceptor(spec value.Value, asked *[]string) Interceptor {
	a.Helper()
	get := func(name string) value.Value { v, _ := spec.Get(name); return v }
	switch kind := contextString(spec, "kind"); kind {
	case "policy":
		g, err := GovernancePolicyFromYAML(contextString(spec, "policy"))
		require.NoError(a, err)
		count, counted := get("call_count").AsInt()
		i := &PolicyInterceptor{Governance: g}
		if counted {
			i.CallCount = func() int64 { return count }
		}
		return i
	case "content_hash":
		hashes := map[string]string{}
		for tool, h := range get("hashes").All() {
			hashes[tool], _ = h.AsString()
		}
		i, err := NewContentHashInterceptor(hashes, ContentHashMode(contextString(spec, "mode")))
		require.NoError(a, err)
		i.Log = discard
		return i
	case "allow":
		return scripted{contextString(spec, "name"), asked, func(ToolCall) ToolResult { return ToolResult{Allowed: true} }}
	case "deny":
		return scripted{contextString(spec, "name"), asked, func(ToolCall) ToolResult {
			return ToolResult{Reason: contextString(spec, "reason")}
		}}
	case "set":
		return scripted{contextString(spec, "name"), asked, func(call ToolCall) ToolResult {
			args := call.Arguments.With(contextString(spec, "key"), get("value"))
			return ToolResult{Allowed: true, ModifiedArguments: &args}
		}}
	case "panic":
		return scripted{contextString(spec, "name"), asked, func(ToolCall) ToolResult { panic("a defect") }}
	default:
		a.Fatalf("unknown interceptor %q", kind)
		return nil
	}
}

// scriptedBackend stands for an external language whose file says what to
// answer: allow, deny, audit, error, panic, hang, or nonsense, and a reason.
type scriptedBackend struct {
	name, verb, reason string
}

func loadScripted(name string) BackendLoader {
	return func(files []File) (Backend, []Problem) {
		verb, reason, _ := strings.Cut(strings.TrimSpace(string(files[0].Content)), " ")
		if verb == "broken" {
			return nil, []Problem{{Path: files[0].Path, Line: 1, Message: "it does not parse"}}
		}
		return &scriptedBackend{name: name, verb: verb, reason: reason}, nil
	}
}

func (b *scriptedBackend) Name() string { return b.name }

func (b *scriptedBackend) Evaluate(ctx context.Context, in BackendInput) (BackendDecision, error) {
	switch b.verb {
	case "allow":
		return BackendDecision{Allowed: true, Reason: b.reason}, nil
	case "audit":
		return BackendDecision{Allowed: true, Action: Audit, Reason: b.reason}, nil
	case "deny":
		return BackendDecision{Reason: b.reason}, nil
	case "echo":
		return BackendDecision{Allowed: true, Reason: in.Context.JSON()}, nil
	case "nonsense":
		return BackendDecision{Allowed: true, Action: Deny}, nil
	case "panic":
		panic(b.reason)
	case "hang":
		<-ctx.Done()
		return BackendDecision{}, ctx.Err()
	}
	return BackendDecision{}, errors.New(b.reason)
}
