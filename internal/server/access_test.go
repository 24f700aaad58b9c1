package server_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

const secret = "a-secret-of-enough-letters-00000"

// startAsking starts a node that asks who calls.
func startAsking(t testing.TB, change ...func(*server.Config)) *node {
	t.Helper()
	return start(t, append([]func(*server.Config){func(c *server.Config) { c.Authentication = true }}, change...)...)
}

// token puts a token into the state, and returns its text.
func (n *node) token(ns, id string, roles []v1.Role, change ...func(*session.Token)) string {
	n.t.Helper()
	tok := session.Token{ID: id, Hash: session.Digest(sha256.Sum256([]byte(secret))), Roles: access.RolesOf(roles)}
	for _, c := range change {
		c(&tok)
	}
	a := n.store.Apply(n.ctx(), &session.PutToken{NS: ns, By: session.Maker{Client: "test"}, Token: tok})[0]
	require.NoError(n.t, a.Failure())
	require.Equal(n.t, session.Done, a.Result.Code)
	return "gn_" + ns + "." + id + "." + secret
}

func (n *node) revoke(ns, id string) {
	n.t.Helper()
	a := n.store.Apply(n.ctx(), &session.RevokeToken{NS: ns, By: session.Maker{Client: "test"}, ID: id})[0]
	require.NoError(n.t, a.Failure())
	require.EqualValues(n.t, 1, a.Result.Value)
}

func agents(patterns ...string) func(*session.Token) {
	return func(t *session.Token) { t.Agents = patterns }
}

func policies(patterns ...string) func(*session.Token) {
	return func(t *session.Token) { t.Policies = patterns }
}

// bearer sends a token with each request, and perhaps other headers.
type bearer struct {
	token string
	more  []string
}

func (b bearer) put(h http.Header) {
	if b.token != "" {
		h.Set("Authorization", "Bearer "+b.token)
	}
	for i := 0; i+1 < len(b.more); i += 2 {
		h.Set(b.more[i], b.more[i+1])
	}
}

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		b.put(req.Header())
		return next(ctx, req)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		b.put(conn.RequestHeader())
		return conn
	}
}

func (bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// as is a client with a token.
func (n *node) as(token string, more ...string) clients {
	return n.h2(connect.WithInterceptors(bearer{token, more}))
}

var allRoles = []v1.Role{v1.Role_ROLE_AGENT, v1.Role_ROLE_ORCHESTRATOR, v1.Role_ROLE_APPROVER, v1.Role_ROLE_POLICY_AUTHOR, v1.Role_ROLE_AUDITOR, v1.Role_ROLE_OPERATOR}

// call sends an empty request to a method of any kind, and returns the code of the
// answer; 0 where it has none.
func call(t *testing.T, h connect.HTTPClient, url string, m *access.Method, opts ...connect.ClientOption) connect.Code {
	t.Helper()
	c := connect.NewClient[emptypb.Empty, emptypb.Empty](h, url+m.Procedure, opts...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var err error
	switch m.Procedure {
	case govnodev1connect.CallServiceExchangeProcedure:
		s := c.CallBidiStream(ctx)
		_ = s.Send(nil)
		_ = s.CloseRequest()
		for err == nil {
			_, err = s.Receive()
		}
		_ = s.CloseResponse()
	case govnodev1connect.ClusterServiceRestoreProcedure:
		s := c.CallClientStream(ctx)
		_, err = s.CloseAndReceive()
	case govnodev1connect.EventServiceFollowProcedure, govnodev1connect.ClusterServiceSnapshotProcedure:
		var s *connect.ServerStreamForClient[emptypb.Empty]
		if s, err = c.CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{})); err == nil {
			s.Receive() // the first message, or the error
			err = s.Err()
			cancel()
			_ = s.Close()
		}
	default:
		_, err = c.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	}
	if err == nil || errors.Is(err, io.EOF) {
		return 0
	}
	return connect.CodeOf(err)
}

var protocols = map[string][]connect.ClientOption{
	"connect": nil, "json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
}

// Each method of the API, by each role, in each protocol: it is let in exactly where
// the API says so, and whoever is not known is let in nowhere.
func TestRolesOfEachMethod(t *testing.T) {
	n := startAsking(t)
	methods, err := access.ReadMethods()
	require.NoError(t, err)
	require.Greater(t, len(methods), 60)
	type caller struct {
		name, token string
		ns          string
		role        v1.Role
	}
	callers := []caller{{name: "nobody"}, {name: "stranger", token: "gn_team.none." + secret}}
	for i, r := range append(slices.Clone(allRoles), joinerRole...) {
		callers = append(callers, caller{access.RoleName(r), n.token("team", fmt.Sprint("role", i), []v1.Role{r}), "team", r})
	}
	for i, r := range append(slices.Clone(allRoles), joinerRole...) {
		callers = append(callers, caller{"cluster-" + access.RoleName(r), n.token(session.ClusterNamespace, fmt.Sprint("cluster", i), []v1.Role{r}), session.ClusterNamespace, r})
	}
	h := n.h2Client()
	for protocol, opts := range protocols {
		for _, c := range callers {
			t.Run(protocol+" "+c.name, func(t *testing.T) {
				opts := append(slices.Clone(opts), connect.WithInterceptors(bearer{token: c.token}))
				for _, m := range methods {
					got := call(t, h, n.url, m, opts...)
					cluster := c.ns == session.ClusterNamespace
					may := slices.Contains(m.Roles, c.role)
					switch m.Scope {
					case v1.Scope_SCOPE_SELF:
						may = c.role != v1.Role_ROLE_JOINER
					case v1.Scope_SCOPE_ITEMS:
						may = !cluster && c.role != v1.Role_ROLE_JOINER
					case v1.Scope_SCOPE_NAMESPACE:
						may = may && !cluster
					case v1.Scope_SCOPE_CLUSTER:
						may = may && cluster
					}
					switch {
					case c.ns == "":
						require.Equal(t, connect.CodeUnauthenticated, got, m.Procedure)
					case !may:
						require.Equal(t, connect.CodePermissionDenied, got, m.Procedure)
					default:
						require.NotContains(t, []connect.Code{connect.CodeUnauthenticated, connect.CodePermissionDenied}, got, m.Procedure)
					}
				}
			})
		}
	}
}

// Each kind of item in a batch and in a stream is held to its own method, by each role, in
// each protocol.
func TestRolesOfEachItem(t *testing.T) {
	n := startAsking(t)
	methods, err := access.ReadMethods()
	require.NoError(t, err)
	var items []*v1.Operation
	var own []*access.Method
	for _, x := range []struct {
		method string
		op     *v1.Operation
	}{
		{govnodev1connect.CallServiceBeginCallProcedure, &v1.Operation{Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "t"}}}},
		{govnodev1connect.CallServiceEndCallProcedure, &v1.Operation{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "s", CallId: "c", Status: v1.Status_STATUS_SUCCEEDED}}}},
		{govnodev1connect.CallServiceCancelCallProcedure, &v1.Operation{Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: "s", CallId: "c"}}}},
		{govnodev1connect.SlotServiceAcquireSlotProcedure, &v1.Operation{Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "q", SlotId: "s"}}}},
		{govnodev1connect.SlotServiceRenewSlotsProcedure, &v1.Operation{Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{Pool: "q", SlotId: "s"}}}}}},
		{govnodev1connect.SlotServiceReleaseSlotProcedure, &v1.Operation{Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "q", SlotId: "s"}}}},
		{govnodev1connect.LimitServiceTakeRateProcedure, &v1.Operation{Op: &v1.Operation_Take{Take: &v1.TakeRateRequest{Rate: "r", RequestId: "i"}}}},
	} {
		items, own = append(items, x.op), append(own, methods[x.method])
		x.op.Tag = uint64(len(items))
	}
	kinds := (&v1.Operation{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields().Len()
	require.Len(t, items, kinds, "one of each kind")
	for i, r := range allRoles {
		token := n.token("team", fmt.Sprint("item", i), []v1.Role{r})
		for protocol, opts := range protocols {
			t.Run(protocol+" "+access.RoleName(r), func(t *testing.T) {
				c := n.h2(append(slices.Clone(opts), connect.WithInterceptors(bearer{token: token}))...)
				check := func(results []*v1.OperationResult) {
					require.Len(t, results, len(items))
					seen := map[uint64]bool{}
					for _, res := range results {
						seen[res.Tag] = true
						refused := res.GetError().GetReason() == fault.ReasonForbidden
						require.Equal(t, !slices.Contains(own[res.Tag-1].Roles, r), refused, "%v", res)
					}
					require.Len(t, seen, len(items))
				}
				res, err := c.calls.BatchCalls(t.Context(), &v1.BatchCallsRequest{Operations: items})
				require.NoError(t, err)
				check(res.Results)

				s, err := c.calls.Exchange(t.Context())
				require.NoError(t, err)
				require.NoError(t, s.Send(&v1.ExchangeRequest{Frames: items}))
				var all []*v1.OperationResult
				for len(all) < len(items) {
					m, err := s.Receive()
					require.NoError(t, err)
					all = append(all, m.Answers...)
				}
				check(all)
				require.NoError(t, s.CloseRequest())
				require.NoError(t, s.CloseResponse())
			})
		}
	}
}

var worker = []v1.Role{v1.Role_ROLE_AGENT, v1.Role_ROLE_ORCHESTRATOR}

// team is a node with a policy p, in the namespace team.
func startTeam(t *testing.T, change ...func(*server.Config)) *node {
	n := startAsking(t, change...)
	author := n.as(n.token("team", "author", []v1.Role{v1.Role_ROLE_POLICY_AUTHOR}))
	for _, name := range []string{"p", "loose"} {
		_, err := author.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: name, Yaml: strings.Join(policy(), "\n") + "\n"})
		require.NoError(t, err)
	}
	return n
}

func open(c clients, id, agent, policy string, change ...func(*v1.CreateSessionRequest)) error {
	req := &v1.CreateSessionRequest{SessionId: id, AgentId: agent, Policy: byName(policy)}
	for _, f := range change {
		f(req)
	}
	_, err := c.sessions.CreateSession(context.Background(), req)
	return err
}

// A wrong token is answered the same whatever is wrong with it, and its text is
// nowhere.
func TestUnknownTokens(t *testing.T) {
	var log lines
	n := startTeam(t, func(c *server.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	past := n.token("team", "past", worker, func(t *session.Token) { t.Expires = time.Now().Add(-time.Second).UnixMilli() })
	good := n.token("team", "good", worker)
	n.revoke("team", "good")
	var texts []string
	for _, token := range []string{
		"gn_team.none." + secret, "gn_team.author.other-" + secret, "gn_other.author." + secret, past, good, "gn_", "gn_..", "gn_team.author.", "x",
		"gn_$other.author." + secret, strings.Repeat("a", 1<<13), "gn_team.AUTHOR." + secret, "gn_" + strings.Repeat("x.", 100) + secret,
	} {
		_, err := n.as(token).sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s"})
		requireRefused(t, err, connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
		texts = append(texts, err.Error())
	}
	require.Len(t, slices.Compact(texts), 1)
	status, answer := n.post("SessionService/GetSession", `{"sessionId":"s"}`, "Authorization", "Basic "+secret)
	require.Equal(t, http.StatusUnauthorized, status, "%v", answer)
	require.NotContains(t, log.text()+n.audit.text(), secret)
}

// A token works in its own namespace, whatever a header says.
func TestNamespaceIsThatOfTheToken(t *testing.T) {
	n := startTeam(t)
	token := n.token("team", "w1aa", worker)
	c := n.as(token)
	require.NoError(t, open(c, "s1", "a", "p"))
	require.NoError(t, open(n.as(token, "Govnode-Namespace", "team"), "s2", "a", "p"))
	for _, other := range []string{"default", "none", "$cluster", "TEAM"} {
		_, err := n.as(token, "Govnode-Namespace", other).sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s1"})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "another namespace")
	}
	foreign := n.as(n.token("other", "w1aa", append(worker, allRoles...)))
	_, err := foreign.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s1"})
	_, absent := foreign.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s9"})
	requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "")
	require.Equal(t, strings.ReplaceAll(absent.Error(), "s9", "s1"), err.Error())
}

// What belongs to agents out of a token's scope is not there for it: in answers, in
// lists, in batches and streams, and for signals.
func TestScopeOfAgents(t *testing.T) {
	n := startTeam(t)
	all := n.as(n.token("team", "all1", append(allRoles, worker...)))
	c := n.as(n.token("team", "some", append(allRoles, worker...), agents("bot-*")))
	require.NoError(t, open(all, "s-bot", "bot-1", "p"))
	require.NoError(t, open(all, "s-other", "other", "p"))
	requireRefused(t, open(c, "s-new", "other", "p"), connect.CodePermissionDenied, fault.ReasonForbidden, "agentId")
	require.NoError(t, open(c, "s-mine", "bot-2", "p"))

	list, err := c.sessions.ListSessions(t.Context(), &v1.ListSessionsRequest{})
	require.NoError(t, err)
	var ids []string
	for _, s := range list.Sessions {
		ids = append(ids, s.SessionId)
	}
	require.Equal(t, []string{"s-bot", "s-mine"}, ids)

	before, err := all.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s-other"})
	require.NoError(t, err)
	begun, err := all.calls.BeginCall(t.Context(), beginRequest("s-other", "held"))
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begun.Outcome)
	for what, try := range map[string]func(id string) error{
		"get": func(id string) error {
			_, err := c.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: id})
			return err
		},
		"begin": func(id string) error { _, err := c.calls.BeginCall(t.Context(), beginRequest(id, "x")); return err },
		"close": func(id string) error {
			_, err := c.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: id})
			return err
		},
		"cancel": func(id string) error {
			_, err := c.calls.CancelCall(t.Context(), &v1.CancelCallRequest{SessionId: id, CallId: "held"})
			return err
		},
		"end": func(id string) error {
			_, err := c.calls.EndCall(t.Context(), &v1.EndCallRequest{SessionId: id, CallId: "held", Status: v1.Status_STATUS_SUCCEEDED})
			return err
		},
		"signal": func(id string) error {
			_, err := c.sessions.Signal(t.Context(), &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: id}, Signal: "STOP"})
			return err
		},
		"evaluate": func(id string) error {
			_, err := c.policies.Evaluate(t.Context(), &v1.EvaluateRequest{SessionId: id, Tool: "t"})
			return err
		},
	} {
		err, absent := try("s-other"), try("s-absent")
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s-other")
		require.Equal(t, strings.ReplaceAll(absent.Error(), "s-absent", "s-other"), err.Error(), what)
	}
	token := begun.Grants[0].Token
	renewed, err := c.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Client: "x", Slots: []*v1.SlotRef{{SessionId: "s-other", SlotId: "held", Token: token}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, renewed.Results[0].Outcome)
	forced, err := c.slots.ForceRelease(t.Context(), &v1.ForceReleaseRequest{Client: "x", RequestId: "f1", SessionId: "s-other", SlotId: "held"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_NOT_FOUND, forced.Outcome)
	require.NotZero(t, forced.Index)
	for _, signal := range []*v1.SignalRequest{
		{Target: &v1.SignalRequest_Everything{Everything: true}, Signal: "STOP"}, {Target: &v1.SignalRequest_PolicyName{PolicyName: "p"}, Signal: "KILL"},
		{Target: &v1.SignalRequest_AgentId{AgentId: "other"}, Signal: "STOP"},
	} {
		_, err := c.sessions.Signal(t.Context(), signal)
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "scope")
	}
	slots, err := c.slots.ListSlots(t.Context(), &v1.ListSlotsRequest{Pool: "policy/p"})
	require.NoError(t, err)
	require.Empty(t, slots.Slots)

	batch, err := c.calls.BatchCalls(t.Context(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Tag: 1, Op: &v1.Operation_Begin{Begin: beginRequest("s-bot", "mine")}},
		{Tag: 2, Op: &v1.Operation_Begin{Begin: beginRequest("s-other", "foreign")}},
		{Tag: 3, Op: &v1.Operation_Begin{Begin: beginRequest("s-mine", "mine")}},
	}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, batch.Results[0].GetBegin().GetOutcome())
	require.Equal(t, fault.ReasonNotFound, batch.Results[1].GetError().GetReason())
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, batch.Results[2].GetBegin().GetOutcome())

	after, err := all.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s-other"})
	require.NoError(t, err)
	require.Len(t, after.Session.OpenCalls, 1)
	require.Equal(t, before.Session.Attempts+1, after.Session.Attempts)
	require.Nil(t, after.Session.Signal)
}

// A token that is bound to policies opens no session under another, be it named or
// given by its digest, and puts no other.
func TestScopeOfPolicies(t *testing.T) {
	n := startTeam(t)
	c := n.as(n.token("team", "some", append(allRoles, worker...), policies("p*")))
	require.NoError(t, open(c, "s1", "a", "p"))
	err, absent := open(c, "s2", "a", "loose"), open(c, "s2", "a", "absent")
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, `"loose" is not in the scope of this token; it opens sessions under p*`)
	require.Equal(t, strings.ReplaceAll(absent.Error(), "absent", "loose"), err.Error())
	got, err := c.policies.GetPolicy(t.Context(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
	require.NoError(t, err)
	_, err = c.sessions.CreateSession(t.Context(), &v1.CreateSessionRequest{SessionId: "s3", AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: got.Policy.Digest}}})
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "policy.digest: this token is bound to names of policies, which are p*; give policy.name")
	_, err = c.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "loose", Yaml: strings.Join(policy(), "\n") + "\n"})
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "loose")
	_, err = c.policies.DeletePolicy(t.Context(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "loose"}})
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "loose")
}

// The values that say which rulesets agents have are written by those who put rulesets, and
// read by all.
func TestValuesThatAreReserved(t *testing.T) {
	n := startTeam(t)
	keys := []string{"edictum/assignment/bot-1", "edictum/signature/production/r"}
	for role, may := range map[v1.Role]bool{v1.Role_ROLE_ORCHESTRATOR: false, v1.Role_ROLE_APPROVER: true, v1.Role_ROLE_POLICY_AUTHOR: true} {
		c := n.as(n.token("team", fmt.Sprint("role", int(role)), []v1.Role{v1.Role_ROLE_AGENT, role})).counters
		for _, key := range keys {
			for what, try := range map[string]func() error{
				"set":       func() error { _, err := c.Set(t.Context(), &v1.SetRequest{Key: key, Value: "1"}); return err },
				"increment": func() error { _, err := c.Increment(t.Context(), &v1.IncrementRequest{Key: key}); return err },
				"delete":    func() error { _, err := c.Delete(t.Context(), &v1.DeleteRequest{Key: key}); return err },
			} {
				if err := try(); may {
					require.NoError(t, err, what)
				} else {
					requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "those who put rulesets")
				}
			}
			_, err := c.Get(t.Context(), &v1.GetRequest{Key: key})
			require.NoError(t, err)
		}
	}
}

// The heads of chains are of a whole namespace: they are refused to a token that is bound to
// agents or policies, since a part of them would accuse an audit wrongly.
func TestScopeOfChains(t *testing.T) {
	n := startTeam(t)
	require.NoError(t, open(n.as(n.token("team", "all1", worker)), "s-other", "other", "p"))
	for id, x := range map[string]struct {
		change []func(*session.Token)
		may    bool
	}{
		"unbound":  {nil, true},
		"agents":   {[]func(*session.Token){agents("bot-*")}, false},
		"policies": {[]func(*session.Token){policies("p")}, false},
	} {
		for _, role := range []v1.Role{v1.Role_ROLE_AUDITOR, v1.Role_ROLE_OPERATOR} {
			c := n.as(n.token("team", fmt.Sprint(id, int(role)), []v1.Role{role}, x.change...)).access
			res, err := c.ListChains(t.Context(), &v1.ListChainsRequest{})
			if !x.may {
				requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "bound to none")
				continue
			}
			require.NoError(t, err)
			require.Contains(t, fmt.Sprint(res.Chains), "s-other")
		}
	}
}

// Calls of a session that was created with the hash of a secret bring that secret; the
// secret of another session is none.
func TestSessionTokens(t *testing.T) {
	n := startTeam(t)
	c := n.as(n.token("team", "w1aa", worker))
	own := func(secret string) func(*v1.CreateSessionRequest) {
		return func(r *v1.CreateSessionRequest) {
			sum := sha256.Sum256([]byte(secret))
			r.SessionTokenSha256 = sum[:]
		}
	}
	require.NoError(t, open(c, "s1", "a", "p", own("first")))
	require.NoError(t, open(c, "s1", "a", "p", own("first")), "it is the same request")
	requireRefused(t, open(c, "s1", "a", "p", own("second")), connect.CodeInvalidArgument, fault.ReasonIDReused, "s1")
	requireRefused(t, open(c, "s1", "a", "p"), connect.CodeInvalidArgument, fault.ReasonIDReused, "s1")
	require.NoError(t, open(c, "s2", "a", "p", own("second")))
	short := func(r *v1.CreateSessionRequest) { r.SessionTokenSha256 = []byte("short") }
	requireRefused(t, open(c, "s3", "a", "p", short), connect.CodeInvalidArgument, fault.ReasonInvalidField, "sessionTokenSha256")

	with := func(secret string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.SessionToken = secret }
	}
	res, err := c.calls.BeginCall(t.Context(), beginRequest("s1", "c1", with("first")))
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	token := res.Grants[0].Token
	for _, wrong := range []string{"", "second", "first ", "FIRST"} {
		_, err := c.calls.BeginCall(t.Context(), beginRequest("s1", "c2", with(wrong)))
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
		_, err = c.calls.EndCall(t.Context(), &v1.EndCallRequest{SessionId: "s1", CallId: "c1", Status: v1.Status_STATUS_SUCCEEDED, SessionToken: wrong})
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
		_, err = c.calls.CancelCall(t.Context(), &v1.CancelCallRequest{SessionId: "s1", CallId: "c1", SessionToken: wrong})
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
		renewed, err := c.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Client: "x", Slots: []*v1.SlotRef{{SessionId: "s1", SlotId: "c1", Token: token, SessionToken: wrong}}})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, renewed.Results[0].Outcome)
	}
	res, err = c.calls.BeginCall(t.Context(), beginRequest("s1", "c1", with("first")))
	require.NoError(t, err)
	require.Equal(t, token, res.Grants[0].Token, "the secret is no part of what the call asks for")
	renewed, err := c.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Client: "x", Slots: []*v1.SlotRef{{SessionId: "s1", SlotId: "c1", Token: token, SessionToken: "first"}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[0].Outcome)
	require.Empty(t, renewed.Results[0].Slot.SessionToken)
	ended, err := c.calls.EndCall(t.Context(), &v1.EndCallRequest{
		SessionId: "s1", CallId: "c1", Status: v1.Status_STATUS_SUCCEEDED, SessionToken: "first", Begin: beginRequest("s1", "c1", with("anything")),
	})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, ended.Outcome)
	require.NotContains(t, n.audit.text(), "first")
}

// A slot without a session is that of the token that took it.
func TestSlotsOfTokens(t *testing.T) {
	n := startTeam(t)
	op := n.as(n.token("team", "op01", []v1.Role{v1.Role_ROLE_OPERATOR}))
	_, err := op.slots.PutPool(t.Context(), &v1.PutPoolRequest{Client: "op", Pool: "q", Slots: 1})
	require.NoError(t, err)
	mine, other := n.as(n.token("team", "w1aa", worker)), n.as(n.token("team", "w2aa", worker))
	got, err := mine.slots.AcquireSlot(t.Context(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "s", Client: "c"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, got.Outcome)
	freed, err := other.slots.ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "s", Client: "c", Token: got.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_FENCED, freed.Outcome)
	renewed, err := other.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Client: "c", Slots: []*v1.SlotRef{{Pool: "q", SlotId: "s", Token: got.Token}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_FENCED, renewed.Results[0].Outcome)
	freed, err = mine.slots.ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "s", Client: "c", Token: got.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, freed.Outcome)
}

// Who waits with a token that is revoked meanwhile is told so and keeps nobody from the
// slot, and so do streams and followers; another token that was put meanwhile changes
// nothing for those who wait. His wait was counted, so that he is not told that nothing was
// changed.
func TestRevokedWhileWaiting(t *testing.T) {
	n := startTeam(t)
	op := n.as(n.token("team", "op01", []v1.Role{v1.Role_ROLE_OPERATOR}))
	_, err := op.slots.PutPool(t.Context(), &v1.PutPoolRequest{Client: "op", Pool: "q", Slots: 1})
	require.NoError(t, err)
	stays, goes := n.as(n.token("team", "stays", worker)), n.as(n.token("team", "goes", append(worker, v1.Role_ROLE_AUDITOR)))
	held, err := stays.slots.AcquireSlot(t.Context(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "s", Client: "c"})
	require.NoError(t, err)

	waits := make(chan error, 1)
	go func() {
		_, err := goes.slots.AcquireSlot(context.Background(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "w1", Client: "c1", Wait: durationpb.New(time.Minute)})
		waits <- err
	}()
	follow, err := goes.events.Follow(t.Context(), &v1.FollowRequest{})
	require.NoError(t, err)
	require.True(t, follow.Receive(), "%v", follow.Err())
	stream, err := goes.calls.Exchange(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&v1.ExchangeRequest{Frames: []*v1.Operation{
		{Tag: 1, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "q", SlotId: "w2", Client: "c2", Wait: durationpb.New(time.Minute)}}},
	}}))
	for queued := false; !queued; {
		m, err := stream.Receive()
		require.NoError(t, err)
		queued = len(m.Answers) > 0
	}
	patient := make(chan *v1.AcquireSlotResponse, 1)
	go func() {
		res, err := stays.slots.AcquireSlot(context.Background(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "w3", Client: "c3", Wait: durationpb.New(time.Minute)})
		if err != nil {
			t.Error(err)
		}
		patient <- res
	}()
	eventually(t, "three wait", func() bool {
		x, err := n.store.Get(t.Context(), session.PoolKey("team", "q"), storage.Latest)
		return err == nil && len(x.Record.(*session.Pool).Queue) == 3
	})
	n.revoke("team", "goes")
	n.token("team", "later", worker)
	requireRefused(t, <-waits, connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "revoked")
	for follow.Receive() {
	}
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(follow.Err()))
	m, err := stream.Receive()
	require.NoError(t, err)
	require.Equal(t, fault.ReasonOutcomeUnknown, m.Answers[0].GetError().GetReason(), "%v", m)
	_, err = stream.Receive()
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "%v", err)

	freed, err := stays.slots.ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "s", Client: "c", Token: held.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, freed.Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, (<-patient).Outcome)
}

// What occurs behind a revocation is not told to who was revoked, wherever it occurs: also
// not where another node tells this one in its own name, since a certificate was shown.
func TestEventsBehindARevocation(t *testing.T) {
	ids, err := access.ParseIdentities([]byte("certificates:\n  - {match: w, namespace: team, roles: [auditor]}\n"), "")
	require.NoError(t, err)
	all := &fellows{}
	asks := func(c *server.Config) { c.Authentication, c.Identities, c.Cluster = true, ids, all }
	one := startTeam(t, asks)
	two := startOn(t, one.store, asks, func(c *server.Config) { c.Node = "n2" })
	all.set(peer(one, "n1"), server.Peer{Node: "n2", APIAddress: strings.TrimPrefix(shows(t, two, "spiffe://x/node/n1"), "http://")})
	lasting := one.token("team", "lasting", allRoles)
	shown := func() (c clients, deny func()) {
		return clientsOf(one.http, shows(t, one, "spiffe://x/client/w")), func() {
			a := one.store.Apply(t.Context(), &session.Deny{NS: "team", By: session.Maker{Client: "test"}, Denied: session.DeniedSubject{Subject: "cert:w"}})[0]
			require.NoError(t, a.Failure())
		}
	}
	token := func() (c clients, revoke func()) {
		return one.as(one.token("team", "goes", []v1.Role{v1.Role_ROLE_AUDITOR})), func() { one.revoke("team", "goes") }
	}
	for what, x := range map[string]struct {
		who     func() (clients, func())
		cluster bool
		at      *node
	}{"a node": {token, false, one}, "the cluster": {token, true, one}, "another node": {token, true, two}, "another node, in its name": {shown, true, two}} {
		c, end := x.who()
		f, err := c.events.Follow(t.Context(), &v1.FollowRequest{Cluster: x.cluster})
		require.NoError(t, err)
		require.True(t, f.Receive(), "%v", f.Err())
		require.Empty(t, f.Msg().Unreachable)
		signal := func(name string) {
			_, err := x.at.as(lasting).sessions.Signal(t.Context(), &v1.SignalRequest{Target: &v1.SignalRequest_AgentId{AgentId: "x"}, Signal: name})
			require.NoError(t, err)
		}
		signal("BEFORE")
		for f.Msg().Event == nil {
			require.True(t, f.Receive(), "%v", f.Err())
		}
		end()
		signal("BEHIND")
		for f.Receive() {
			require.Nil(t, f.Msg().Event, what)
		}
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(f.Err()), "%s: %v", what, f.Err())
	}
}

// Nothing is claimed for who waits with a token that has expired meanwhile.
func TestExpiredWhileWaiting(t *testing.T) {
	var ahead atomic.Int64
	n := startTeam(t, func(c *server.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	all := n.as(n.token("team", "all1", append(allRoles, worker...)))
	brief := n.as(n.token("team", "brief", worker, func(x *session.Token) { x.Expires = time.Now().Add(time.Minute).UnixMilli() }))
	_, err := all.slots.PutPool(t.Context(), &v1.PutPoolRequest{Pool: "q", Slots: 1})
	require.NoError(t, err)
	held, err := all.slots.AcquireSlot(t.Context(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "s", Client: "c"})
	require.NoError(t, err)
	waits := make(chan error, 1)
	go func() {
		_, err := brief.slots.AcquireSlot(context.Background(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "w", Client: "c2", Wait: durationpb.New(time.Minute)})
		waits <- err
	}()
	eventually(t, "it waits", func() bool {
		slots, err := all.slots.ListSlots(t.Context(), &v1.ListSlotsRequest{Pool: "q"})
		return err == nil && len(slots.Waiters) == 1
	})
	ahead.Store(int64(2 * time.Minute))
	_, err = all.slots.ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "s", Client: "c", Token: held.Token})
	require.NoError(t, err)
	requireRefused(t, <-waits, connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "expired")
}

// A token that expires is as one that is revoked.
func TestExpiredTokens(t *testing.T) {
	n := startTeam(t)
	c := n.as(n.token("team", "brief", worker, func(t *session.Token) { t.Expires = time.Now().Add(time.Second).UnixMilli() }))
	stream, err := c.calls.Exchange(t.Context())
	require.NoError(t, err)
	_, err = stream.Receive()
	require.NoError(t, err)
	_, err = stream.Receive()
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "%v", err)
	requireRefused(t, open(c, "s1", "a", "p"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "expired")
}

// Without authentication nobody has to show anything, and whoever does is held to it.
func TestWithoutAuthentication(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	agent := n.token("default", "w1aa", []v1.Role{v1.Role_ROLE_AGENT})
	_, err := n.as(agent).sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "s"})
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "orchestrator")
	_, err = n.as("gn_default.none."+secret).sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s"})
	requireRefused(t, err, connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
}

// What was not there is not told of as ended, neither to followers nor in the audit.
func TestWhatWasNotThereIsNotTold(t *testing.T) {
	n := start(t)
	told := func() (all []string) {
		for _, l := range n.audit.all(t) {
			if l["event_type"] == "token_revoked" || l["event_type"] == "subject_allowed" {
				all = append(all, fmt.Sprint(l["event_type"], " ", l["name"]))
			}
		}
		return all
	}
	revoked, err := n.access.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "c", TokenId: "none"})
	require.NoError(t, err)
	require.False(t, revoked.Revoked)
	allowed, err := n.access.AllowSubject(t.Context(), &v1.AllowSubjectRequest{Client: "c", Subject: "cert:a"})
	require.NoError(t, err)
	require.False(t, allowed.Allowed)
	require.Empty(t, told())

	_, err = n.access.DenySubject(t.Context(), &v1.DenySubjectRequest{Client: "c", Subject: "cert:a"})
	require.NoError(t, err)
	hash := sha256.Sum256([]byte("a-secret-with-many-letters"))
	_, err = n.access.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "c", TokenId: "there", SecretSha256: hash[:], Roles: []v1.Role{v1.Role_ROLE_AGENT}})
	require.NoError(t, err)
	for range 2 {
		_, err = n.access.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "c", TokenId: "there"})
		require.NoError(t, err)
		_, err = n.access.AllowSubject(t.Context(), &v1.AllowSubjectRequest{Client: "c", Subject: "cert:a"})
		require.NoError(t, err)
	}
	require.Equal(t, []string{"token_revoked there", "subject_allowed cert:a"}, told())
}

// Whoever asks once more for a token is told of the one that is there: with its times, which
// another clock may have told, and not at all once it was revoked.
func TestARepeatTellsOfTheTokenThatIsThere(t *testing.T) {
	n := startAsking(t)
	cluster := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})).access
	hash := sha256.Sum256([]byte(secret))
	req := &v1.CreateTokenRequest{
		RequestId: "make-1", Client: "cli", Namespace: "team", TokenId: "first", SecretSha256: hash[:], Roles: []v1.Role{v1.Role_ROLE_OPERATOR}, ExpiresIn: durationpb.New(time.Hour),
	}
	made, err := cluster.CreateToken(t.Context(), req)
	require.NoError(t, err)
	time.Sleep(2 * time.Millisecond) // the repeat is of another one
	again, err := cluster.CreateToken(t.Context(), req)
	require.NoError(t, err)
	require.True(t, proto.Equal(made.Token, again.Token), "%v, and was %v", again.Token, made.Token)
	_, err = cluster.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "cli", Namespace: "team", TokenId: "first"})
	require.NoError(t, err)
	again, err = cluster.CreateToken(t.Context(), req)
	require.NoError(t, err)
	require.Nil(t, again.Token)
}

// Tokens are made, listed and revoked by operators: of their own namespace, or of the
// cluster. No answer has a hash, and a repeat makes one token.
func TestTokensAreMadeByOperators(t *testing.T) {
	n := startAsking(t)
	cluster := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})).access
	hash := func(secret string) []byte { sum := sha256.Sum256([]byte(secret)); return sum[:] }
	make1 := &v1.CreateTokenRequest{
		RequestId: "make-1", Client: "cli", Namespace: "team", TokenId: "first", SecretSha256: hash(secret),
		Roles: []v1.Role{v1.Role_ROLE_OPERATOR}, Label: "the first", ExpiresIn: durationpb.New(time.Hour),
	}
	for range 2 {
		res, err := cluster.CreateToken(t.Context(), make1)
		require.NoError(t, err)
		require.Equal(t, "first", res.Token.TokenId)
	}
	own := n.as("gn_team.first." + secret).access
	me, err := own.WhoAmI(t.Context(), &v1.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, "token:first", me.Principal)
	require.Equal(t, "team", me.Namespace)
	require.NotZero(t, me.ExpiresAt)
	_, err = own.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "cli", TokenId: "worker", SecretSha256: hash("other-secret-with-many-letters"), Roles: worker, Agents: []string{"bot-*"}})
	require.NoError(t, err)
	_, err = own.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "cli", TokenId: "worker", SecretSha256: hash("another"), Roles: worker})
	requireRefused(t, err, connect.CodeInvalidArgument, fault.ReasonIDReused, "worker")
	for _, ns := range []string{"other", session.ClusterNamespace} {
		_, err = own.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "cli", Namespace: ns, TokenId: "worker", SecretSha256: hash("x"), Roles: []v1.Role{v1.Role_ROLE_OPERATOR}})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "namespace")
		_, err = own.ListTokens(t.Context(), &v1.ListTokensRequest{Namespace: ns})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "namespace")
	}
	list, err := own.ListTokens(t.Context(), &v1.ListTokensRequest{})
	require.NoError(t, err)
	require.Len(t, list.Tokens, 2)
	require.Equal(t, []string{"bot-*"}, list.Tokens[1].Agents)
	require.Equal(t, "token:root", list.Tokens[0].CreatedBy)

	res, err := own.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "cli", TokenId: "worker"})
	require.NoError(t, err)
	require.True(t, res.Revoked)
	_, err = n.as("gn_team.worker.other-secret-with-many-letters").access.WhoAmI(t.Context(), &v1.WhoAmIRequest{})
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
	var events []string
	for _, l := range n.audit.all(t) {
		events = append(events, fmt.Sprint(l["event_type"], " ", l["principal"], " ", l["namespace"]))
	}
	require.Equal(t, []string{"token_created token:root team", "token_created token:first team", "token_revoked token:first team", "access_refused <nil> $cluster"}, events)
	require.NotContains(t, n.audit.text(), "secret")

	for field, bad := range map[string]*v1.CreateTokenRequest{
		"tokenId":      {Client: "cli", TokenId: "No", SecretSha256: hash("x"), Roles: worker},
		"secretSha256": {Client: "cli", TokenId: "good", SecretSha256: []byte("x"), Roles: worker},
		"roles":        {Client: "cli", TokenId: "good", SecretSha256: hash("x")},
		"roles[0]":     {Client: "cli", TokenId: "good", SecretSha256: hash("x"), Roles: []v1.Role{99}},
		"agents[0]":    {Client: "cli", TokenId: "good", SecretSha256: hash("x"), Roles: worker, Agents: []string{"[a"}},
		"expiresIn":    {Client: "cli", TokenId: "good", SecretSha256: hash("x"), Roles: worker, ExpiresIn: durationpb.New(-1)},
	} {
		_, err := own.CreateToken(t.Context(), bad)
		requireRefused(t, err, connect.CodeInvalidArgument, fault.ReasonInvalidField, field)
	}
}

// A vote is that of who is known to give it: nobody votes twice under two names.
func TestVotesAreThoseOfPrincipals(t *testing.T) {
	n := startTeam(t)
	asks := n.as(n.token("team", "w1aa", worker))
	res, err := asks.approvals.Request(t.Context(), &v1.ApprovalServiceRequestRequest{Client: "c", RequestId: "r1", AgentId: "a", Tool: "t", Required: 2})
	require.NoError(t, err)
	amy := n.as(n.token("team", "amyy", []v1.Role{v1.Role_ROLE_APPROVER}))
	vote := func(c clients, approver, request string) (*v1.ApprovalServiceDecideResponse, error) {
		return c.approvals.Decide(t.Context(), &v1.ApprovalServiceDecideRequest{Client: "c", RequestId: request, Id: res.Approval.Id, Approver: approver, Decision: v1.Vote_VOTE_APPROVE})
	}
	_, err = vote(amy, "bob", "v1")
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "approver")
	for _, request := range []string{"v2", "v3"} {
		out, err := vote(amy, "", request)
		require.NoError(t, err)
		require.Equal(t, v1.ApprovalState_APPROVAL_STATE_PENDING, out.Approval.State)
	}
	out, err := vote(n.as(n.token("team", "bobb", []v1.Role{v1.Role_ROLE_APPROVER})), "", "v4")
	require.NoError(t, err)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_APPROVED, out.Approval.State)
}

// Whoever asks may not decide, whatever the agent is called: a token with both roles
// needs another one for that.
func TestNobodyDecidesAboutTheirOwnCall(t *testing.T) {
	n := startAsking(t)
	both := n.as(n.token("default", "both", allRoles))
	other := n.as(n.token("default", "other", []v1.Role{v1.Role_ROLE_APPROVER}))
	_, err := both.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: strings.Join(policy("require_human_approval: true", "approval: {required: 1, denials: 1, timeout: 300s}"), "\n") + "\n"})
	require.NoError(t, err)
	_, err = both.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "s", AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}})
	require.NoError(t, err)
	res, err := both.calls.BeginCall(n.ctx(), &v1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "t"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, res.Outcome)
	asked, err := both.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", RequestId: "r"})
	require.NoError(t, err)
	for _, id := range []string{res.Approval.Id, asked.Approval.Id} {
		vote := &v1.ApprovalServiceDecideRequest{Id: id, Decision: v1.Vote_VOTE_APPROVE}
		_, err = both.approvals.Decide(n.ctx(), vote)
		requireRefused(t, err, connect.CodeFailedPrecondition, "SELF_APPROVAL", "what it asked with")
		_, err = other.approvals.Decide(n.ctx(), vote)
		require.NoError(t, err)
	}
}
