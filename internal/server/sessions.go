package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// sessionService answers govnode.v1.SessionService.
type sessionService struct{ *Server }

// CreateSession starts a session under a policy that is pinned for its life
// (adapter contract 3.5).
func (s sessionService) CreateSession(ctx context.Context, req *v1.CreateSessionRequest) (*v1.CreateSessionResponse, error) {
	return unary(ctx, s.Server, &opening{}, req)
}

// An opening is one CreateSession on its way.
type opening struct {
	request[v1.CreateSessionRequest, v1.CreateSessionResponse]
	cmd *session.Open
}

func (o *opening) check(ctx context.Context, f *input.Fields) error {
	req := o.req
	o.cmd = &session.Open{
		NS: o.ns, Session: req.SessionId, Agent: req.AgentId, Parent: req.ParentSessionId,
		Content:    input.Fingerprint(req),
		IdleTTL:    f.Duration("idleTtl", req.IdleTtl, input.Caps.IdleTTL),
		Attributes: f.Attributes("attributes", req.Attributes),
	}
	o.one[0] = o.cmd
	if req.SessionId == "" {
		o.cmd.Session = o.s.cfg.NewID()
	}
	f.NewID("sessionId", o.cmd.Session, o.s.cfg.Now)
	f.ID("agentId", req.AgentId)
	f.OptionalID("parentSessionId", req.ParentSessionId)
	if req.ParentSessionId == o.cmd.Session {
		f.Refuse("parentSessionId", "is the session itself; name the session that started this one, or leave it out")
	}
	o.cmd.Policy, o.cmd.Digest = policyRef(f, "policy", req.Policy)
	switch len(req.SessionTokenSha256) {
	case 0:
	case len(o.cmd.Token):
		o.cmd.Token = session.Digest(req.SessionTokenSha256)
	default:
		f.Refuse("sessionTokenSha256", "has %d bytes; it is the SHA-256 of the secret, which has 32", len(req.SessionTokenSha256))
	}
	if f.Err != nil {
		return f.Err
	}
	if !o.who.Sees(req.AgentId) {
		return access.Denied("agentId: %q is not in the scope of this token; it opens sessions of %s", req.AgentId, strings.Join(o.who.Agents, ", "))
	}
	if !o.who.MayPin(o.cmd.Policy) {
		if o.cmd.Policy == "" {
			return access.Denied("policy.digest: this token is bound to names of policies, which are %s; give policy.name", strings.Join(o.who.Policies, ", "))
		}
		return access.Denied("policy.name: %q is not in the scope of this token; it opens sessions under %s", o.cmd.Policy, strings.Join(o.who.Policies, ", "))
	}
	return o.resolve(ctx)
}

// policyRef reads which policy is meant: a name, or the digest of a tree.
func policyRef(f *input.Fields, field string, ref *v1.PolicyRef) (name string, digest session.Digest) {
	switch r := ref.GetRef().(type) {
	case *v1.PolicyRef_Name:
		f.ID(field+".name", r.Name)
		name = r.Name
	case *v1.PolicyRef_Digest:
		digest = f.Digest(field+".digest", r.Digest)
	default:
		f.Refuse(field, "is required; give a name or a digest, as ListPolicies shows them")
	}
	return name, digest
}

// resolve finds the tree that the name points to now. The command carries it as
// a premise, so that it is resolved in the order and once.
func (o *opening) resolve(ctx context.Context) error {
	if o.cmd.Policy == "" {
		return nil
	}
	digest, err := o.s.policies.DigestOf(ctx, o.cmd.NS, "policy.name", o.cmd.Policy)
	if err == nil {
		o.cmd.Digest = digest
		return nil
	}
	// The name may have been deleted since the session began: then this is a
	// repeat, and any tree will do, the session's own for choice.
	found, missing := o.s.findSession(ctx, o.cmd.NS, nil, o.cmd.Session, storage.Nearby)
	if missing != nil {
		return err
	}
	o.cmd.Digest = found.Record.(*session.Session).Pin.Digest
	return nil
}

func (o *opening) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	if again = o.stale(answers); again {
		res := &o.answer.Result
		if o.cmd.Digest = res.Digest; res.After != nil { // one of this id is over and was not dropped yet
			o.cmd.Over = res.After.Session.Pin.Digest
		}
	}
	return again, nil
}

func (o *opening) respond() error {
	res := &o.answer.Result
	switch {
	case res.Code == session.NotFound:
		return o.noPolicy()
	case res.Code == session.Killed:
		return fault.OfResult(res, words.TargetText(res.Signal.Target)+": "+words.KilledText(res.Signal))
	case res.Code.Failure():
		return fault.OfResult(res, fmt.Sprintf("sessionId %q", o.cmd.Session))
	}
	o.out = &v1.CreateSessionResponse{Session: sessionAfter(o.ns, o.cmd.Session, res), Index: o.answer.Index}
	if o.answer.First() {
		o.s.metrics.sessions.Inc()
	}
	return nil
}

// noPolicy is the answer where the policy is not there.
func (o *opening) noPolicy() error {
	if o.cmd.Policy != "" {
		return fault.NotFound("policy.name", "there is no policy %q; store it with PutPolicy", o.cmd.Policy)
	}
	return fault.NotFound("policy.digest", "there is no policy with the digest %s; store it with PutPolicy", o.cmd.Digest)
}

// findSession returns the session of that id, which f found in a request. A
// record that is not there nearby is looked for once more.
func (s *Server) findSession(ctx context.Context, ns string, f *input.Fields, id string, read storage.Read) (storage.Found, error) {
	return s.sessionThat(ctx, ns, f, id, read, func(*session.Session) bool { return true })
}

// sessionWith is findSession for calls, which bring the secret of a session that was
// created with the hash of one. Without it the session is not there: it is looked for as
// long as one that is not.
func (s *Server) sessionWith(ctx context.Context, ns string, f *input.Fields, id, secret string, read storage.Read) (storage.Found, error) {
	return s.sessionThat(ctx, ns, f, id, read, func(x *session.Session) bool {
		if x.More == nil || x.More.Token == (session.Digest{}) {
			return true
		}
		sum := sha256.Sum256([]byte(secret))
		return subtle.ConstantTimeCompare(sum[:], x.More.Token[:]) == 1
	})
}

func (s *Server) sessionThat(ctx context.Context, ns string, f *input.Fields, id string, read storage.Read, fits func(*session.Session) bool) (storage.Found, error) {
	k := session.SessionKey(ns, id)
	for {
		found, err := s.store.Get(ctx, k, read)
		if err != nil {
			return found, fault.OfRead(err)
		}
		if x, ok := found.Record.(*session.Session); ok && x != nil && fits(x) {
			return found, nil
		}
		found.Record = nil
		if read == storage.Latest {
			return found, noSession(f, id)
		}
		if order.Quick(ctx) {
			return found, order.ErrTakesLong
		}
		read = storage.Latest // the session may be younger than what this node has seen
	}
}

func noSession(f *input.Fields, id string) error {
	return fault.NotFound(f.Path("sessionId"), "there is no session %q; create it with CreateSession", id)
}

// secretOf takes the secret of a session out of a request, so that it is in nothing that
// is made of the request later.
func secretOf(f *input.Fields, in *string, kept *string) {
	if *in == "" {
		return // perhaps it was taken out before
	}
	f.Text("sessionToken", *in, input.Caps.Secret)
	*kept, *in = *in, ""
}

// GetSession returns a session as it stands.
func (s sessionService) GetSession(ctx context.Context, req *v1.GetSessionRequest) (*v1.GetSessionResponse, error) {
	f := &input.Fields{}
	f.ID("sessionId", req.SessionId)
	read := order.ReadOf(f, req.Consistency)
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.store.Get(ctx, session.SessionKey(input.Namespace(ctx), req.SessionId), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	if x, ok := found.Record.(*session.Session); !ok || x == nil {
		return nil, fault.NotFound("sessionId", "there is no session %q; create it with CreateSession", req.SessionId)
	}
	return &v1.GetSessionResponse{Session: sessionOf(input.Namespace(ctx), req.SessionId, found), AppliedIndex: found.Index}, nil
}

// ListSessions returns sessions in the order of their ids.
func (s sessionService) ListSessions(ctx context.Context, req *v1.ListSessionsRequest) (*v1.ListSessionsResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	f.OptionalID("agentId", req.AgentId)
	var digest session.Digest
	if req.PolicyDigest != "" {
		digest = f.Digest("policyDigest", req.PolicyDigest)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	keep := func(_ session.Key, r session.Record) bool {
		x := r.(*session.Session)
		return (req.AgentId == "" || x.Agent.Value() == req.AgentId) && (req.PolicyDigest == "" || x.Pin.Digest == digest)
	}
	entries, next, view, err := s.store.List(ctx, session.KindSession, page, read, keep)
	if err != nil {
		return nil, err
	}
	out := &v1.ListSessionsResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		out.Sessions = append(out.Sessions, sessionOf(e.Key.Namespace(), e.Key.Name(), storage.Found{Record: e.Record, Now: view.Now}))
	}
	return out, nil
}

// CloseSession ends a session and frees its slots, once.
func (s sessionService) CloseSession(ctx context.Context, req *v1.CloseSessionRequest) (*v1.CloseSessionResponse, error) {
	return unary(ctx, s.Server, &closing{}, req)
}

// A closing is one CloseSession on its way.
type closing struct {
	request[v1.CloseSessionRequest, v1.CloseSessionResponse]
	cmd *session.Close
}

func (c *closing) check(ctx context.Context, f *input.Fields) error {
	f.ID("sessionId", c.req.SessionId)
	if f.Err != nil {
		return f.Err
	}
	return c.find(ctx, storage.Nearby)
}

func (c *closing) find(ctx context.Context, read storage.Read) error {
	found, err := c.s.findSession(ctx, c.ns, nil, c.req.SessionId, read)
	if err != nil {
		return err
	}
	x := found.Record.(*session.Session)
	c.cmd = &session.Close{
		NS: c.ns, Session: c.req.SessionId, Digest: x.Pin.Digest, Opened: x.Opened, Pools: x.OpenPools(), Asked: x.AskedCalls(),
	}
	c.one[0] = c.cmd
	return nil
}

func (c *closing) take(ctx context.Context, answers []storage.Answer) (again bool, err error) {
	again = c.stale(answers)
	if c.another() {
		return true, c.find(ctx, storage.Latest)
	}
	if again {
		c.cmd.Pools, c.cmd.Asked = c.answer.Result.Pools, c.answer.Result.Names
	}
	return again, nil
}

func (c *closing) respond() error {
	res := &c.answer.Result
	switch {
	case res.Code == session.NotFound:
		return fault.NotFound("sessionId", "there is no session %q any more", c.cmd.Session)
	case res.Code.Failure():
		return fault.OfResult(res, fmt.Sprintf("sessionId %q", c.cmd.Session))
	}
	c.out = &v1.CloseSessionResponse{Session: sessionAfter(c.ns, c.cmd.Session, res), Index: c.answer.Index}
	if !res.Repeat {
		c.out.Released = int32(res.Value)
	}
	return nil
}

var phases = map[session.Phase]v1.SessionState{
	session.PhaseOpen:    v1.SessionState_SESSION_STATE_OPEN,
	session.PhaseClosed:  v1.SessionState_SESSION_STATE_CLOSED,
	session.PhaseExpired: v1.SessionState_SESSION_STATE_EXPIRED,
}

// sessionAfter shows a session as it stands after a command.
func sessionAfter(ns, id string, res *session.Result) *v1.Session {
	if res.After == nil || res.After.Session == nil {
		return nil
	}
	return sessionOf(ns, id, storage.Found{Record: res.After.Session, Now: res.After.Now})
}

// sessionOf shows a session as it stood when it was looked at.
func sessionOf(ns, id string, found storage.Found) *v1.Session {
	x := found.Record.(*session.Session)
	out := &v1.Session{
		SessionId: id, AgentId: x.Agent.Value(), PolicyVersion: x.Version, PolicyDigest: x.Pin.Digest.String(),
		State: phases[x.Phase], Age: durationpb.New(max(found.Now-x.Opened, 0)), IdleTtl: durationpb.New(x.IdleTTL),
		Attempts: int32(x.Attempts), Calls: int32(x.Calls), Executions: int32(x.Executions),
		Failures: int32(x.Failures), ConsecutiveFailures: int32(x.Consecutive), TokensUsed: x.Tokens,
		Checkpoints: checkpoints(x),
	}
	if x.Version > 0 { // else the session named a digest
		out.PolicyName = x.Policy.Value()
	}
	h := x.Halt(id)
	if out.Signal = words.SignalOf(h, found.Now); h != nil && h.Signal == session.Kill && x.Phase != session.PhaseOpen {
		out.ClosedReason = words.KilledText(h)
	}
	if x.Phase == session.PhaseOpen {
		out.IdleLeft = durationpb.New(max(idleLeft(x, found.Now), 0))
	}
	if len(x.Tools) > 0 {
		out.CallsByTool = make(map[string]int32, len(x.Tools))
		for _, t := range x.Tools {
			out.CallsByTool[t.Tool.Value()] = int32(t.Calls)
		}
	}
	out.KindCounters = kindCountersOf(x)
	if tried, open := x.Breaker(); open {
		out.Breaker = &v1.Breaker{Failures: int32(x.Consecutive), RetryAfter: durationpb.New(max(tried-found.Now, 0))}
	}
	for i := range x.Open {
		out.OpenCalls = append(out.OpenCalls, openCallOf(ns, &x.Open[i], found.Now))
	}
	if x.More != nil {
		out.ParentSessionId = x.More.Parent
		if len(x.More.Attributes) > 0 {
			out.Attributes = make(map[string]string, len(x.More.Attributes))
			for _, a := range x.More.Attributes {
				out.Attributes[a.Name] = a.Value
			}
		}
	}
	return out
}

// kindCountersOf are the counts of what the policy limits by kind; nil where it
// does not.
func kindCountersOf(x *session.Session) *v1.KindCounters {
	if len(x.Pin.Limits.Kinds) == 0 {
		return nil
	}
	out := &v1.KindCounters{
		ModelCalls: int32(x.KindCalls(session.Model, "")), AgentCalls: int32(x.KindCalls(session.Agent, "")),
		Handoffs: int32(x.KindCalls(session.Handoff, "")),
	}
	for _, t := range x.Tools {
		if t.Sampling > 0 {
			if out.SamplingRequests == nil {
				out.SamplingRequests = map[string]int32{}
			}
			out.SamplingRequests[t.Tool.Value()] = int32(t.Sampling)
		}
	}
	return out
}

// idleLeft is how long the session lasts if nothing more happens. What is open
// keeps it, at most to its deadlines.
func idleLeft(x *session.Session, now time.Duration) time.Duration {
	used := x.Used
	for i := range x.Open {
		used = max(used, x.Open[i].Deadline)
	}
	return used + x.IdleTTL - now
}

func openCallOf(ns string, h *session.Held, now time.Duration) *v1.OpenCall {
	c := &v1.OpenCall{
		CallId: h.ID(), Tool: words.TextOf(h.Tool), Waiting: h.Waiting(),
		Age: durationpb.New(max(now-h.Started, 0)), Ttl: durationpb.New(max(h.Deadline-now, 0)),
	}
	if h.Asked() != nil {
		_, of, call := session.SplitHolder(h.Holder)
		c.ApprovalId = session.ApprovalID(ns, of, call)
	}
	for _, p := range h.Pools {
		if p.Token != 0 {
			c.Grants = append(c.Grants, &v1.Grant{Pool: p.Pool.Value(), Token: p.Token, Ttl: c.Ttl})
		}
	}
	return c
}

// checkpoints names the last checkpoints of a session: one at every so many
// executions (adapter contract 3.7).
func checkpoints(x *session.Session) []string {
	every := x.Pin.Limits.Checkpoint
	if every == 0 {
		return nil
	}
	var names []string
	last := x.Executions / every
	first := last - min(last, uint32(input.Caps.Checkpoints.Max)) + 1
	for n := first; n <= last; n++ {
		names = append(names, checkpointID(n*every))
	}
	return names
}
