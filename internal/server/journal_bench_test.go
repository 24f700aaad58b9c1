package server

import (
	"io"
	"strconv"
	"testing"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/record"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// BenchmarkTakeDown is what it costs a call that its decision is in the audit
// log, and can be explained and followed afterwards. Lines go out by 64, as
// under load.
func BenchmarkTakeDown(b *testing.B) {
	store := storage.NewMemory(nil)
	s, err := New(Config{Store: store, Audit: io.Discard})
	if err != nil {
		b.Fatal(err)
	}
	tree, err := engine.SingleFile("name: p\nmax_tokens: 1\n")
	if err != nil {
		b.Fatal(err)
	}
	policy, err := engine.Compile(tree)
	if err != nil {
		b.Fatal(err)
	}
	call := &begin{
		policy: policy, cmd: &session.Begin{Session: "s", Call: "c"}, session: &session.Session{},
	}
	call.answer = &storage.Answer{}
	judged := record.Record{
		Input: engine.Input{Tool: "t", SessionID: "s", CallID: "c", Arguments: value.OfMap(value.Pair{Key: "command", Value: value.OfString("ls -l")})},
	}
	call.init(s, "default", nil, &v1.BeginCallRequest{ArgumentsJson: `{"command":"ls -l"}`})
	judged.Decision = policy.Evaluate(b.Context(), judged.Input)
	ids := make([]string, 1<<16)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	said := record.DecisionOf(judged.Decision, session.Digest(policy.Digest()))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		kept := judged
		call.kept, call.input, call.decision = &kept, &kept.Input, &kept.Decision
		s.audit.call(call, &v1.BeginCallResponse{DecisionId: ids[i&(1<<16-1)], Outcome: v1.Outcome_OUTCOME_ADMITTED, Decision: said})
		if i++; i%64 == 0 {
			_ = s.audit.written(&call.trace)
		}
	}
}
