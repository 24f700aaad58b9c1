package sim

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/test/check"
)

// Calls of workers.

// crowd makes some calls at once, which go together as far as they can: in a
// session of their own, since an answer that is given again tells of the calls that
// were begun meanwhile as well.
func (w *worker) crowd(ctx context.Context) {
	if w.crowded == nil {
		if w.crowded = w.open(ctx); w.crowded == nil {
			return
		}
	}
	var under sync.WaitGroup
	var over atomic.Bool
	for range 2 + w.rng.IntN(6) {
		lasts := w.short()
		under.Go(func() {
			if !w.call(ctx, w.crowded, lasts) {
				over.Store(true)
			}
		})
	}
	under.Wait()
	if over.Load() {
		w.crowded = nil
	}
}

// open starts a session, or returns nil.
func (w *worker) open(ctx context.Context) *client.OpenSession {
	s, err := w.client.CreateSession(ctx, client.Session{ID: w.name + "-" + newID(), Agent: w.name, Policy: policyName})
	if err != nil {
		return nil
	}
	return s
}

// call begins a call and ends it. It reports whether the session goes on.
func (w *worker) call(ctx context.Context, s *client.OpenSession, lasts time.Duration) bool {
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, client.Call{ID: o.ID, Tool: "t", Wait: client.NoWait, TTL: 5 * time.Second})
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, 0)
	o.Outcome, o.Text = outcome(err), text(err)
	if err == nil {
		o.Granted, o.Index = true, call.Begun().GetIndex()
		if s != w.crowded {
			o.Value = int64(call.Begun().GetCounters().GetCalls())
		}
	}
	w.recorder.done(o)
	if err != nil {
		var no *client.Refused
		return !errors.As(err, &no) || no.Outcome == client.Stopped // else its time is over, most likely
	}
	_ = pause(ctx, lasts)
	e := check.Op{Client: w.name, Kind: check.End, Object: s.ID(), ID: o.ID, Call: w.recorder.now()}
	w.finish(ctx, call, e)
	return true
}

// finish ends a call, and says what it has cost if that is known.
func (w *worker) finish(ctx context.Context, call *client.OpenCall, e check.Op) {
	w.recorder.begun(e)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := call.End(ending, client.Succeeded, client.Spent(costs(e.Costs)...))
	e.Return = w.recorder.now()
	w.recorder.took(e.Call, e.Return, 0)
	e.Outcome, e.Text = outcome(err), text(err)
	w.recorder.done(e)
}

// look reads how many calls a session has had, at any node.
func (w *worker) look(ctx context.Context, session string) {
	node := w.sessions[w.rng.IntN(len(w.sessions))]
	o := check.Op{Client: w.name, Kind: check.Look, Object: session, Call: w.recorder.now()}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	res, err := node.GetSession(ctx, &v1.GetSessionRequest{SessionId: session})
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, 0)
	if err != nil {
		return // it changes nothing, and says nothing
	}
	o.Outcome, o.Index, o.Value = check.Applied, res.AppliedIndex, int64(res.Session.Calls)
	w.recorder.done(o)
}
