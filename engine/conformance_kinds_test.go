package engine

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/value"
)

func limitsValue(l Limits) value.Value {
	return value.OfMap(
		value.Pair{Key: "max_tokens", Value: value.OfInt(l.MaxTokens)},
		value.Pair{Key: "max_tool_calls", Value: value.OfInt(l.MaxToolCalls)},
		value.Pair{Key: "max_attempts", Value: value.OfInt(l.MaxAttempts)},
		value.Pair{Key: "max_calls_per_tool", Value: value.ListOf(l.MaxCallsPerTool, func(t ToolLimit) value.Value {
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

// roundTrip reads a policy back from the mapping of its fields, as a document.
func (a *archive) roundTrip(p *Policy) {
	a.Helper()
	a.subset("governance.json", a.json("governance.json"), p.Governance().Dict())
	again := mustCompileFiles(a.T, file("governance.json", p.Governance().Dict().JSON()))
	require.Equal(a, p.Governance().Dict().JSON(), again.Governance().Dict().JSON())
	require.Empty(a, p.Governance().Diff(again.Governance()))
}

func (a *archive) compare() {
	older, newer := mustCompile(a.T, a.text("old.yaml")).Governance(), mustCompile(a.T, a.text("new.yaml")).Governance()
	changes := value.ListOf(older.Diff(newer), func(c governance.Change) value.Value { return value.OfList(text(c.Field), c.Old, c.New) })
	a.subset("want.json", a.json("want.json"), value.OfMap(
		value.Pair{Key: "new_is_stricter", Value: value.OfBool(newer.StricterThan(older))},
		value.Pair{Key: "old_is_stricter", Value: value.OfBool(older.StricterThan(newer))},
		value.Pair{Key: "changes", Value: changes},
		value.Pair{Key: "conflicts_of_new", Value: value.ListOf(newer.DetectConflicts(), value.OfString)},
	))
}

func (a *archive) resolve() {
	v := a.json("resolve.json")
	list, _ := v.Get("candidates")
	var candidates []composition.Candidate
	for c := range list.Items() {
		priority, _ := c.Get("priority")
		n, _ := priority.AsInt()
		candidates = append(candidates, composition.Candidate{
			Action: document.Action(c.TextAt("action")), Priority: n, Level: document.Level(c.TextAt("scope")),
			Rule: c.TextAt("rule"),
		})
	}
	r := composition.Resolver{Strategy: document.Strategy(v.TextAt("strategy")), TieBreakDeny: v.TextAt("tie_break") == "deny"}
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
		value.Pair{Key: "trace", Value: value.ListOf(res.Trace, value.OfString)},
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
		value.Pair{Key: "events", Value: value.ListOf(AfterEvents(call.Input{}, "", &r, nil), func(e Event) value.Value {
			return value.OfList(text(string(e.Type)), text(e.Reason))
		})},
	))
}
