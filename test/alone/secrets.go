package alone

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What calls bring to a session that has a secret, when they are renewed and given up.

// crossed has two sessions with secrets, and renews a call of each in one request: with its
// own secret, with none, with another, and with that of the other session. Then it gives up
// one that waits in the same ways.
func crossed(s *script) {
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 2\n") {
		return
	}
	var sessions, secrets, calls [2]string
	var tokens [2]uint64
	for i := range sessions {
		sessions[i] = fmt.Sprint(s.own, "-", i)
		secrets[i] = sessions[i] + "-secret"
		create := &v1.CreateSessionRequest{SessionId: sessions[i], AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, SessionTokenSha256: secretOf(secrets[i])}
		done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, create)
		})
		req := s.call("one")
		req.SessionId, req.SessionToken = sessions[i], secrets[i]
		res := s.begin(req)
		if s.outcome(res, v1.Outcome_OUTCOME_ADMITTED); s.over {
			return
		}
		calls[i], tokens[i] = req.CallId, res.Grants[0].Token
	}
	shows := func(of int) []string { return []string{secrets[of], "", secrets[of] + "-not", secrets[1-of]} }
	renew := func(first, second string) {
		slots := []*v1.SlotRef{
			{SessionId: sessions[0], SlotId: calls[0], Token: tokens[0], SessionToken: first}, {SessionId: sessions[1], SlotId: calls[1], Token: tokens[1], SessionToken: second},
		}
		if s.rng.IntN(2) == 0 {
			slots[0], slots[1] = slots[1], slots[0]
		}
		res, ok := done(s, "renew both", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
			return n.slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: slots})
		})
		if s.wrong(ok && len(res.Results) != 2, "results are %v", res); !ok || s.over {
			return
		}
		for i, r := range res.Results {
			want := v1.Outcome_OUTCOME_LEASE_EXPIRED // as of a session that is not there
			if slots[i].SessionToken == slots[i].SessionId+"-secret" {
				want = v1.Outcome_OUTCOME_RENEWED
			}
			if r.Outcome == v1.Outcome_OUTCOME_UNSPECIFIED { // the node could not look
				s.over = true
				return
			}
			s.wrong(r.Outcome != want || r.Slot.GetSlotId() != slots[i].SlotId || r.Slot.GetSessionToken() != "", "%q is shown for a call of %s, and it comes to %v, want %v", slots[i].SessionToken, slots[i].SessionId, r, want)
		}
	}
	for _, first := range shows(0) {
		for _, second := range shows(1) {
			renew(first, second)
		}
	}
	of := s.rng.IntN(2)
	waits := s.call("one")
	waits.SessionId, waits.SessionToken, waits.Wait = sessions[of], secrets[of], durationpb.New(5*time.Minute)
	s.queued(waits)
	gives := func(secret string) (*v1.CancelCallResponse, string) {
		res, reason, _ := told(s, "give it up with "+secret, func(ctx context.Context, n *node) (*v1.CancelCallResponse, error) {
			return n.calls.CancelCall(ctx, &v1.CancelCallRequest{SessionId: sessions[of], CallId: waits.CallId, SessionToken: secret})
		})
		return res, reason
	}
	for _, secret := range shows(of)[1:] {
		if res, reason := gives(secret); !s.over {
			s.wrong(reason != "NOT_FOUND", "it is given up: %v (%s)", res, reason)
		}
	}
	if res, reason := gives(secrets[of]); !s.over {
		s.wrong(reason != "" || res.Outcome != v1.Outcome_OUTCOME_CANCELLED, "it is not given up: %v (%s)", res, reason)
	}
	renew(secrets[0], secrets[1])
}
