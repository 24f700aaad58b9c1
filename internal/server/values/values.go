package values

import (
	"context"
	"fmt"
	"strings"
	"time"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/flows"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Values, which are set, added to and read.

// A Service answers govnode.v1.CounterService.
type Service struct {
	Store *order.Store
	Now   func() time.Time
}

// Get returns the value of a key, or that it has none.
func (s *Service) Get(ctx context.Context, req *v1.GetRequest) (*v1.GetResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	read := order.ReadOf(f, req.Consistency)
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.Store.Get(ctx, session.CounterKey(input.Namespace(ctx), req.Key), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	hidden, err := s.hidden(ctx, req.Key)
	if err != nil {
		return nil, err
	}
	out := &v1.GetResponse{AppliedIndex: found.Index, Version: session.Absent}
	if c, ok := found.Record.(*session.Counter); ok && c != nil && !hidden {
		out.Found, out.Value, out.Version = true, printed(c.Value), c.Value.Version()
	}
	return out, nil
}

// printed is a value as it was set: a number in its canonical form, which is
// the only form that is stored as a number.
func printed(v session.Value) string {
	if v.Number {
		return input.FormatDecimal(v.N)
	}
	return v.Text
}

// stored is the opposite of printed: a text that is a number in its canonical
// form is one, everything else comes back as it was given.
func stored(text string) session.Value {
	if n, err := input.ParseDecimal(text); err == nil && input.FormatDecimal(n) == text {
		return session.Value{Number: true, N: n}
	}
	return session.Value{Text: text}
}

// hidden reports whether a key says where a session stands in its workflow that is not there
// for who asks.
func (s *Service) hidden(ctx context.Context, key string) (bool, error) {
	sess := engine.WorkflowSession(key)
	if sess == "" {
		return false, nil
	}
	return s.Store.Hidden(ctx, session.SessionKey(input.Namespace(ctx), sess))
}

// assignments begin the keys that say which rulesets agents of Edictum have.
const assignments = "edictum/assignment/"

// reserved refuses who may not write what says which rulesets agents of Edictum have, or
// where a session stands in its workflow.
func (s *Service) reserved(ctx context.Context, f *input.Fields, key string) {
	p := access.From(ctx)
	if f.Err != nil || p == nil {
		return
	}
	for _, prefix := range []string{assignments, access.Signatures} {
		if strings.HasPrefix(key, prefix) && !p.Is(v1.Role_ROLE_APPROVER, v1.Role_ROLE_POLICY_AUTHOR) {
			f.Err = access.Denied("key: keys below %s are written by those who put rulesets", prefix)
			return
		}
	}
	if !p.InEnvironment(access.Signatures, key) {
		f.Err = access.Denied("key: this token is bound to the environment %q, and %q is of another", p.Environment, key)
		return
	}
	if agent, assigns := strings.CutPrefix(key, assignments); assigns && !p.Sees(agent) {
		f.Err = access.Denied("key: %q is not in the scope of this token; it assigns rulesets to %s", agent, strings.Join(p.Agents, ", "))
		return
	}
	sess := engine.WorkflowSession(key)
	if sess == "" || movesSessions(p) && !p.Scoped() {
		return
	}
	// Whoever it is there for: a workflow is not written past because its session is hidden.
	found, err := s.Store.Reader.Get(ctx, session.SessionKey(input.Namespace(ctx), sess), storage.Latest)
	switch {
	case err != nil:
		f.Err = fault.OfRead(err)
	case found.Record != nil && !(movesSessions(p) && p.Visible(found.Record)):
		f.Err = access.Denied("key: %q says where the session %q stands in its workflow, which the nodes judge; "+
			"send its calls to BeginCall and EndCall, or ask an operator or a policy author for govnode edictum workflow set", key, sess)
	}
}

// movesSessions reports whether a principal may say where sessions stand in their workflows.
func movesSessions(p *access.Principal) bool {
	return p.Is(v1.Role_ROLE_OPERATOR, v1.Role_ROLE_POLICY_AUTHOR)
}

// kept is for how long a value is kept. Of where a session stands in a workflow that tells
// who has written it, and so is not the caller's to say.
func kept(ctx context.Context, key string, ttl time.Duration) time.Duration {
	if engine.WorkflowSession(key) == "" {
		return ttl
	}
	p := access.From(ctx)
	return flows.Kept(p == nil || movesSessions(p)) // where nobody is asked for tokens all may
}

// Set writes a value.
func (s *Service) Set(ctx context.Context, req *v1.SetRequest) (*v1.SetResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	s.reserved(ctx, f, req.Key)
	if n := int64(len(req.Value)); n > input.Caps.Text.Max {
		f.Refuse("value", "has %d bytes, the most is %d", n, input.Caps.Text.Max)
	}
	cmd := &session.Set{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Key: req.Key,
		Value: stored(req.Value), TTL: kept(ctx, req.Key, f.Duration("ttl", req.Ttl, input.Caps.KeyTTL)), IfVersion: checkVersion(f, req.IfVersion),
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, stateFailure(cmd.Key, cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.SetResponse{Index: a.Index, Version: cmd.Value.Version()}, nil
}

// checkVersion checks the version that a key must have.
func checkVersion(f *input.Fields, version string) string {
	if version != "" && !session.IsVersion(version) {
		f.Refuse("ifVersion", "is no version; send the one that Get answered, or \"0\" for a key that must be absent")
	}
	return version
}

// stateFailure makes the error of a request for state that had no answer.
func stateFailure(key string, by session.Maker) func(*session.Result) error {
	return func(res *session.Result) error {
		if res.Code != session.VersionConflict {
			return order.RequestFailure(by)(res)
		}
		return fault.Conflict(fmt.Sprintf("key %q", key), "version", res.Version)
	}
}

// Delete removes a value, and says whether there was one.
func (s *Service) Delete(ctx context.Context, req *v1.DeleteRequest) (*v1.DeleteResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	s.reserved(ctx, f, req.Key)
	cmd := &session.Delete{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Key: req.Key, IfVersion: checkVersion(f, req.IfVersion)}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, stateFailure(cmd.Key, cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.DeleteResponse{Found: a.Result.Value == 1, Index: a.Index}, nil
}

// Increment adds a decimal amount and returns the new value.
func (s *Service) Increment(ctx context.Context, req *v1.IncrementRequest) (*v1.IncrementResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	s.reserved(ctx, f, req.Key)
	amount := int64(input.Million)
	if req.Amount != "" {
		var err error
		if amount, err = input.ParseDecimal(req.Amount); err != nil {
			f.Refuse("amount", "%v", err)
		}
	}
	cmd := &session.Increment{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Key: req.Key, Amount: amount}
	if f.Err != nil {
		return nil, f.Err
	}
	if amount < 0 && !access.From(ctx).Is(v1.Role_ROLE_ORCHESTRATOR) {
		return nil, access.Denied("amount: counting down is for orchestrators: an agent does not give itself back what it has used")
	}
	a, err := s.Store.Change(ctx, cmd, func(res *session.Result) error {
		switch res.Code {
		case session.NotANumber:
			return fault.OfResult(res, fmt.Sprintf("key %q", req.Key))
		case session.Overflow:
			return fault.OfResult(res, "amount")
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	return &v1.IncrementResponse{Value: input.FormatDecimal(a.Result.Value), Index: a.Index}, nil
}

// BatchGet returns many values as they stood at one instant; what is absent is
// left out.
func (s *Service) BatchGet(ctx context.Context, req *v1.BatchGetRequest) (*v1.BatchGetResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	f.Count("keys", len(req.Keys), input.Caps.Keys)
	for i, key := range req.Keys {
		f.Key(fmt.Sprintf("keys[%d]", i), key)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	keys := make([]session.Key, len(req.Keys))
	for i, key := range req.Keys {
		keys[i] = session.CounterKey(input.Namespace(ctx), key)
	}
	found, index, err := s.Store.ReadAll(ctx, keys, read)
	if err != nil {
		return nil, err
	}
	out := &v1.BatchGetResponse{AppliedIndex: index, Values: make(map[string]string, len(keys)), Versions: make(map[string]string, len(keys))}
	for i, r := range found {
		hidden, err := s.hidden(ctx, req.Keys[i])
		if err != nil {
			return nil, err
		}
		if c, ok := r.(*session.Counter); ok && c != nil && !hidden {
			out.Values[req.Keys[i]], out.Versions[req.Keys[i]] = printed(c.Value), c.Value.Version()
		}
	}
	return out, nil
}
