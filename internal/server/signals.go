package server

import (
	"context"
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Signals: how they are sent and listed, and what stands against a session.

// signals are those that are put in order; all others are events.
var signals = map[string]session.SignalKind{
	words.Stop: session.Stop, words.Continue: session.Continue, words.Kill: session.Kill,
}

// Signal stops, kills, or lets go on (adapter contract 3.10, 13.3).
func (s sessionService) Signal(ctx context.Context, req *v1.SignalRequest) (*v1.SignalResponse, error) {
	f := &input.Fields{}
	cmd := &session.Signal{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Target: targetIn(f, req), Reason: req.Reason}
	f.Text("signal", req.Signal, input.Caps.Signal)
	f.Text("reason", req.Reason, input.Caps.Reason)
	if f.Err != nil {
		return nil, f.Err
	}
	hidden, err := s.mayTarget(ctx, cmd)
	if err != nil {
		return nil, err
	}
	shown := cmd.Target
	if hidden { // it is ordered all the same, for nobody: so its id is answered as ever, and it takes as long
		cmd.Target.Name = s.cfg.NewID()
	}
	name := strings.ToUpper(req.Signal) // who types stop means STOP
	if cmd.Signal = signals[name]; cmd.Signal == 0 {
		if !hidden {
			s.signalled(ctx, cmd, req.Signal, false)
		}
		return &v1.SignalResponse{}, nil
	}
	a, err := s.store.Change(ctx, cmd, func(res *session.Result) error {
		if res.Code == session.NotFound {
			return fault.NotFound("sessionId", "there is no session %q; create it with CreateSession", req.GetSessionId())
		}
		return fault.OfResult(res, words.TargetText(shown))
	})
	switch {
	case err != nil:
		return nil, err
	case a.Result.Code == session.SessionClosed:
		return nil, fault.OfResult(&a.Result, words.TargetText(cmd.Target))
	}
	if a.First() {
		s.signalled(ctx, cmd, name, a.Result.Repeat)
	}
	out := &v1.SignalResponse{Index: a.Index}
	if err := s.kill(ctx, cmd, a.Result.Signal, out); err != nil {
		return nil, err
	}
	return out, nil
}

// mayTarget refuses a signal for whom is not in the caller's scope. A session that is not
// is hidden.
func (s *Server) mayTarget(ctx context.Context, cmd *session.Signal) (hidden bool, err error) {
	who := access.From(ctx)
	switch t := cmd.Target; {
	case !who.Scoped():
		return false, nil
	case t.Scope == session.OfSession:
		return s.store.Hidden(ctx, session.SessionKey(cmd.NS, t.Name))
	case t.Scope == session.OfAgent && who.Sees(t.Name):
		return false, nil
	default:
		return false, access.Denied("%s is not in the scope of this token; it signals %s and their sessions", words.TargetText(t), strings.Join(who.Agents, ", "))
	}
}

// kill closes what a KILL is for, and says what stands.
func (s *Server) kill(ctx context.Context, cmd *session.Signal, h *session.Halt, out *v1.SignalResponse) error {
	out.Signal = words.SignalOf(h, 0)
	if cmd.Signal != session.Kill || h == nil || h.Signal != session.Kill || h.Swept {
		return nil
	}
	if cmd.Target.Scope == session.OfSession {
		done, err := s.sweeper.Session(ctx, cmd.NS, h.Target.Name, h.Reason)
		out.Closed, out.Released = int32(done.Closed), int32(done.Released)
		if err != nil { // nobody else closes it
			return fault.Unknown(err.Error())
		}
		out.Signal.Swept = true
		return nil
	}
	done, err := s.sweeper.Sweep(ctx, cmd.NS, h)
	out.Closed, out.Released, out.Signal.Swept = int32(done.Closed), int32(done.Released), err == nil
	if err != nil {
		s.log.Warn("the sessions of a KILL are not all closed yet; it is tried again", "namespace", cmd.NS, "target", words.TargetText(cmd.Target), "error", err)
	}
	return nil
}

// targetIn reads whom a signal is for.
func targetIn(f *input.Fields, req *v1.SignalRequest) session.Target {
	switch t := req.GetTarget().(type) {
	case *v1.SignalRequest_SessionId:
		f.ID("sessionId", t.SessionId)
		return session.Target{Scope: session.OfSession, Name: t.SessionId}
	case *v1.SignalRequest_AgentId:
		f.ID("agentId", t.AgentId)
		return session.Target{Scope: session.OfAgent, Name: t.AgentId}
	case *v1.SignalRequest_PolicyName:
		f.ID("policyName", t.PolicyName)
		return session.Target{Scope: session.OfPolicy, Name: t.PolicyName}
	case *v1.SignalRequest_Everything:
		if t.Everything {
			return session.Target{Scope: session.Everything}
		}
	}
	f.Refuse("sessionId", "is missing; give a sessionId, an agentId, a policyName, or everything: true")
	return session.Target{}
}

// signalled tells those who follow this node of a signal.
func (s *Server) signalled(ctx context.Context, cmd *session.Signal, name string, repeat bool) {
	s.metrics.signal(cmd.Signal)
	ev := engine.Event{Time: s.cfg.Now(), Category: engine.Redact(name), Reason: engine.Redact(cmd.Reason)}
	switch t := cmd.Target; t.Scope {
	case session.OfSession:
		ev.SessionID = t.Name
	case session.OfAgent:
		ev.AgentID = t.Name
	case session.OfPolicy:
		ev.Policy = t.Name
	}
	s.audit.signalled(order.TraceOf(ctx), cmd, ev, repeat)
}

// ListSignals lists what stands: first what is for more than one session.
func (s sessionService) ListSignals(ctx context.Context, req *v1.ListSignalsRequest) (*v1.ListSignalsResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.store.List(ctx, session.KindSession, page, read, func(k session.Key, r session.Record) bool {
		x := r.(*session.Session)
		return x.Phase == session.PhaseOpen && x.Halt("") != nil
	})
	if err != nil {
		return nil, err
	}
	out := &v1.ListSignalsResponse{NextPageToken: next, AppliedIndex: view.Index}
	if req.PageToken == "" {
		k := session.SignalsKey(input.Namespace(ctx))
		found, err := view.Find(k, "", 1, nil)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		for _, e := range found {
			for _, h := range e.Record.(*session.Signals).Halts {
				if h.Target.Scope == session.OfAgent && !access.From(ctx).Sees(h.Target.Name) {
					continue
				}
				out.Signals = append(out.Signals, words.SignalOf(&h, view.Now))
			}
		}
	}
	for _, e := range entries {
		out.Signals = append(out.Signals, words.SignalOf(e.Record.(*session.Session).Halt(e.Key.Name()), view.Now))
	}
	return out, nil
}

// standing returns what stands against a session, as far as this node has seen.
// It is advice: where it cannot be read there is none.
func (s *Server) standing(ctx context.Context, ns, id string) *v1.Signal {
	found, err := s.store.Get(ctx, session.SessionKey(ns, id), storage.Nearby)
	x, _ := found.Record.(*session.Session)
	if err != nil || x == nil {
		return nil
	}
	h := x.Halt(id)
	if found, err = s.store.Get(ctx, session.SignalsKey(ns), storage.Nearby); err == nil && x.Phase == session.PhaseOpen {
		if all, _ := found.Record.(*session.Signals); all != nil {
			h = session.Stronger(all.HaltOf(x.Agent.Value(), x.Policy.Value()), h)
		}
	}
	return words.SignalOf(h, found.Now)
}
