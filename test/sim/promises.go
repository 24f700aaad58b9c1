package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/check"
)

// What workers do beside calls, slots and counters with ids, and what they hold
// the answers to themselves: each of these is about what one answer says.

// broke notes a promise that an answer has broken.
func (r *recorder) broke(name, format string, args ...any) {
	v := check.Violation{Check: name, Text: fmt.Sprintf(format, args...)}
	if r.note != nil {
		r.note(Line{Broken: &v})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, v)
}

// once adds to a counter of its own without an id: nobody may send that again.
func (w *worker) once(ctx context.Context) { w.onceAt(ctx, w.node()) }

func (w *worker) onceAt(ctx context.Context, node govnodev1connect.CounterServiceClient) {
	id := newID()
	o := check.Op{Client: w.name, Kind: check.Increment, Object: "once-" + id, ID: "once-" + id, Amount: 1, Call: w.recorder.now()}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	w.recorder.begun(o)
	res, err := node.Increment(ctx, &v1.IncrementRequest{Key: o.Object, Amount: "1", Client: w.name})
	o.Return, o.Text = w.recorder.now(), text(err)
	switch {
	case err == nil:
		o.Outcome, o.Index = check.Applied, res.Index
		o.Value, _ = strconv.ParseInt(res.Value, 10, 64) // 0, which is not the sum
	case definite(err):
		o.Outcome = check.NotApplied
	}
	w.recorder.done(o)
}

// denied begins a call that the policy denies, or that it cannot judge.
func (w *worker) denied(ctx context.Context, s *client.OpenSession) bool {
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	c := client.Call{ID: o.ID, Tool: "t", Wait: client.NoWait, TTL: 5 * time.Second, ContextJSON: `{"confidence":0.1}`}
	name := "denied"
	if w.rng.IntN(2) == 0 {
		c.ContextJSON, name = `{"confidence":"high"}`, "fail closed"
	}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, c)
	o.Return = w.recorder.now()
	o.Outcome, o.Text = outcome(err), text(err)
	if err == nil {
		o.Granted, o.Index = true, call.Begun().GetIndex()
		w.recorder.broke(name, "a call with the context %s was admitted: %v", c.ContextJSON, o)
		_ = call.End(ctx, client.Succeeded)
	}
	w.recorder.done(o)
	var no *client.Refused
	if !errors.As(err, &no) {
		return true
	}
	if no.Outcome != client.DeniedByPolicy {
		return false // most likely the session's time is over
	}
	w.recorder.mu.Lock()
	defer w.recorder.mu.Unlock()
	w.recorder.denied = append(w.recorder.denied, o)
	return true
}

// pinned opens a session, lets the name of its policy point to another tree, which
// denies everything, and wants the session to be judged by its own.
func (w *worker) pinned(ctx context.Context) {
	name := "pinned-" + w.name
	open := "name: " + name + "\nmax_tool_calls: 1000\n"
	if _, err := w.client.PutPolicy(ctx, name, open); err != nil {
		return
	}
	s, err := w.client.CreateSession(ctx, client.Session{ID: w.name + "-" + newID(), Agent: w.name, Policy: name})
	if err != nil {
		return
	}
	if _, err = w.client.PutPolicy(ctx, name, open+"deny_all_tools: true\n"); err != nil {
		return
	}
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, client.Call{ID: o.ID, Tool: "t", Wait: client.NoWait, TTL: 5 * time.Second})
	o.Return = w.recorder.now()
	o.Outcome, o.Text = outcome(err), text(err)
	var no *client.Refused
	switch {
	case err == nil:
		o.Granted, o.Index = true, call.Begun().GetIndex()
		_ = call.End(ctx, client.Succeeded)
	case errors.As(err, &no) && no.Outcome == client.DeniedByPolicy:
		w.recorder.broke("pin", "a session is judged by a tree that came after it: %v", o)
	}
	w.recorder.done(o)
	_, _ = s.Close(ctx)
}

// An auditFile is the audit log of a host, which outlives its processes. It knows
// of which calls it has a line.
type auditFile struct {
	mu    sync.Mutex
	full  bool
	calls map[string]bool
}

var (
	errFull   = errors.New("no space left on device")
	callField = []byte(`"call_id":"`)
)

func (a *auditFile) Write(b []byte) (int, error) {
	time.Sleep(usualAccess)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full {
		return 0, errFull
	}
	for rest := b; ; {
		_, after, ok := bytes.Cut(rest, callField)
		if !ok {
			return len(b), nil
		}
		id, after, _ := bytes.Cut(after, []byte{'"'})
		a.calls[string(id)], rest = true, after
	}
}

// fill lets writes fail until release is called.
func (a *auditFile) fill() (release func()) {
	set := func(full bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.full = full
	}
	set(true)
	return func() { set(false) }
}

// unwritten returns the refusals that a client was told and no audit log has.
func (f *fleet) unwritten(denied []check.Op) (broken []check.Violation) {
	for _, o := range denied {
		written := false
		for _, h := range f.hosts {
			h.audit.mu.Lock()
			written = written || h.audit.calls[o.ID]
			h.audit.mu.Unlock()
		}
		if !written {
			broken = append(broken, check.Violation{Check: "audit", Text: fmt.Sprintf("no audit log has a line of a call that was denied: %v", o)})
		}
	}
	return broken
}
