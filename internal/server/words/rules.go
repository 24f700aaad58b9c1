package words

import (
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What rules of an Edictum ruleset have said, in the words of the API.

// RuleRecords are what became of rules.
func RuleRecords(records []engine.RuleRecord) []*v1.RuleRecord {
	if len(records) == 0 {
		return nil
	}
	out := make([]*v1.RuleRecord, len(records))
	for i, r := range records {
		out[i] = &v1.RuleRecord{
			Rule: r.Rule, Type: r.Type, Passed: r.Passed, Message: r.Message, Observed: r.Observed, Candidate: r.Candidate,
			PolicyError: r.PolicyError, Tags: r.Tags, Metadata: structOf(r.Metadata),
		}
	}
	return out
}

// ReviewOf is a review. Where what is left of the output cannot be sent, none of it is
// shown.
func ReviewOf(r engine.Review) *v1.Review {
	out := &v1.Review{Warnings: r.Warnings, Passed: r.Passed, Rules: RuleRecords(r.Records), PolicyError: r.PolicyError}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, &v1.ReviewFinding{Type: f.Type, Rule: f.Rule, Field: f.Field, Message: f.Message, Metadata: structOf(f.Metadata)})
	}
	if !r.Changed {
		return out
	}
	shown := structOf(value.OfMap(value.Pair{Key: "output", Value: r.Output}))
	if shown == nil {
		none := engine.Unreviewed("what is left of it cannot be sent")
		out.Warnings, out.PolicyError, out.Passed, r.Suppressed = append(out.Warnings, none.Warnings...), true, false, true
		shown = structOf(value.OfMap(value.Pair{Key: "output", Value: none.Output}))
	}
	out.Changed, out.Suppressed, out.Output = true, r.Suppressed, shown.GetFields()["output"]
	return out
}

// structOf is a mapping as a Struct; nil where it is none, or holds what that cannot.
func structOf(v value.Value) *structpb.Struct {
	if v.Kind() != value.Map || v.Len() == 0 {
		return nil
	}
	s, _ := v.Struct()
	return s
}
