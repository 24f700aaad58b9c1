package server_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What stands against agents out of the scope of a token is not there for it, and what
// was approved for their sessions neither.
func TestScopeOfWhatStands(t *testing.T) {
	n := startTeam(t)
	all := n.as(n.token("team", "all1", append(allRoles, worker...)))
	c := n.as(n.token("team", "some", append(allRoles, worker...), agents("bot-*")))
	require.NoError(t, open(all, "s-bot", "bot-1", "p"))
	require.NoError(t, open(all, "s-other", "other", "p"))
	for _, agent := range []string{"bot-1", "other"} {
		_, err := all.sessions.Signal(t.Context(), &v1.SignalRequest{Target: &v1.SignalRequest_AgentId{AgentId: agent}, Signal: "STOP"})
		require.NoError(t, err)
	}
	signals, err := c.sessions.ListSignals(t.Context(), &v1.ListSignalsRequest{})
	require.NoError(t, err)
	require.Len(t, signals.Signals, 1)
	require.Contains(t, signals.Signals[0].String(), "bot-1")

	ids := map[string]string{}
	for name, scope := range map[string]v1.StandingScope{
		"s-bot": v1.StandingScope_STANDING_SCOPE_SESSION, "s-other": v1.StandingScope_STANDING_SCOPE_SESSION,
		"bot-1": v1.StandingScope_STANDING_SCOPE_AGENT, "other": v1.StandingScope_STANDING_SCOPE_AGENT, "p": v1.StandingScope_STANDING_SCOPE_POLICY,
	} {
		res, err := all.approvals.PutStanding(t.Context(), &v1.PutStandingRequest{Scope: scope, Name: name, Tool: "t", Expiry: durationpb.New(time.Hour)})
		require.NoError(t, err)
		ids[name] = res.Standing.Id
	}
	list, err := c.approvals.ListStanding(t.Context(), &v1.ListStandingRequest{})
	require.NoError(t, err)
	var names []string
	for _, s := range list.Standings {
		names = append(names, s.Name)
	}
	require.ElementsMatch(t, []string{"bot-1", "p", "s-bot"}, names)
	remove := func(id string) error {
		_, err := c.approvals.DeleteStanding(t.Context(), &v1.DeleteStandingRequest{Id: id})
		return err
	}
	absent := remove("absent")
	for _, name := range []string{"s-other", "other"} {
		err := remove(ids[name])
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "no standing approval")
		require.Equal(t, strings.ReplaceAll(absent.Error(), "absent", ids[name]), err.Error())
	}
	requireRefused(t, remove(ids["p"]), connect.CodePermissionDenied, fault.ReasonForbidden, "scope")
	require.NoError(t, remove(ids["s-bot"]))
	list, err = all.approvals.ListStanding(t.Context(), &v1.ListStandingRequest{})
	require.NoError(t, err)
	require.Len(t, list.Standings, 4)
}

// shows serves a node's API as over TLS, to somebody who shows a certificate.
func shows(t *testing.T, n *node, uri string) string {
	t.Helper()
	id, err := url.Parse(uri)
	require.NoError(t, err)
	cert := &x509.Certificate{URIs: []*url.URL{id}, NotAfter: time.Now().Add(time.Hour)}
	api := n.server.Handler()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h.URL
}

// The scope of who shows a certificate holds for what other nodes know as well, which
// this one asks in its own name; and only members are asked things by.
func TestScopeOfCertificatesAtOtherNodes(t *testing.T) {
	ids, err := access.ParseIdentities([]byte("certificates:\n  - {match: w, namespace: team, roles: [auditor], agents: [bot-*]}\n"), "")
	require.NoError(t, err)
	all := &fellows{}
	asks := func(c *server.Config) { c.Authentication, c.Identities, c.Cluster = true, ids, all }
	all.set(server.Peer{Node: "n1"}, server.Peer{Node: "n2"})
	one := startTeam(t, asks)
	two := startOn(t, one.store, asks, func(c *server.Config) { c.Node = "n2" })
	all.set(peer(one, "n1"), server.Peer{Node: "n2", APIAddress: strings.TrimPrefix(shows(t, two, "spiffe://x/node/n1"), "http://")})
	c := clientsOf(one.http, shows(t, one, "spiffe://x/client/w"))
	full := two.as(two.token("team", "all1", worker))
	require.NoError(t, open(full, "s-bot", "bot-1", "p"))
	require.NoError(t, open(full, "s-other", "other", "p"))

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := c.events.Follow(ctx, &v1.FollowRequest{Cluster: true})
	require.NoError(t, err)
	defer func() { _ = stream.Close() }()
	require.True(t, stream.Receive(), "%v", stream.Err())
	require.Empty(t, stream.Msg().Unreachable)
	foreign, err := full.calls.BeginCall(ctx, beginRequest("s-other", "foreign"))
	require.NoError(t, err)
	mine, err := full.calls.BeginCall(ctx, beginRequest("s-bot", "mine"))
	require.NoError(t, err)
	for stream.Msg().Event == nil {
		require.True(t, stream.Receive(), "%v", stream.Err())
	}
	require.Equal(t, "mine", stream.Msg().Event.CallId)

	got, err := c.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: mine.DecisionId, SessionId: "s-bot"})
	require.NoError(t, err)
	require.Equal(t, "bot-1", got.Record.AgentId)
	_, err = c.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: mine.DecisionId, SessionId: "s-other"})
	requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "was not made for")
	for _, sess := range []string{"", "s-bot", "s-other"} {
		_, err = c.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: foreign.DecisionId, SessionId: sess})
		_, absent := c.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: "absent", SessionId: sess})
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "no record")
		require.Equal(t, strings.ReplaceAll(absent.Error(), "absent", foreign.DecisionId), err.Error())
	}

	me := func(uri string) error {
		_, err := clientsOf(one.http, shows(t, one, uri)).access.WhoAmI(ctx, &v1.WhoAmIRequest{})
		return err
	}
	require.NoError(t, me("spiffe://x/node/n2"))
	requireRefused(t, me("spiffe://x/node/n9"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
	all.set(peer(one, "n1"))
	requireRefused(t, me("spiffe://x/node/n2"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
}

// An agent whose id looks like personal data is shown redacted, and so is another one. Who
// asks for the one by its id, or may see it alone, is told of it and of nobody else,
// whatever the event is and whichever node tells of it.
func TestScopeOfAgentsThatAreRedacted(t *testing.T) {
	const mine, other = "mine@corp.org", "other@corp.org"
	ids, err := access.ParseIdentities([]byte("certificates:\n  - {match: w, namespace: team, roles: [auditor], agents: ['mine@*', 'none, such']}\n"), "")
	require.NoError(t, err)
	all := &fellows{}
	asks := func(c *server.Config) { c.Authentication, c.Identities, c.Cluster = true, ids, all }
	all.set(server.Peer{Node: "n1"}, server.Peer{Node: "n2"})
	one := startTeam(t, asks)
	two := startOn(t, one.store, asks, func(c *server.Config) { c.Node = "n2" })
	all.set(peer(one, "n1"), server.Peer{Node: "n2", APIAddress: strings.TrimPrefix(shows(t, two, "spiffe://x/node/n1"), "http://")})
	full := one.token("team", "full", append(allRoles, worker...))
	require.NoError(t, open(one.as(full), "s-mine", mine, "p"))
	require.NoError(t, open(one.as(full), "s-other", other, "p"))
	scoped := one.as(one.token("team", "scoped", []v1.Role{v1.Role_ROLE_AUDITOR}, agents(mine)))
	certified := clientsOf(one.http, shows(t, one, "spiffe://x/client/w"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, c := range []struct {
		clients
		agent string
	}{{one.as(full), mine}, {scoped, ""}, {certified, ""}} {
		for n, at := range []*node{one, two} {
			stream, err := c.events.Follow(ctx, &v1.FollowRequest{Cluster: true, AgentId: c.agent, Types: []string{"policy_check", "signal"}})
			require.NoError(t, err, i)
			require.True(t, stream.Receive(), "%d: %v", i, stream.Err())
			decisions := map[string]string{}
			for _, of := range []string{other, mine} {
				sess := "s-" + strings.TrimSuffix(of, "@corp.org")
				res, err := at.as(full).calls.BeginCall(ctx, beginRequest(sess, fmt.Sprintf("c-%d-%d", i, n)))
				require.NoError(t, err)
				decisions[of] = res.DecisionId
				_, err = at.as(full).sessions.Signal(ctx, signalRequest("look", agent(of), func(r *v1.SignalRequest) { r.Reason = of[:5] }))
				require.NoError(t, err)
			}
			var told []string
			for len(told) < 2 {
				require.True(t, stream.Receive(), "%d: %v", i, stream.Err())
				if e := stream.Msg().Event; e != nil {
					require.Equal(t, "[REDACTED:email]", e.AgentId)
					told = append(told, e.Type+" "+cmp.Or(e.SessionId, e.Reason))
				}
			}
			require.Equal(t, []string{"policy_check s-mine", "signal mine@"}, told, i)
			require.NoError(t, stream.Close())

			got, err := c.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: decisions[mine]})
			require.NoError(t, err, i)
			require.Equal(t, "[REDACTED:email]", got.Record.AgentId)
			if c.agent == "" {
				_, err = c.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: decisions[other]})
				requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "no record")
			}
		}
	}
}

// A behindStore is that of a node that has not seen yet what was done to the record of a
// namespace. A linearizable read of something else brings it up to date, as on a node of
// a cluster.
type behindStore struct {
	storage.Store
	ns  string
	old atomic.Pointer[storage.Found]
}

func (s *behindStore) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	own := k == session.AccessKey(s.ns)
	if old := s.old.Load(); old != nil && r == storage.Nearby && own {
		return *old, nil
	}
	found, err := s.Store.Get(ctx, k, r)
	if r == storage.Latest && !own {
		s.old.Store(nil)
	}
	return found, err
}

// keep has the node see no more of the record than there is now.
func (s *behindStore) keep(t *testing.T) {
	found, err := s.Store.Get(t.Context(), session.AccessKey(s.ns), storage.Latest)
	require.NoError(t, err)
	s.old.Store(&found)
}

// A linearizable read that began behind a revocation brings nothing, though the node had
// not seen the revocation when the request came.
func TestReadsBehindARevocation(t *testing.T) {
	store := &behindStore{Store: storage.NewMemory(nil), ns: "team"}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.Authentication = true })
	c := n.as(n.token("team", "auditor", []v1.Role{v1.Role_ROLE_AUDITOR}))
	read := func() error {
		_, err := c.counters.Get(t.Context(), &v1.GetRequest{Key: "k"})
		return err
	}
	store.keep(t)
	require.NoError(t, read())
	n.token("team", "other", worker)
	store.keep(t)
	n.token("team", "third", worker)
	require.NoError(t, read(), "others changed")
	store.keep(t)
	n.revoke("team", "auditor")
	requireRefused(t, read(), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
}

// That something is not there is an answer as well: who was revoked before a linearizable
// read does not have it.
func TestAbsenceBehindARevocation(t *testing.T) {
	store := &behindStore{Store: storage.NewMemory(nil), ns: "team"}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.Authentication = true })
	for what, try := range map[string]func(c clients) error{
		"session": func(c clients) error {
			_, err := c.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "none"})
			return err
		},
		"pool": func(c clients) error {
			_, err := c.slots.GetPool(t.Context(), &v1.GetPoolRequest{Pool: "none"})
			return err
		},
		"approval": func(c clients) error {
			_, err := c.approvals.Get(t.Context(), &v1.ApprovalServiceGetRequest{Id: "none"})
			return err
		},
	} {
		c := n.as(n.token("team", "auditor"+what, []v1.Role{v1.Role_ROLE_AUDITOR}))
		store.keep(t)
		requireRefused(t, try(c), connect.CodeNotFound, fault.ReasonNotFound, "none")
		store.keep(t)
		n.revoke("team", "auditor"+what)
		requireRefused(t, try(c), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
	}
}

// A recruiting cluster is one whose members are changed.
type recruiting struct {
	fellows
	guard  sync.Mutex
	done   []string
	during func()
	fails  error
}

func (c *recruiting) did(what string) error {
	c.guard.Lock()
	defer c.guard.Unlock()
	if c.fails != nil {
		return c.fails
	}
	c.done = append(c.done, what)
	if c.during != nil {
		c.during()
	}
	return nil
}
func (c *recruiting) AddNode(context.Context, string, string, bool) error { return c.did("add") }
func (c *recruiting) RemoveNode(context.Context, string, bool) error      { return c.did("remove") }
func (c *recruiting) TransferLeadership(context.Context, string) error    { return c.did("transfer") }

// An operator who was revoked changes no members and no tokens and takes no snapshot, also at a node
// that does not know it yet; and who is revoked while it is done hears that it was done.
func TestRevokedOperatorsOfTheCluster(t *testing.T) {
	store, all := &behindStore{Store: storage.NewMemory(nil), ns: session.ClusterNamespace}, &recruiting{}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	all.set(server.Peer{Node: "n1"})
	n := startOn(t, store, func(c *server.Config) { c.Authentication, c.Cluster = true, all })
	root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR}))
	c := root.cluster
	tries := map[string]func() error{
		"token": func() error {
			_, err := root.access.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "c", Namespace: "team", TokenId: "none"})
			return err
		},
		"add": func() error {
			_, err := c.AddNode(t.Context(), &v1.AddNodeRequest{Node: "n2", Address: "a:1"})
			return err
		},
		"remove":   func() error { _, err := c.RemoveNode(t.Context(), &v1.RemoveNodeRequest{Node: "n2"}); return err },
		"transfer": func() error { _, err := c.TransferLeadership(t.Context(), &v1.TransferLeadershipRequest{}); return err },
		"snapshot": func() error {
			s, err := c.Snapshot(t.Context(), &v1.SnapshotRequest{})
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }()
			for s.Receive() {
			}
			return s.Err()
		},
	}
	for what, try := range tries {
		require.NoError(t, try(), what)
	}
	require.Len(t, all.done, 3)
	all.during = func() { n.revoke(session.ClusterNamespace, "root") }
	require.NoError(t, tries["remove"](), "it was done")
	require.Len(t, all.done, 4)
	all.during = nil
	n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})
	store.keep(t)
	n.revoke(session.ClusterNamespace, "root")
	for what, try := range tries {
		err := try()
		requireRefused(t, err, connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
		require.Len(t, all.done, 4, what)
	}
}

// restoring is a store that tells when a restore has begun.
type restoring struct {
	storage.Store
	begun chan struct{}
}

func (s *restoring) Restore(ctx context.Context, r io.Reader) error {
	close(s.begun)
	return s.Store.Restore(ctx, r)
}

// Who is revoked while a snapshot is sent restores nothing.
func TestRevokedDuringARestore(t *testing.T) {
	store := &restoring{Store: storage.NewMemory(nil), begun: make(chan struct{})}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.Authentication = true })
	all := n.as(n.token("team", "all1", append(allRoles, worker...)))
	root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR}))
	set := func(text string) {
		_, err := all.counters.Set(t.Context(), &v1.SetRequest{Key: "k", Value: text})
		require.NoError(t, err)
	}
	set("old")
	var snapshot bytes.Buffer
	require.NoError(t, n.store.Save(t.Context(), &snapshot))
	set("new")
	up, err := root.cluster.Restore(t.Context())
	require.NoError(t, err)
	half := snapshot.Len() / 2
	require.NoError(t, up.Send(&v1.RestoreRequest{Chunk: snapshot.Next(half)}))
	<-store.begun
	n.revoke(session.ClusterNamespace, "root")
	_ = up.Send(&v1.RestoreRequest{Chunk: snapshot.Bytes()}) // it may have been refused by now
	_, err = up.CloseAndReceive()
	requireRefused(t, err, connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
	got, err := all.counters.Get(t.Context(), &v1.GetRequest{Key: "k"})
	require.NoError(t, err)
	require.Equal(t, "new", got.Value)
}

// Where it cannot be found out whether its sender may still restore, nothing is restored, and
// that is said: before a snapshot is read, and behind its end.
func TestARestoreByWhoCannotBeLookedUp(t *testing.T) {
	for what, half := range map[string]int{"at its beginning": 0, "at its end": 10} {
		t.Run(what, func(t *testing.T) {
			store := &unreadAccess{restoring: restoring{Store: storage.NewMemory(nil), begun: make(chan struct{})}}
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			n := startOn(t, store, func(c *server.Config) { c.Authentication = true })
			root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR}))
			_, err := root.access.WhoAmI(t.Context(), &v1.WhoAmIRequest{}) // it is known from here on
			require.NoError(t, err)
			var snapshot bytes.Buffer
			require.NoError(t, n.store.Save(t.Context(), &snapshot))
			store.gone.Store(half == 0)
			up, err := root.cluster.Restore(t.Context())
			require.NoError(t, err)
			_ = up.Send(&v1.RestoreRequest{Chunk: snapshot.Next(half)})
			if half > 0 {
				<-store.begun
				store.gone.Store(true)
			}
			_ = up.Send(&v1.RestoreRequest{Chunk: snapshot.Bytes()}) // it may have been refused by now
			_, err = up.CloseAndReceive()
			require.Equal(t, "unavailable NOT_APPLIED", saidOf(t, err))
			require.NotContains(t, n.audit.text(), "snapshot_restored")
		})
	}
}

// unreadAccess is a store that cannot tell as of now who may do what while it is gone.
type unreadAccess struct {
	restoring
	gone atomic.Bool
}

func (s *unreadAccess) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if s.gone.Load() && r == storage.Latest && k == session.AccessKey(session.ClusterNamespace) {
		return storage.Found{}, storage.Unread(errLeaderGone)
	}
	return s.restoring.Get(ctx, k, r)
}

// noticing is a store that tells of what is read.
type noticing struct {
	storage.Store
	read atomic.Pointer[func(k session.Key)]
}

func (s *noticing) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if f := s.read.Load(); f != nil {
		(*f)(k)
	}
	return s.Store.Get(ctx, k, r)
}

// A token that expires while a request is judged puts nothing in order any more.
func TestTokensExpireBetweenTheGateAndTheOrder(t *testing.T) {
	begin, ahead, store := time.Now(), atomic.Int64{}, &noticing{Store: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) {
		c.Authentication, c.Now = true, func() time.Time { return begin.Add(time.Duration(ahead.Load())) }
	})
	lasting := n.as(n.token("team", "lasting", allRoles))
	_, err := lasting.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", Yaml: strings.Join(policy(), "\n") + "\n"})
	require.NoError(t, err)
	require.NoError(t, open(lasting, "s", "a", "p"))
	c := n.as(n.token("team", "brief", allRoles, func(t *session.Token) { t.Expires = begin.Add(time.Minute).UnixMilli() }))
	late := func(k session.Key) {
		if k == session.SessionKey("team", "s") {
			ahead.Store(int64(time.Minute))
		}
	}
	for what, try := range map[string]func() error{
		"begin": func() error { _, err := c.calls.BeginCall(t.Context(), beginRequest("s", "c")); return err },
		"standing": func() error {
			_, err := c.approvals.PutStanding(t.Context(), &v1.PutStandingRequest{
				Scope: v1.StandingScope_STANDING_SCOPE_SESSION, Name: "s", Tool: "t", Expiry: durationpb.New(time.Hour),
			})
			return err
		},
	} {
		ahead.Store(0)
		_, err := c.access.WhoAmI(t.Context(), &v1.WhoAmIRequest{})
		require.NoError(t, err, what)
		store.read.Store(&late)
		err = try()
		store.read.Store(nil)
		requireRefused(t, err, connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "expired")
	}
	got, err := lasting.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.Zero(t, got.Session.Attempts)
	list, err := lasting.approvals.ListStanding(t.Context(), &v1.ListStandingRequest{})
	require.NoError(t, err)
	require.Empty(t, list.Standings)
}

// A session that is not there for a caller, for its agent or for its secret, is looked for
// as long as one that is not there at all: the time of the answer does not tell.
func TestSessionsOfOthersTakeAsLong(t *testing.T) {
	store := &noticing{Store: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.Authentication = true })
	all := n.as(n.token("team", "all1", allRoles))
	_, err := all.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", Yaml: strings.Join(policy(), "\n") + "\n"})
	require.NoError(t, err)
	require.NoError(t, open(all, "s-other", "other", "p"))
	require.NoError(t, open(all, "s-sealed", "bot-1", "p", func(r *v1.CreateSessionRequest) {
		sum := sha256.Sum256([]byte("secret"))
		r.SessionTokenSha256 = sum[:]
	}))
	c := n.as(n.token("team", "some", worker, agents("bot-*")))
	for what, try := range map[string]func(id string) error{
		"begin": func(id string) error { _, err := c.calls.BeginCall(t.Context(), beginRequest(id, "c")); return err },
		"end": func(id string) error {
			_, err := c.calls.EndCall(t.Context(), &v1.EndCallRequest{SessionId: id, CallId: "c", Status: v1.Status_STATUS_SUCCEEDED})
			return err
		},
		"cancel": func(id string) error {
			_, err := c.calls.CancelCall(t.Context(), &v1.CancelCallRequest{SessionId: id, CallId: "c"})
			return err
		},
		"renew": func(id string) error {
			_, err := c.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{SessionId: id, SlotId: "c", Token: 1}}})
			return err
		},
	} {
		reads := func(id string) int64 {
			var looked atomic.Int64
			note := func(k session.Key) {
				if k == session.SessionKey("team", id) {
					looked.Add(1)
				}
			}
			store.read.Store(&note)
			err := try(id)
			store.read.Store(nil)
			if what == "renew" {
				require.NoError(t, err)
			} else {
				requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, id)
			}
			return looked.Load()
		}
		want := reads("s-none")
		require.Positive(t, want, what)
		require.Equal(t, want, reads("s-other"), what)
		require.Equal(t, want, reads("s-sealed"), what)
	}
}

// What belongs to others is answered like what is absent under an id that was used before,
// too, and costs the same.
func TestForbiddenIsLikeAbsent(t *testing.T) {
	store := &counting{Store: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.Authentication = true })
	all := n.as(n.token("team", "all1", append(allRoles, worker...)))
	_, err := all.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", Yaml: strings.Join(policy(), "\n") + "\n"})
	require.NoError(t, err)
	require.NoError(t, open(all, "s-other", "other", "p"))
	begun, err := all.calls.BeginCall(t.Context(), beginRequest("s-other", "c"))
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begun.Outcome)
	asked, err := all.approvals.Request(t.Context(), &v1.ApprovalServiceRequestRequest{AgentId: "other", Tool: "t", Client: "theirs", RequestId: "theirs"})
	require.NoError(t, err)
	stands := func(scope v1.StandingScope, name string) string {
		res, err := all.approvals.PutStanding(t.Context(), &v1.PutStandingRequest{Scope: scope, Name: name, Tool: "t", Expiry: durationpb.New(time.Hour)})
		require.NoError(t, err)
		return res.Standing.Id
	}
	c := n.as(n.token("team", "some", append(allRoles, worker...), agents("bot-*")))
	_, err = c.counters.Set(t.Context(), &v1.SetRequest{Client: "mine", RequestId: "used", Key: "k", Value: "v"})
	require.NoError(t, err)
	signal := func(name string) func(id, request string) (any, error) {
		return func(id, request string) (any, error) {
			return c.sessions.Signal(t.Context(), &v1.SignalRequest{Client: "mine", RequestId: request, Target: &v1.SignalRequest_SessionId{SessionId: id}, Signal: name})
		}
	}
	standing := func(id, request string) (any, error) {
		return c.approvals.DeleteStanding(t.Context(), &v1.DeleteStandingRequest{Client: "mine", RequestId: request, Id: id})
	}
	for what, x := range map[string]struct {
		hidden string
		try    func(id, request string) (any, error)
	}{
		"event":  {"s-other", signal("FOO")},
		"signal": {"s-other", signal("STOP")},
		"force": {"s-other", func(id, request string) (any, error) {
			res, err := c.slots.ForceRelease(t.Context(), &v1.ForceReleaseRequest{Client: "mine", RequestId: request, SessionId: id, SlotId: "c"})
			return res.GetOutcome(), err
		}},
		"decide": {asked.Approval.Id, func(id, request string) (any, error) {
			return c.approvals.Decide(t.Context(), &v1.ApprovalServiceDecideRequest{Client: "mine", RequestId: request, Id: id, Decision: v1.Vote_VOTE_DENY})
		}},
		"cancel": {asked.Approval.Id, func(id, request string) (any, error) {
			return c.approvals.Cancel(t.Context(), &v1.ApprovalServiceCancelRequest{Client: "mine", RequestId: request, Id: id})
		}},
		"standing, agent":   {stands(v1.StandingScope_STANDING_SCOPE_AGENT, "other"), standing},
		"standing, session": {stands(v1.StandingScope_STANDING_SCOPE_SESSION, "s-other"), standing},
	} {
		for _, request := range []string{"used", ""} {
			answer := func(id string) (answer string, cost [2]int64) {
				commands, reads := store.commands.Load(), store.reads.Load()
				res, err := x.try(id, request)
				return strings.ReplaceAll(fmt.Sprint(res, err), id, "ID"), [2]int64{store.commands.Load() - commands, store.reads.Load() - reads}
			}
			absent, want := answer("absent")
			hidden, cost := answer(x.hidden)
			require.Equal(t, absent, hidden, "%s %q", what, request)
			require.Equal(t, want, cost, "%s %q: commands and linearizable reads", what, request)
			if request == "used" && what != "event" {
				require.Contains(t, hidden, "used", what)
			}
		}
	}
}

// counting is a store that counts what it is asked for in the namespace team.
type counting struct {
	storage.Store
	commands, reads atomic.Int64 // reads are the linearizable ones of a record
}

func (s *counting) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	for _, c := range cmds {
		if c.Namespace() == "team" {
			s.commands.Add(1)
		}
	}
	return s.Store.Apply(ctx, cmds...)
}

func (s *counting) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Latest {
		s.reads.Add(1)
	}
	return s.Store.Get(ctx, k, r)
}
