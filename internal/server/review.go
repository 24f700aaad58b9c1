package server

import (
	"slices"
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// What the post rules of an Edictum ruleset make of what a call has returned. They
// look at the call as well as at the output, and nothing of either is stored: who ends
// the call sends its BeginCall once more, which the log holds against the fingerprint
// of the one that was admitted. A review refuses nothing, since the call has run; where
// it cannot be made, the output is not shown.

const (
	noBegin    = "rules look at what this tool returns, and its call was not sent with the output; send begin with EndCall"
	noRuleset  = "the policy of the session cannot be read"
	otherBegin = "is not the request that BeginCall was given; send that one, or leave begin out"
)

// begun checks the request that BeginCall was given.
func (e *end) begun(f *input.Fields) {
	req := e.req.Begin
	if req == nil {
		return
	}
	in := f.In("begin")
	for _, id := range []struct {
		field string
		has   *string
		is    string
	}{{"sessionId", &req.SessionId, e.req.SessionId}, {"callId", &req.CallId, e.req.CallId}} {
		if *id.has == "" {
			*id.has = id.is
		}
		if *id.has != id.is {
			in.Refuse(id.field, "is %q, and what is ended is %q; leave it out, or give the same", *id.has, id.is)
		}
	}
	_, asked := inputOf(in, req)
	e.input = &asked
	f.Take(in)
	if in.Err == nil {
		e.cmd.Content = input.Short(beginContent(req))
	}
}

// look makes the review of an output, where rules look at those of its tool.
func (e *end) look(x *session.Session) {
	e.review = nil
	policy := e.policy
	if policy == nil {
		e.review = new(engine.Unreviewed(noRuleset))
		return
	}
	in, h := e.input, x.Find(e.req.CallId)
	if in == nil {
		in = &engine.Input{}
	}
	if e.req.Begin == nil && h != nil {
		in.Tool = h.Tool.Value()
	}
	reviews := policy.Reviews(in)
	if e.unknown(h) { // if it ran, it was of one of these
		reviews = !ran(x, e.req.CallId) || slices.ContainsFunc(x.Tools, func(t session.ToolCount) bool {
			return policy.Reviews(&engine.Input{Tool: t.Tool.Value()})
		})
	}
	switch {
	case !reviews && policy.WantsOutput(in): // a gate of a workflow alone looks at it
		e.review = &engine.Review{Passed: true}
	case !reviews:
	case e.req.Begin == nil:
		e.review = new(engine.Unreviewed(noBegin))
	default:
		e.input.AgentID, e.input.Env = x.Agent.Value(), envOf(x)
		e.review = new(policy.Review(*e.input, engine.Output{Value: valueOf(e.req.Output)}))
	}
}

// envOf are the variables that the creator of a session has pinned for it, as attributes
// named env.NAME; nil without any.
func envOf(x *session.Session) func(name string) (string, bool) {
	if x.More == nil || !slices.ContainsFunc(x.More.Attributes, func(a session.Attr) bool { return strings.HasPrefix(a.Name, "env.") }) {
		return nil
	}
	attributes := x.More.Attributes
	return func(name string) (string, bool) {
		i := slices.IndexFunc(attributes, func(a session.Attr) bool { return a.Name == "env."+name })
		if i < 0 {
			return "", false
		}
		return attributes[i].Value, true
	}
}

// limitText is how an Edictum ruleset says that a limit of its own is reached; false
// where it is not its own.
func limitText(p *engine.Policy, code session.Code, l *session.Limits, tool string) (engine.RulesetLimit, bool) {
	switch code {
	case session.AttemptLimit:
		return p.AttemptsReached(int64(l.MaxAttempts))
	case session.CallLimit:
		return p.CallsReached(int64(l.MaxToolCalls))
	case session.ToolLimitReached:
		return p.ToolReached(tool, int64(words.ToolLimit(l, tool)))
	}
	return engine.RulesetLimit{}, false
}

// inputOf is what a BeginCall asks to be judged, and what sort of call it is. Whose it
// is, is known of its session.
func inputOf(f *input.Fields, req *v1.BeginCallRequest) (session.CallKind, engine.Input) {
	input.Enum(f, "kind", req.Kind, v1.Kind_name)
	input.Enum(f, "order", req.Order, v1.Order_name)
	kind, tool := callKinds[req.Kind], req.Tool
	if kind.state == session.Sampling {
		tool = "" // it is the label of a server, and no tool
		f.Text("tool", req.Tool, input.Caps.Tool)
	} else if kind.state == session.Tool || tool != "" {
		// The kind is the caller's word: who names a tool is counted, and judged
		// by package engine, as a call of it.
		kind.state = session.Tool
		f.Tool("tool", tool)
	}
	return kind.state, engine.Input{
		Tool: tool, Kind: kind.engine, SessionID: req.SessionId, CallID: req.CallId, Order: orders[req.Order],
		Arguments: f.Mapping("arguments", req.Arguments, req.ArgumentsJson),
		Context:   engine.WithMetadata(f.Mapping("context", req.Context, req.ContextJson), f.Metadata(req.Metadata, req.MetadataJson)),
	}
}
