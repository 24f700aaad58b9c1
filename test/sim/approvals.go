package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/test/alone"
	"example.com/govnode/test/check"
)

// Calls that two people have to agree to, who decide at other nodes.

// An approver is how a node is told what somebody decides.
type approver = govnodev1connect.ApprovalServiceClient

const (
	askingPolicy = "asking"
	askingText   = "name: asking\nmax_concurrent: 64\nbackpressure_threshold: 64\nmax_tool_calls: 1000000\nmax_attempts: 1000000\n" +
		"require_human_approval: true\napproval: {required: 2, denials: 1, timeout: 6s, max_pending: 64}\n"
)

// People are who decides.
var People = alone.People

// asked begins a call that waits for two people, who vote meanwhile: mostly for
// it, and sometimes too late or not at all. It ends what was admitted.
func (w *worker) asked(ctx context.Context) {
	if w.governed == nil {
		s, err := w.client.CreateSession(ctx, client.Session{ID: w.name + "-asks-" + newID(), Agent: w.name, Policy: askingPolicy})
		if err != nil {
			return
		}
		w.governed = s
	}
	s := w.governed
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	c := client.Call{ID: o.ID, Tool: "t", TTL: 5 * time.Second, Wait: time.Duration(1+w.rng.IntN(7)) * time.Second}
	id := session.ApprovalID("default", s.ID(), o.ID)
	var votes sync.WaitGroup
	for _, approver := range People {
		if w.rng.IntN(12) == 0 {
			continue
		}
		nodes := w.approvals[approver]
		node, after, approve := nodes[w.rng.IntN(len(nodes))], time.Duration(w.rng.ExpFloat64()*float64(time.Second)), w.rng.IntN(10) > 0
		votes.Go(func() {
			_ = pause(ctx, after)
			w.vote(ctx, node, id, approver, approve)
		})
	}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, c)
	o.Return = w.recorder.now()
	if o.Outcome, o.Text = outcome(err), text(err); err == nil {
		o.Granted, o.Index = true, call.Begun().GetIndex()
	}
	w.recorder.done(o)
	votes.Wait()
	if err != nil {
		if no := (*client.Refused)(nil); errors.As(err, &no) && no.Outcome == client.SessionClosed {
			w.governed = nil
		}
		return
	}
	w.finish(ctx, call, check.Op{Client: w.name, Kind: check.End, Object: s.ID(), ID: o.ID, Call: w.recorder.now()})
}

// vote votes until somebody has heard it, or nobody wants to know any more.
func (w *worker) vote(ctx context.Context, node approver, id, who string, approve bool) {
	o := check.Op{Client: w.name, Kind: check.Vote, Object: id, ID: newID(), Amount: 1, Call: w.recorder.now()}
	decision := v1.Vote_VOTE_APPROVE
	if !approve {
		o.Amount, decision = -1, v1.Vote_VOTE_DENY
	}
	w.recorder.begun(o)
	if w.people[who] != nil {
		who = "" // it is theirs as whom they are known
	}
	unknown := false
	for range 8 {
		res, err := func() (*v1.ApprovalServiceDecideResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			return node.Decide(ctx, &v1.ApprovalServiceDecideRequest{Id: id, Decision: decision, Approver: who, RequestId: o.ID, Client: w.name})
		}()
		o.Return, o.Text = w.recorder.now(), text(err)
		if err == nil {
			o.Outcome, o.Index = check.Applied, res.Index
			break
		}
		unknown = unknown || !definite(err)
		if connect.CodeOf(err) == connect.CodeFailedPrecondition || ctx.Err() != nil {
			break
		}
		_ = pause(ctx, 300*time.Millisecond) // it may not be asked about yet
	}
	if o.Outcome != check.Applied && !unknown {
		o.Outcome = check.NotApplied
	}
	w.recorder.done(o)
}
