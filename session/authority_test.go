package session_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

func putToken(id string) *session.PutToken {
	return &session.PutToken{NS: ns, By: session.Maker{Client: "op"}, Token: session.Token{ID: id, Hash: session.Digest{1}, Roles: 2}}
}

// What was judged by an older epoch changes nothing, counts nothing, and is not
// remembered: the same command under the present one does what it would have done.
func TestStaleAuthorityChangesNothing(t *testing.T) {
	authority := func(epoch uint64) *session.Authority {
		return &session.Authority{Principal: session.Principal{7}, Epoch: epoch}
	}
	for _, c := range []session.Command{
		&session.Open{NS: ns, Session: "new", Agent: "a", Policy: "p1", Digest: sessiontest.Digest(1), IdleTTL: time.Hour},
		&session.Acquire{NS: ns, Client: "c", Slot: "s", Pool: "q1", Weight: 1, TTL: time.Minute},
		&session.Increment{NS: ns, By: session.Maker{Client: "c", Request: "r"}, Key: "k", Amount: 1},
		&session.Signal{NS: ns, By: session.Maker{Client: "c", Request: "r"}, Target: session.Target{Scope: session.Everything}, Signal: session.Stop},
		putToken("other"),
	} {
		t.Run(fmt.Sprintf("%T", c), func(t *testing.T) {
			s := session.New()
			s.ApplyAll(0, sessiontest.Setup())
			s.ApplyAll(0, []session.Command{&session.PutPool{NS: ns, By: session.Maker{Client: "x"}, Pool: "q1", Slots: 1}, putToken("t"), putToken("u")})
			before := sessiontest.Dump(s)
			who := c.(interface{ Authorize(*session.Authority) })
			for _, epoch := range []uint64{0, 1, 3} {
				who.Authorize(authority(epoch))
				require.NoError(t, session.Validate(c))
				r := s.ApplyAll(time.Second, []session.Command{c})[0]
				require.Equal(t, session.Result{Code: session.StaleAccess}, r)
			}
			require.Equal(t, before, sessiontest.Dump(s))
			who.Authorize(authority(2))
			require.False(t, s.ApplyAll(time.Second, []session.Command{c})[0].Code.Failure())
		})
	}
}

// A namespace's epoch is its own.
func TestEpochOfAnotherNamespace(t *testing.T) {
	s := session.New()
	s.ApplyAll(0, []session.Command{putToken("t")})
	other := &session.Increment{NS: "other", By: session.Maker{Client: "c"}, Key: "k", Amount: 1}
	other.Authorize(&session.Authority{Epoch: 0})
	require.Equal(t, session.Done, s.ApplyAll(0, []session.Command{other})[0].Code)
}

// A slot is that of who took it: others can neither keep it nor give it back nor
// take over its wait, and without authentication it is anybody's who knows its id.
func TestSlotsOfPrincipals(t *testing.T) {
	s := session.New()
	s.ApplyAll(0, []session.Command{&session.PutPool{NS: ns, By: session.Maker{Client: "x"}, Pool: "q", Slots: 1, Queue: 5}})
	do := func(who byte, c session.Command) session.Result {
		t.Helper()
		if who != 0 {
			c.(interface{ Authorize(*session.Authority) }).Authorize(&session.Authority{Principal: session.Principal{who}})
		}
		return s.ApplyAll(0, []session.Command{c})[0]
	}
	acquire := func(slot string) *session.Acquire {
		return &session.Acquire{NS: ns, Client: "c", Slot: slot, Pool: "q", Weight: 1, TTL: time.Minute, Wait: time.Minute}
	}
	got := do(1, acquire("a"))
	require.Equal(t, session.Admitted, got.Code)
	token := got.Grants[0].Token
	require.Equal(t, session.Queued, do(1, acquire("b")).Code)
	for _, who := range []byte{0, 2} {
		require.Equal(t, session.IDReused, do(who, acquire("a")).Code)
		require.Equal(t, session.IDReused, do(who, acquire("b")).Code)
		require.Equal(t, session.Fenced, do(who, &session.Renew{NS: ns, Client: "c", ID: "a", Pools: []string{"q"}, Token: token, TTL: time.Minute}).Code)
		require.Equal(t, session.Fenced, do(who, &session.Renew{NS: ns, Client: "c", ID: "b", Pools: []string{"q"}, TTL: time.Minute}).Code)
		require.Equal(t, session.Fenced, do(who, &session.Release{NS: ns, Client: "c", Slot: "a", Pool: "q", Token: token}).Code)
		require.Equal(t, session.Fenced, do(who, &session.Cancel{NS: ns, Client: "c", Call: "b", Pools: []string{"q"}}).Code)
	}
	require.Equal(t, session.Renewed, do(1, &session.Renew{NS: ns, Client: "c", ID: "a", Pools: []string{"q"}, Token: token, TTL: time.Minute}).Code)
	require.Equal(t, session.WaitCancelled, do(1, &session.Cancel{NS: ns, Client: "c", Call: "b", Pools: []string{"q"}}).Code)
	require.Equal(t, session.Released, do(1, &session.Release{NS: ns, Client: "c", Slot: "a", Pool: "q", Token: token}).Code)

	token = do(0, acquire("d")).Grants[0].Token
	require.Equal(t, session.Released, do(2, &session.Release{NS: ns, Client: "c", Slot: "d", Pool: "q", Token: token}).Code)
}

// Expired tokens make room for new ones; no others do.
func TestTokensThatExpired(t *testing.T) {
	s := session.New()
	for i := range session.MaxTokens {
		c := putToken(fmt.Sprintf("t%04d", i))
		if c.Token.Expires = 0; i == 17 {
			c.Token.Expires = 100
		}
		require.Equal(t, session.Done, s.ApplyAll(0, []session.Command{c})[0].Code)
	}
	late := putToken("late")
	late.Before = 99
	before := sessiontest.Dump(s)
	r := s.ApplyAll(0, []session.Command{late})[0]
	require.Equal(t, session.TooManyTokens, r.Code)
	require.EqualValues(t, session.MaxTokens, r.Limit)
	require.Equal(t, before, sessiontest.Dump(s))
	late.Before = 100
	require.Equal(t, session.Done, s.ApplyAll(0, []session.Command{late})[0].Code)
	x := s.Get(session.AccessKey(ns)).(*session.Access)
	require.Len(t, x.Tokens, session.MaxTokens)
	require.Nil(t, x.FindToken("t0017"))
	require.NotNil(t, x.FindToken("late"))
	require.EqualValues(t, session.MaxTokens+1, x.Epoch)
}

// Whatever the tokens and denied subjects of a namespace are, a snapshot has room for them:
// else those of one namespace keep a cluster from saving its state.
func TestASnapshotHasRoomForAnyAccess(t *testing.T) {
	s := session.New()
	do := func(c session.Command) session.Code {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(0, []session.Command{c})[0].Code
	}
	long := func(n, i int) string { return fmt.Sprintf("%0*d", n, i) }
	patterns := make([]string, session.MaxPatterns)
	for i := range patterns {
		patterns[i] = long(session.MaxID, i)
	}
	full, n := session.Done, 0
	for ; full == session.Done && n < session.MaxTokens; n++ {
		c := putToken(long(session.MaxID, n))
		c.Token.By, c.Token.Label = long(session.MaxSubject, 0), long(session.MaxReason, 0)
		c.Token.Agents, c.Token.Policies = patterns, patterns
		full = do(c)
	}
	require.Equal(t, session.TooManyTokens, full, "after %d", n)
	for i := range session.MaxDenied {
		require.Equal(t, session.Done, do(&session.Deny{NS: ns, By: session.Maker{Client: "op"}, Denied: session.DeniedSubject{Subject: long(session.MaxSubject, i), Reason: long(session.MaxReason, 0), At: 1}}))
	}
	more := &session.Deny{NS: ns, By: session.Maker{Client: "op"}, Denied: session.DeniedSubject{Subject: "more"}}
	require.Equal(t, session.Result{Code: session.TooManyTokens, Limit: session.MaxDenied}, s.ApplyAll(0, []session.Command{more})[0])
	more.Denied.Subject = long(session.MaxSubject, 0)
	require.Equal(t, session.Result{}, s.ApplyAll(0, []session.Command{more})[0], "it is one of them")
	require.Len(t, s.Get(session.AccessKey(ns)).(*session.Access).Denied, session.MaxDenied)
	var b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&b, s.Snapshot()))
	again, err := session.ReadSnapshot(&b)
	require.NoError(t, err)
	require.Equal(t, s.Get(session.AccessKey(ns)), again.Get(session.AccessKey(ns)))
	require.Less(t, len(session.EncodeRecord(s.Get(session.AccessKey(ns)))), 7<<20, "it may come behind a chunk that is nearly full")

	// Small ones are as many as ever.
	for i := range session.MaxTokens {
		c := putToken(fmt.Sprint(i))
		c.NS, c.Token.Agents = "small", []string{"bot-*", "worker-*"}
		require.Equal(t, session.Done, do(c))
	}
}

// No epoch comes back with a restore, and who was kept out since stays out.
func TestRestoreKeepsAccess(t *testing.T) {
	s := session.New()
	s.ApplyAll(0, []session.Command{putToken("t"), putToken("u")})
	old := s.Get(session.AccessKey(ns)).(*session.Access)
	revoke := &session.RevokeToken{NS: ns, By: session.Maker{Client: "op"}, ID: "t"}
	require.EqualValues(t, 1, s.ApplyAll(0, []session.Command{revoke})[0].Value)

	restored := session.New()
	restored.Put(session.AccessKey(ns), old)
	restored.Put(session.AccessKey("elsewhere"), old)
	restored.KeepAccess(s)
	restored.ApplyAll(0, []session.Command{&session.Restore{}})
	x := restored.Get(session.AccessKey(ns)).(*session.Access)
	require.Nil(t, x.FindToken("t"))
	require.NotNil(t, x.FindToken("u"))
	require.Greater(t, x.Epoch, uint64(1)<<32)
	require.Equal(t, uint64(1)<<32+3, x.Epoch)
	restored.ApplyAll(0, []session.Command{&session.Restore{}})
	require.Equal(t, uint64(2)<<32+3, session.EpochOf(restored.Get(session.AccessKey(ns))))
	y := restored.Get(session.AccessKey("elsewhere")).(*session.Access)
	require.NotNil(t, y.FindToken("t"))
	require.Greater(t, y.Epoch, uint64(1)<<32)
}

// A record that is lost and made anew, as over a Redis that was emptied, comes to no epoch
// that it has had: nodes know tokens by them that are not there any more.
func TestNoEpochComesBackWithALoss(t *testing.T) {
	s := session.New()
	s.ApplyAll(0, []session.Command{putToken("t")})
	was := session.EpochOf(s.Get(session.AccessKey(ns)))
	s.ApplyAll(0, []session.Command{&session.Restore{}})
	restored := session.EpochOf(s.Get(session.AccessKey(ns)))
	require.Greater(t, restored, was)

	anew := session.New()
	anew.SetClock(0, s.Generation()+1)
	anew.ApplyAll(0, []session.Command{putToken("u")})
	require.Greater(t, session.EpochOf(anew.Get(session.AccessKey(ns))), restored)
	anew.ApplyAll(0, []session.Command{&session.RevokeToken{NS: ns, By: session.Maker{Client: "op"}, ID: "u"}})
	require.Equal(t, uint64(2)<<32+2, session.EpochOf(anew.Get(session.AccessKey(ns))))
}

// The first node that uses a token has it: it may say so again, and no other may, also
// where the token was made for it alone. What has run out, or is not there, is nobody's.
func TestTokensAreUsedByOneNode(t *testing.T) {
	use := func(id, node string, at int64) *session.UseToken {
		return &session.UseToken{NS: session.ClusterNamespace, By: session.Maker{Client: "join"}, ID: id, Node: node, At: at}
	}
	s := session.New()
	do := func(c session.Command) session.Result {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(0, []session.Command{c})[0]
	}
	epoch := func() uint64 { return session.EpochOf(s.Get(session.AccessKey(session.ClusterNamespace))) }
	for _, token := range []session.Token{{ID: "any"}, {ID: "bound", Node: "n4"}, {ID: "gone"}} {
		token.Hash, token.Roles, token.Expires = session.Digest{1}, 1<<7, 100
		require.Equal(t, session.Done, do(&session.PutToken{NS: session.ClusterNamespace, By: session.Maker{Client: "op"}, Token: token}).Code)
	}
	require.Equal(t, session.Done, do(&session.RevokeToken{NS: session.ClusterNamespace, By: session.Maker{Client: "op"}, ID: "gone"}).Code)
	began := epoch()
	require.Equal(t, session.NotFound, do(use("gone", "n4", 1)).Code)
	require.Equal(t, session.NotFound, do(use("any", "n4", 100)).Code, "it ends then")
	require.Equal(t, session.TokenTaken, do(use("bound", "n5", 1)).Code)
	require.Equal(t, began, epoch(), "refusals change nothing")
	for _, id := range []string{"any", "bound"} {
		require.Equal(t, session.Result{Value: 1}, do(use(id, "n4", 7)))
		used := s.Get(session.AccessKey(session.ClusterNamespace)).(*session.Access).FindToken(id)
		require.Equal(t, "n4", used.Node)
		require.EqualValues(t, 7, used.Used)
		now := epoch()
		require.Equal(t, session.Result{}, do(use(id, "n4", 99)), "the same node again")
		require.Equal(t, session.TokenTaken, do(use(id, "n5", 8)).Code)
		require.Equal(t, session.NotFound, do(use(id, "n4", 100)).Code)
		require.Equal(t, now, epoch())
		require.Equal(t, used, s.Get(session.AccessKey(session.ClusterNamespace)).(*session.Access).FindToken(id))
	}

	require.Equal(t, began+2, epoch())

	// Those of a node end in one step, used or not.
	for _, token := range []session.Token{{ID: "next", Node: "n4"}, {ID: "other", Node: "n5"}, {ID: "new"}} {
		token.Hash, token.Roles, token.Expires = session.Digest{1}, 1<<7, 100
		require.Equal(t, session.Done, do(&session.PutToken{NS: session.ClusterNamespace, By: session.Maker{Client: "op"}, Token: token}).Code)
	}
	began = epoch()
	ofNode := &session.RevokeToken{NS: session.ClusterNamespace, By: session.Maker{Client: "join"}, Node: "n4"}
	require.Equal(t, session.Result{Value: 3}, do(ofNode))
	require.Equal(t, session.Result{}, do(ofNode))
	require.Equal(t, began+1, epoch())
	x := s.Get(session.AccessKey(session.ClusterNamespace)).(*session.Access)
	for _, id := range []string{"any", "bound", "next"} {
		require.Nil(t, x.FindToken(id), id)
	}
	require.NotNil(t, x.FindToken("other"))
	require.NotNil(t, x.FindToken("new"), "it is nobody's yet")
}

// Each change of who may do what raises the epoch, and is told; what is so already changes
// nothing. No record that was read changes, and what is not changed stays.
func TestChangesOfAccess(t *testing.T) {
	s := session.New()
	s.Put(session.AccessKey(ns), &session.Access{
		Epoch:  7,
		Tokens: []session.Token{{ID: "a", Hash: session.Digest{1}, Roles: 2}, {ID: "c", Hash: session.Digest{1}, Roles: 2}},
		Denied: []session.DeniedSubject{{Subject: "cert:b"}},
		Key:    session.Digest{9},
	})
	access := func() *session.Access { return s.Get(session.AccessKey(ns)).(*session.Access) }
	denied := func(subject string) session.Command {
		return &session.Deny{NS: ns, By: session.Maker{Client: "op"}, Denied: session.DeniedSubject{Subject: subject, Reason: "lost", At: 5}}
	}
	allowed := func(subject string) session.Command {
		return &session.Allow{NS: ns, By: session.Maker{Client: "op"}, Subject: subject}
	}
	revoked := func(id string) session.Command {
		return &session.RevokeToken{NS: ns, By: session.Maker{Client: "op"}, ID: id}
	}
	quotas := func(n int64) session.Command {
		return &session.PutQuotas{NS: ns, By: session.Maker{Client: "op"}, Quotas: session.Quotas{Sessions: n, Operations: 2}}
	}
	key := func(d session.Digest) session.Command {
		return &session.KeepKey{NS: ns, By: session.Maker{Client: "op"}, Key: d}
	}
	other := putToken("a")
	other.Token.Roles = 4
	subjects := []string{"cert:b"}
	for i, tt := range []struct {
		c       session.Command
		want    session.Result
		changes bool
		denied  []string
	}{
		{denied("cert:c"), session.Result{Value: 1}, true, []string{"cert:b", "cert:c"}},
		{denied("cert:a"), session.Result{Value: 1}, true, []string{"cert:a", "cert:b", "cert:c"}},
		{denied("cert:b"), session.Result{}, false, []string{"cert:a", "cert:b", "cert:c"}},
		{allowed("cert:b"), session.Result{Value: 1}, true, []string{"cert:a", "cert:c"}},
		{allowed("cert:b"), session.Result{}, false, []string{"cert:a", "cert:c"}},
		{allowed("cert:a"), session.Result{Value: 1}, true, []string{"cert:c"}},
		{allowed("cert:c"), session.Result{Value: 1}, true, nil},
		{putToken("b"), session.Result{}, true, nil},
		{other, session.Result{Code: session.IDReused}, false, nil},
		{revoked("none"), session.Result{}, false, nil},
		{revoked("b"), session.Result{Value: 1}, true, nil},
		{quotas(1), session.Result{}, true, nil},
		{quotas(1), session.Result{}, false, nil},
		{quotas(3), session.Result{}, true, nil},
		{key(session.Digest{8}), session.Result{}, false, nil},
	} {
		was := access()
		before, epoch := session.EncodeRecord(was), was.Epoch
		require.NoError(t, session.Validate(tt.c))
		require.Equal(t, tt.want, s.ApplyAll(0, []session.Command{tt.c})[0], "%d", i)
		require.Equal(t, before, session.EncodeRecord(was), "%d: others may hold it", i)
		x := access()
		if tt.changes {
			epoch++
		}
		require.Equal(t, epoch, x.Epoch, "%d", i)
		for _, subject := range append(subjects, tt.denied...) {
			require.Equal(t, slices.Contains(tt.denied, subject), x.Denies(subject), "%d: %s", i, subject)
		}
		subjects = append(subjects, tt.denied...)
		require.Len(t, x.Denied, len(tt.denied), "%d", i)
		require.NotNil(t, x.FindToken("a"), "%d", i)
		require.EqualValues(t, 2, x.FindToken("a").Roles, "%d", i)
		require.NotNil(t, x.FindToken("c"), "%d", i)
		require.Equal(t, session.Digest{9}, x.Key, "%d", i)
	}
	require.Equal(t, session.Quotas{Sessions: 3, Operations: 2}, access().Quotas)
	var none *session.Access
	require.False(t, none.Denies("cert:a"))
	require.Nil(t, none.FindToken("a"))
}

// The first key of digests stays, and who may do what is judged as before.
func TestTheFirstKeyStays(t *testing.T) {
	s := session.New()
	keep := func(d session.Digest) {
		s.ApplyAll(0, []session.Command{&session.KeepKey{NS: ns, By: session.Maker{Client: "op"}, Key: d}})
	}
	s.ApplyAll(0, []session.Command{putToken("t")})
	for _, d := range []session.Digest{{1}, {2}} {
		keep(d)
		x := s.Get(session.AccessKey(ns)).(*session.Access)
		require.Equal(t, session.Digest{1}, x.Key)
		require.EqualValues(t, 1, x.Epoch)
		require.NotNil(t, x.FindToken("t"))
	}
}

// What a node asks for itself is not held to an epoch.
func TestOnBehalf(t *testing.T) {
	s := session.New()
	s.ApplyAll(0, []session.Command{putToken("t")})
	for behalf, want := range map[bool]session.Code{false: session.StaleAccess, true: session.Done} {
		c := &session.Increment{NS: ns, By: session.Maker{Client: "c"}, Key: "k", Amount: 1}
		c.Authorize(&session.Authority{Epoch: 9, Behalf: behalf})
		require.Equal(t, want, s.ApplyAll(0, []session.Command{c})[0].Code)
	}
}
