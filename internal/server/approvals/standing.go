package approvals

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/record"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Standing approvals.

var scopes = map[v1.StandingScope]session.Scope{
	v1.StandingScope_STANDING_SCOPE_SESSION: session.OfSession,
	v1.StandingScope_STANDING_SCOPE_AGENT:   session.OfAgent,
	v1.StandingScope_STANDING_SCOPE_POLICY:  session.OfPolicy,
}

var scopesOut = map[session.Scope]v1.StandingScope{
	session.OfSession: v1.StandingScope_STANDING_SCOPE_SESSION,
	session.OfAgent:   v1.StandingScope_STANDING_SCOPE_AGENT,
	session.OfPolicy:  v1.StandingScope_STANDING_SCOPE_POLICY,
}

// PutStanding lets calls of a tool pass without asking about each.
func (s *Service) PutStanding(ctx context.Context, req *v1.PutStandingRequest) (*v1.PutStandingResponse, error) {
	f := &input.Fields{}
	input.Enum(f, "scope", req.Scope, v1.StandingScope_name)
	if req.Scope == v1.StandingScope_STANDING_SCOPE_UNSPECIFIED {
		f.Refuse("scope", "is required; say STANDING_SCOPE_SESSION, STANDING_SCOPE_AGENT or STANDING_SCOPE_POLICY")
	}
	f.ID("name", req.Name)
	f.Tool("tool", req.Tool)
	f.Text("serverLabel", req.ServerLabel, input.Caps.Label)
	if req.Expiry == nil {
		f.Refuse("expiry", "is required; say how long it stands, at most 30 days")
	}
	arguments := f.Mapping("arguments", req.Arguments, req.ArgumentsJson)
	refuseArguments(f, arguments, req.Arguments)
	cmd := &session.PutStanding{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now),
		Of:   session.StandingOf{Scope: scopes[req.Scope], Name: req.Name, Server: req.ServerLabel, Tool: req.Tool},
		Uses: uint32(f.Number("uses", int64(req.Uses), input.Caps.Uses)), TTL: f.Duration("expiry", req.Expiry, input.Caps.Standing),
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if req.Arguments != nil || req.ArgumentsJson != "" {
		cmd.Of.Exact, cmd.Of.Arguments = true, Digest(arguments)
		var err error
		preview, _ := Preview(arguments)
		if cmd.Shown, err = s.Seal(ctx, cmd.NS, cmd.Of.ID(), preview); err != nil {
			return nil, err
		}
	}
	if who := access.From(ctx); cmd.Of.Scope == session.OfAgent && !who.Sees(cmd.Of.Name) || cmd.Of.Scope == session.OfPolicy && who.Scoped() {
		return nil, access.Denied("name: %q is not in the scope of this token; it decides for %s", cmd.Of.Name, strings.Join(who.Agents, ", "))
	}
	if err := s.hasSession(ctx, cmd); err != nil {
		return nil, err
	}
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.changed(ctx, &a, record.Change{Event: "standing_put", Name: cmd.Of.ID(), Says: shownOf(cmd), NS: cmd.NS, By: cmd.By})
	out := &v1.PutStandingResponse{Index: a.Index}
	if after := a.Result.After; after.Standing != nil {
		out.Standing = s.standingOf(ctx, cmd.NS, cmd.Of.ID(), after.Standing, after.Now)
	}
	return out, nil
}

// changed tells of a change that was carried out now, and not before.
func (s *Service) changed(ctx context.Context, a *storage.Answer, c record.Change) {
	if a.First() {
		s.Changed(ctx, c)
	}
}

// shownOf says what is made to stand.
func shownOf(c *session.PutStanding) string {
	text := fmt.Sprintf("tool %s for %s %s", engine.Redact(c.Of.Tool), scopeNames[c.Of.Scope], engine.Redact(c.Of.Name))
	if c.Of.Exact {
		text += " with these arguments"
	}
	if c.Uses > 0 {
		text += fmt.Sprintf(", %d times", c.Uses)
	}
	return text + ", for " + c.TTL.String()
}

var scopeNames = map[session.Scope]string{session.OfSession: "session", session.OfAgent: "agent", session.OfPolicy: "policy"}

// hasSession tells who makes a standing approval for a session that is not open
// that it would be for nothing: it is for no session that is opened after it.
func (s *Service) hasSession(ctx context.Context, cmd *session.PutStanding) error {
	if cmd.Of.Scope != session.OfSession {
		return nil
	}
	found, err := s.Store.Get(ctx, session.SessionKey(cmd.NS, cmd.Of.Name), storage.Latest)
	if err != nil {
		return fault.OfRead(err)
	}
	if x, _ := found.Record.(*session.Session); x == nil || x.Phase != session.PhaseOpen {
		if c, err := s.Store.Get(ctx, session.ClientKey(cmd.NS, cmd.By.Client), storage.Latest); err != nil {
			return fault.OfRead(err)
		} else if by, _ := c.Record.(*session.Client); by != nil && by.IDs.Find(cmd.By.Request) != nil {
			return nil // it is a repeat, from when it was open
		}
		return fault.NotFound("name", "there is no open session %q; open it first, for one that is opened later it would not stand", cmd.Of.Name)
	}
	return nil
}

// ListStanding returns standing approvals in the order of their ids.
func (s *Service) ListStanding(ctx context.Context, req *v1.ListStandingRequest) (*v1.ListStandingResponse, error) {
	f := &input.Fields{}
	input.Enum(f, "scope", req.Scope, v1.StandingScope_name)
	f.OptionalID("name", req.Name)
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.Store.List(ctx, session.KindStanding, page, read, func(_ session.Key, r session.Record) bool {
		a := r.(*session.Standing)
		return (scopes[req.Scope] == 0 || a.Of.Scope == scopes[req.Scope]) && (req.Name == "" || a.Of.Name == req.Name) && s.ofVisible(ctx, a)
	})
	if err != nil {
		return nil, err
	}
	out := &v1.ListStandingResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		out.Standings = append(out.Standings, s.standingOf(ctx, input.Namespace(ctx), e.Key.Name(), e.Record.(*session.Standing), view.Now))
	}
	return out, nil
}

// ofVisible reports whether what stands is for a session that is there for who asks. Its
// own record does not say whose agent the session is.
func (s *Service) ofVisible(ctx context.Context, a *session.Standing) bool {
	if !access.From(ctx).Scoped() || a.Of.Scope != session.OfSession {
		return true
	}
	found, err := s.Store.Get(ctx, session.SessionKey(input.Namespace(ctx), a.Of.Name), storage.Nearby)
	x, _ := found.Record.(*session.Session)
	return err == nil && x != nil
}

// hidden reports whether what is to be taken back is not there for who asks. What is for
// a policy is for all its agents: who could not make it does not take it back.
func (s *Service) hidden(ctx context.Context, cmd *session.DeleteStanding) (bool, error) {
	who := access.From(ctx)
	if !who.Scoped() {
		return false, nil
	}
	found, err := s.Store.Reader.Get(ctx, session.StandingKey(cmd.NS, cmd.ID), storage.Latest) // whether it is there or not: both take as long
	if err != nil {
		return false, fault.OfRead(err)
	}
	a, _ := found.Record.(*session.Standing)
	switch {
	case a == nil:
		return false, nil
	case a.Of.Scope == session.OfPolicy:
		return false, access.Denied("id: %q stands for a policy and is not in the scope of this token; it decides for %s", cmd.ID, strings.Join(who.Agents, ", "))
	}
	return !who.Visible(a) || !s.ofVisible(ctx, a), nil
}

// DeleteStanding takes one back.
func (s *Service) DeleteStanding(ctx context.Context, req *v1.DeleteStandingRequest) (*v1.DeleteStandingResponse, error) {
	f := &input.Fields{}
	f.ID("id", req.Id)
	cmd := &session.DeleteStanding{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), ID: req.Id}
	if f.Err != nil {
		return nil, f.Err
	}
	gone := func() error {
		return fault.NotFound("id", "there is no standing approval %q; it may be used up, or its time may be over", req.Id)
	}
	hidden, err := s.hidden(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if hidden { // see shown
		cmd.ID = s.NewID()
	}
	a, err := s.Store.Change(ctx, cmd, func(res *session.Result) error {
		if res.Code == session.NotFound {
			return gone()
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	s.changed(ctx, &a, record.Change{Event: "standing_deleted", Name: cmd.ID, NS: cmd.NS, By: cmd.By})
	return &v1.DeleteStandingResponse{Index: a.Index}, nil
}

func (s *Service) standingOf(ctx context.Context, ns, id string, a *session.Standing, now time.Duration) *v1.Standing {
	out := &v1.Standing{
		Id: id, Scope: scopesOut[a.Of.Scope], Name: a.Of.Name, Tool: a.Of.Tool, ServerLabel: a.Of.Server, Uses: int32(a.Uses),
		ExpiresIn: durationpb.New(max(a.Until-now, 0)), Age: durationpb.New(max(now-a.Made, 0)),
	}
	if a.Of.Exact {
		arguments := s.Open(ctx, ns, a.Shown)
		out.Arguments = &arguments
	}
	return out
}
