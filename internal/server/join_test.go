package server_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
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

var joinerRole = []v1.Role{v1.Role_ROLE_JOINER}

// startRecruiting starts a node of a cluster whose members are changed, and which asks
// who calls.
func startRecruiting(t *testing.T, change ...func(*server.Config)) (*node, *recruiting) {
	all := &recruiting{}
	all.set(server.Peer{Node: "n1"})
	return startAsking(t, append(change, func(c *server.Config) { c.Cluster = all })...), all
}

func add(n *node, token, id string) error {
	_, err := n.as(token).cluster.AddNode(n.ctx(), &v1.AddNodeRequest{Node: id, Address: "127.0.0.1:1", Nonvoter: true})
	return err
}

// joinLines are the lines of the audit that tell of members and of their tokens.
func (n *node) joinLines() (events []string) {
	for _, l := range n.audit.all(n.t) {
		switch e := l["event_type"]; e {
		case "token_created", "token_used", "node_added", "node_refused":
			events = append(events, fmt.Sprint(e, " ", l["principal"]))
		}
	}
	return events
}

// A join token adds the node that uses it first. The same node may ask again; another is
// refused, and so is the token when it was revoked. All of it is in the audit.
func TestJoinTokensAddOneNode(t *testing.T) {
	n, all := startRecruiting(t, func(c *server.Config) { c.Authority = func() []byte { return []byte("fingerprint") } })
	root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})).access
	sum := sha256.Sum256([]byte(secret))
	made, err := root.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "cli", TokenId: "join1", SecretSha256: sum[:], Roles: joinerRole})
	require.NoError(t, err)
	require.Equal(t, []byte("fingerprint"), made.AuthoritySha256)
	require.Equal(t, (10 * time.Minute).Milliseconds(), made.Token.ExpiresAt-made.Token.CreatedAt, "it ends soon by itself")
	token := "gn_$cluster.join1." + secret
	list := func() *v1.Token {
		out, err := root.ListTokens(t.Context(), &v1.ListTokensRequest{})
		require.NoError(t, err)
		return out.Tokens[0]
	}
	require.Empty(t, list().Node)
	require.Zero(t, list().UsedAt)

	for range 2 {
		require.NoError(t, add(n, token, "n4"), "its first use, and the same again")
	}
	require.Len(t, all.done, 2)
	require.Equal(t, "n4", list().Node)
	require.NotZero(t, list().UsedAt)
	requireRefused(t, add(n, token, "n5"), connect.CodePermissionDenied, fault.ReasonTokenTaken, "another one")
	_, err = root.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "cli", TokenId: "join1"})
	require.NoError(t, err)
	requireRefused(t, add(n, token, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
	require.Len(t, all.done, 2, "members are changed by nobody else")
	require.Equal(t, []string{
		"token_created token:root", "token_used token:join1", "node_added token:join1", "node_added token:join1",
		"node_refused token:join1", "node_refused <nil>",
	}, n.joinLines())
	require.NotContains(t, n.audit.text(), secret)
}

// Who is removed does not come back by the token by which it came, nor by one that was made
// for it and not used. One entry of the log ends them all.
func TestRemovedNodesHaveNoJoinToken(t *testing.T) {
	n, all := startRecruiting(t)
	root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR}))
	used, other := n.token(session.ClusterNamespace, "join1", joinerRole), n.token(session.ClusterNamespace, "join2", joinerRole)
	next := n.token(session.ClusterNamespace, "join3", joinerRole, func(t *session.Token) { t.Node = "n4" })
	require.NoError(t, add(n, used, "n4"))
	require.NoError(t, add(n, other, "n5"))
	epoch := func() uint64 {
		found, err := n.store.Get(t.Context(), session.AccessKey(session.ClusterNamespace), storage.Latest)
		require.NoError(t, err)
		return session.EpochOf(found.Record)
	}
	was := epoch()
	_, err := root.cluster.RemoveNode(t.Context(), &v1.RemoveNodeRequest{Node: "n4"})
	require.NoError(t, err)
	requireRefused(t, add(n, used, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
	require.Equal(t, []string{"add", "add", "remove"}, all.done)
	require.NoError(t, add(n, other, "n5"), "another node's stays")
	requireRefused(t, add(n, next, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
	require.Equal(t, was+1, epoch())
	var ended []any
	for _, l := range n.audit.all(t) {
		if l["event_type"] == "token_revoked" {
			ended = append(ended, l["name"])
		}
	}
	require.Equal(t, []any{"join1", "join3"}, ended)
	again := n.token(session.ClusterNamespace, "join4", joinerRole, func(t *session.Token) { t.Node = "n4" })
	require.NoError(t, add(n, again, "n4"), "one that was made behind")
}

// Nor does it by way of a node that has not seen yet that the token was used.
func TestRemovedNodesHaveNoJoinTokenBehind(t *testing.T) {
	n, all := startRecruiting(t)
	store := &behindStore{Store: n.store, ns: session.ClusterNamespace}
	late := startOn(t, store, func(c *server.Config) { c.Authentication, c.Cluster = true, all })
	root := n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})
	used := n.token(session.ClusterNamespace, "join1", joinerRole)
	store.keep(t)
	require.NoError(t, add(n, used, "n4"))
	_, err := late.as(root).cluster.RemoveNode(t.Context(), &v1.RemoveNodeRequest{Node: "n4"})
	require.NoError(t, err)
	requireRefused(t, add(n, used, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
	require.Equal(t, []string{"add", "remove"}, all.done)
}

// What a join token is made with, and what it is not.
func TestJoinTokensThatAreNotMade(t *testing.T) {
	n, all := startRecruiting(t)
	root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})).access
	sum := sha256.Sum256([]byte(secret))
	create := func(change func(*v1.CreateTokenRequest)) error {
		req := &v1.CreateTokenRequest{Client: "cli", TokenId: "join1", SecretSha256: sum[:], Roles: joinerRole}
		change(req)
		_, err := root.CreateToken(t.Context(), req)
		return err
	}
	for name, c := range map[string]struct {
		field  string
		change func(*v1.CreateTokenRequest)
	}{
		"with another role":      {"roles", func(r *v1.CreateTokenRequest) { r.Roles = append(r.Roles, v1.Role_ROLE_OPERATOR) }},
		"of a namespace":         {"roles", func(r *v1.CreateTokenRequest) { r.Namespace = "team" }},
		"for agents":             {"roles", func(r *v1.CreateTokenRequest) { r.Agents = []string{"a"} }},
		"for too long":           {"expiresIn", func(r *v1.CreateTokenRequest) { r.ExpiresIn = durationpb.New(25 * time.Hour) }},
		"for no node's name":     {"node", func(r *v1.CreateTokenRequest) { r.Node = "a b" }},
		"of an operator, for n4": {"node", func(r *v1.CreateTokenRequest) { r.Roles, r.Node = []v1.Role{v1.Role_ROLE_OPERATOR}, "n4" }},
	} {
		t.Run(name, func(t *testing.T) {
			requireRefused(t, create(c.change), connect.CodeInvalidArgument, fault.ReasonInvalidField, c.field)
		})
	}
	require.NoError(t, create(func(r *v1.CreateTokenRequest) { r.Node = "n4" }))
	token := "gn_$cluster.join1." + secret
	requireRefused(t, add(n, token, "n5"), connect.CodePermissionDenied, fault.ReasonTokenTaken, "")
	require.Empty(t, all.done)
	require.NoError(t, add(n, token, "n4"))
	require.Len(t, all.done, 1)
}

// Of many nodes that use a token at once one is added.
func TestJoinTokensUsedAtOnce(t *testing.T) {
	n, all := startRecruiting(t)
	var guard sync.Mutex
	token := n.token(session.ClusterNamespace, "join1", joinerRole)
	const nodes = 8
	var asked sync.WaitGroup
	added, refused := 0, 0
	for i := range nodes {
		asked.Go(func() {
			err := add(n, token, fmt.Sprint("n", i))
			guard.Lock()
			defer guard.Unlock()
			var e *connect.Error
			switch {
			case err == nil:
				added++
			case errors.As(err, &e) && e.Code() == connect.CodePermissionDenied:
				refused++
			}
		})
	}
	asked.Wait()
	require.Equal(t, 1, added)
	require.Equal(t, nodes-1, refused)
	require.Len(t, all.done, 1)
}

// A change of members that fails leaves the token with the node that asked, which may
// ask again; what became of the request is not said to be nothing.
func TestJoinTokensOfAFailedChange(t *testing.T) {
	n, all := startRecruiting(t)
	token := n.token(session.ClusterNamespace, "join1", joinerRole)
	all.fails = storage.Fail(storage.NotApplied, errors.New("no leader"))
	err := add(n, token, "n4")
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), err)
	requireRefused(t, add(n, token, "n5"), connect.CodePermissionDenied, fault.ReasonTokenTaken, "")
	all.fails = nil
	require.NoError(t, add(n, token, "n4"))
}

// Tokens are bound or ended before members change. Where that change is refused then, the
// error says what stays, and the audit does not say that a node was removed.
func TestRefusedChangesOfMembersSayWhatStays(t *testing.T) {
	n, all := startRecruiting(t)
	root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})).cluster
	token := n.token(session.ClusterNamespace, "join1", joinerRole)
	all.fails = storage.Fail(storage.NotApplied, storage.Invalid(errors.New("no majority")))
	remove := func() error {
		_, err := root.RemoveNode(n.ctx(), &v1.RemoveNodeRequest{Node: "n4"})
		return err
	}
	err := remove()
	requireRefused(t, err, connect.CodeInvalidArgument, fault.ReasonInvalidField, "no majority")
	require.NotContains(t, err.Error(), "token", "there was none")
	requireRefused(t, add(n, token, "n4"), connect.CodeInvalidArgument, fault.ReasonInvalidField, "no majority; the join token is bound to node n4")
	requireRefused(t, remove(), connect.CodeInvalidArgument, fault.ReasonInvalidField, "no majority; the join tokens of n4 were revoked")
	require.Contains(t, n.audit.text(), "node n4 is to be removed")
}

// Whoever guesses cannot fill the audit: a second has a few lines of those who are not
// let in.
func TestFewLinesOfThoseWhoAreNotLetIn(t *testing.T) {
	now := time.Now()
	var guard sync.Mutex
	n, _ := startRecruiting(t, func(c *server.Config) {
		c.Now = func() time.Time { guard.Lock(); defer guard.Unlock(); return now }
	})
	for range 30 {
		requireRefused(t, add(n, "gn_$cluster.none."+secret, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
	}
	require.Len(t, n.joinLines(), 10)
	guard.Lock()
	now = now.Add(time.Second)
	guard.Unlock()
	requireRefused(t, add(n, "gn_$cluster.none."+secret, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
	require.Len(t, n.joinLines(), 11)
	require.Empty(t, n.refusedLines())

	// Those who are not let in to anything else have lines of their own, as few.
	root := n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})
	for range 30 {
		_, err := n.as("gn_$cluster.none."+secret).access.WhoAmI(n.ctx(), &v1.WhoAmIRequest{})
		requireRefused(t, err, connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "")
	}
	require.Len(t, n.joinLines(), 11)
	require.Equal(t, slices.Repeat([]string{"<nil> $cluster /govnode.v1.AccessService/WhoAmI"}, 10), n.refusedLines())
	guard.Lock()
	now = now.Add(time.Second)
	guard.Unlock()
	_, err := n.as(root).counters.Set(n.ctx(), &v1.SetRequest{Key: "k"})
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "")
	_, err = n.as(n.token("team", "work", []v1.Role{v1.Role_ROLE_AGENT}), "Govnode-Namespace", "other").sessions.GetSession(n.ctx(), &v1.GetSessionRequest{SessionId: "s"})
	requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "names another namespace")
	require.Equal(t, []string{"token:root $cluster /govnode.v1.CounterService/Set", "token:work team /govnode.v1.SessionService/GetSession"}, n.refusedLines()[10:])
	require.NotContains(t, n.audit.text(), secret)
}

// refusedLines are the lines of those who were not let in to something else than to make
// a node join.
func (n *node) refusedLines() (all []string) {
	for _, l := range n.audit.all(n.t) {
		if l["event_type"] == "access_refused" {
			all = append(all, fmt.Sprint(l["principal"], " ", l["namespace"], " ", l["method"]))
		}
	}
	return all
}

// A token that was revoked, or has run out, lets nobody in at a node that does not know of
// it yet, and that is in the audit as well.
func TestJoinTokensThatEndedElsewhere(t *testing.T) {
	store, all := &behindStore{Store: storage.NewMemory(nil), ns: session.ClusterNamespace}, &recruiting{}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	all.set(server.Peer{Node: "n1"})
	n := startOn(t, store, func(c *server.Config) { c.Authentication, c.Cluster = true, all })
	token := n.token(session.ClusterNamespace, "join1", joinerRole)
	require.NoError(t, add(n, token, "n4"))
	store.keep(t)
	n.revoke(session.ClusterNamespace, "join1")
	requireRefused(t, add(n, token, "n4"), connect.CodeUnauthenticated, fault.ReasonUnauthenticated, "not known")
	require.Equal(t, []string{"add"}, all.done)
	require.Equal(t, []string{"token_used token:join1", "node_added token:join1", "node_refused token:join1"}, n.joinLines())
}

// Where there are no members a token is not used up.
func TestJoinTokensWithoutMembers(t *testing.T) {
	n := startAsking(t)
	token := n.token(session.ClusterNamespace, "join1", joinerRole)
	requireRefused(t, add(n, token, "n4"), connect.CodeFailedPrecondition, fault.ReasonNoMembers, "memory has no members")
	found, err := n.store.Get(t.Context(), session.AccessKey(session.ClusterNamespace), storage.Latest)
	require.NoError(t, err)
	require.Zero(t, found.Record.(*session.Access).FindToken("join1").Used)
}

// The change of the state has its link in a chain, as others of $cluster have.
func TestUsesOfTokensAreChained(t *testing.T) {
	key, ok := session.ChainOf(&session.UseToken{NS: session.ClusterNamespace, By: session.Maker{Client: "join"}})
	require.True(t, ok)
	require.Equal(t, session.NamespaceKey(session.ClusterNamespace), key)
	require.Equal(t, "joiner", access.RoleName(v1.Role_ROLE_JOINER))
}

// A change of members whose outcome nobody knows may have been made, and the audit says so.
// One that was not made has no line.
func TestTheAuditOfChangesOfMembersThatMayHaveBeenMade(t *testing.T) {
	for outcome, told := range map[storage.Outcome][]string{
		storage.Unknown:    {"node_added n2 unknown", "node_removed n2 unknown", "leadership_transferred n2 unknown"},
		storage.NotApplied: nil,
		storage.Applied:    {"node_added n2 <nil>", "node_removed n2 <nil>", "leadership_transferred n2 <nil>"},
	} {
		n, all := startRecruiting(t)
		root := n.as(n.token(session.ClusterNamespace, "root", []v1.Role{v1.Role_ROLE_OPERATOR})).cluster
		if outcome != storage.Applied {
			all.fails = storage.Fail(outcome, errLeaderGone)
		}
		_, add := root.AddNode(n.ctx(), &v1.AddNodeRequest{Node: "n2", Address: "127.0.0.1:1"})
		_, remove := root.RemoveNode(n.ctx(), &v1.RemoveNodeRequest{Node: "n2"})
		_, transfer := root.TransferLeadership(n.ctx(), &v1.TransferLeadershipRequest{Node: "n2"})
		for _, err := range []error{add, remove, transfer} {
			require.Equal(t, outcome == storage.Applied, err == nil)
		}
		lines := func() (lines []string) {
			for _, l := range n.audit.all(t) {
				switch e := l["event_type"]; e {
				case "node_added", "node_removed", "leadership_transferred":
					lines = append(lines, fmt.Sprint(e, " ", l["name"], " ", l["outcome"]))
				}
			}
			return lines
		}
		eventually(t, "there are lines", func() bool { return len(lines()) == len(told) })
		require.Equal(t, told, lines())
	}
}
