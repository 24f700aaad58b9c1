package server

import (
	"context"

	"connectrpc.com/connect"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// withMetadata puts metadata into the context, where policies look for it. What
// the context itself says there is not believed.
func withMetadata(ctx value.Value, m map[string]string) value.Value {
	if len(m) == 0 {
		return engine.WithMetadata(ctx, value.Value{})
	}
	pairs := make([]value.Pair, 0, len(m))
	for name, text := range input.Sorted(m) {
		pairs = append(pairs, value.Pair{Key: name, Value: value.OfString(text)})
	}
	return engine.WithMetadata(ctx, value.OfMap(pairs...))
}

// contentHash looks up what is registered for a tool. What cannot be read is put
// into failed: whoever asked must not decide without it.
func (s *Server) contentHash(ctx context.Context, ns string, failed *error) func(string) (string, bool) {
	return func(tool string) (string, bool) {
		found, err := s.store.Get(ctx, session.HashKey(ns, tool), storage.Nearby)
		if err != nil {
			*failed = fault.OfRead(err)
			return "", false
		}
		h, ok := found.Record.(*session.Hash)
		if !ok || h == nil {
			return "", false
		}
		return h.Hash, true
	}
}

// errModifiedBefore answers the repeat of a call that was admitted with arguments
// that a guardrail had changed, where the guardrails do not give them again. To
// admit it with the old ones would be wrong, and to deny it untrue.
func errModifiedBefore(subject string) error {
	return fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown,
		subject+": it was admitted with arguments that a guardrail changed, and the guardrails do not give them again now; send it again with the same id, or end it with EndCall and begin another")
}

// errModified refuses a call whose arguments a guardrail has changed into what
// the answer cannot hold: to admit it with the old ones would be wrong.
func errModified(err error) error {
	return fault.New(connect.CodeFailedPrecondition, fault.ReasonInvalidField, "arguments: a guardrail changed them into what a Struct cannot hold: "+err.Error())
}
