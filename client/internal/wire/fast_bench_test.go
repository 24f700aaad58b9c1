package wire

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// BenchmarkFast is the requests of one call encoded, and its answers read.
func BenchmarkFast(b *testing.B) {
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	begin := &govnodev1.BeginCallRequest{
		SessionId: id, CallId: id, Tool: "web_search", ArgumentsJson: `{"limit":5,"query":"weather in Lisbon"}`,
		Pools: []*govnodev1.Want{{Pool: "gpu"}},
	}
	end := &govnodev1.EndCallRequest{SessionId: id, CallId: id, Status: govnodev1.Status_STATUS_SUCCEEDED}
	counters := &govnodev1.Counters{Attempts: 1201, Calls: 1201, Executions: 1200, TokensUsed: 100}
	begun := &govnodev1.BeginCallResponse{
		Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, DecisionId: id,
		Decision: &govnodev1.Decision{
			Allowed: true, Action: "allow", Policy: "bench", MatchedRule: "allow-search", Reason: "the tool is allowed",
			PolicyDigest: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Backend: "rules",
			EvaluationTime: durationpb.New(2 * time.Microsecond),
		},
		Grants: []*govnodev1.Grant{
			{Pool: "policy/bench", Token: 81230, Ttl: durationpb.New(30 * time.Second)},
			{Pool: "gpu", Token: 9123, Ttl: durationpb.New(30 * time.Second)},
		},
		Pressure: &govnodev1.Pressure{Level: govnodev1.Level_LEVEL_NONE, InUse: 512, Limit: 4096},
		Counters: counters, Index: 1 << 22,
	}
	ended := &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_ENDED, Counters: counters, Index: 1 << 22}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		var p Parcel
		for b.Loop() {
			p.Reset()
			Fast{}.Encode(&p, KindBegin, begin)
			p.Reset()
			Fast{}.Encode(&p, KindEnd, end)
		}
	})
	b.Run("read", func(b *testing.B) {
		raw, err := proto.Marshal(&govnodev1.ExchangeResponse{Answers: []*govnodev1.OperationResult{
			{Tag: 300, Result: &govnodev1.OperationResult_Begin{Begin: begun}},
			{Tag: 301, Result: &govnodev1.OperationResult_End{End: ended}},
		}})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			var in Inbox
			if err := in.read(raw); err != nil {
				b.Fatal(err)
			}
			in.Free()
		}
	})
}
