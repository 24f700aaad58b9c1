package sim

import (
	"context"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/check"
)

// Signals that workers send: each to agents of its own, so that it knows what
// stands.

// signal sends a signal to any node, once.
func (w *worker) signal(ctx context.Context, kind check.Kind, agent string) (applied bool) {
	return w.signalAt(ctx, w.sessions[w.rng.IntN(len(w.sessions))], kind, agent)
}

func (w *worker) signalAt(ctx context.Context, node govnodev1connect.SessionServiceClient, kind check.Kind, agent string) (applied bool) {
	o := check.Op{Client: w.name, Kind: kind, Object: agent, ID: newID(), Call: w.recorder.now()}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	w.recorder.begun(o)
	res, err := node.Signal(ctx, &v1.SignalRequest{
		Target: &v1.SignalRequest_AgentId{AgentId: agent}, Signal: signalNames[kind], RequestId: o.ID, Client: w.name,
	})
	o.Return, o.Text = w.recorder.now(), text(err)
	switch {
	case err == nil:
		o.Outcome, o.Index = check.Applied, res.Index
	case definite(err):
		o.Outcome = check.NotApplied
	}
	w.recorder.done(o)
	return err == nil
}

var signalNames = map[check.Kind]string{check.Stop: client.Stop, check.Continue: client.Continue, check.Kill: client.Kill}

// stopped stops its agent while it works on, and lets it go on. What it begins
// meanwhile is held to the log.
func (w *worker) stopped(ctx context.Context, s *client.OpenSession) bool {
	w.signal(ctx, check.Stop, w.name)
	goesOn := w.call(ctx, s, w.short())
	w.lift(ctx, w.name)
	return goesOn
}

// lift sends CONTINUE until it is applied: what it lifts may stand or not.
func (w *worker) lift(ctx context.Context, agent string) {
	for ctx.Err() == nil && !w.signal(ctx, check.Continue, agent) {
		_ = pause(ctx, time.Duration(w.rng.Int64N(int64(time.Second))))
	}
}

// liftAll lifts what may stand in the end.
func (w *worker) liftAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.lift(ctx, w.name)
	w.lift(ctx, w.name+doomed)
}

// doomed is what the name of an agent ends with that its worker kills.
const doomed = "-doomed"

// killed kills an agent with a session in which a call runs.
func (w *worker) killed(ctx context.Context) {
	agent := w.name + doomed
	s, err := w.client.CreateSession(ctx, client.Session{ID: agent + "-" + newID(), Agent: agent, Policy: policyName})
	if err != nil {
		w.lift(ctx, agent) // it may have been killed before
		return
	}
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, client.Call{ID: o.ID, Tool: "t", Wait: client.NoWait, TTL: 5 * time.Second})
	o.Return = w.recorder.now()
	if o.Outcome, o.Text = outcome(err), text(err); err == nil {
		o.Granted, o.Index = true, call.Begun().GetIndex()
	}
	w.recorder.done(o)
	w.signal(ctx, check.Kill, agent)
	w.call(ctx, s, 0)
	if call != nil {
		_ = call.End(ctx, client.Succeeded) // mostly its lease was lost
	}
	w.lift(ctx, agent)
}

// killedAt kills an agent at one node whose session was opened at another just before.
func (w *worker) killedAt(ctx context.Context, opened, killed int) {
	agent := w.name + doomed
	create := &v1.CreateSessionRequest{SessionId: agent + "-" + newID(), AgentId: agent, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: policyName}}}
	if _, err := w.sessions[opened].CreateSession(ctx, create); err == nil {
		w.signalAt(ctx, w.sessions[killed], check.Kill, agent)
	}
	w.lift(ctx, agent)
}
