package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The whole hash of a secret is compared: one that is another in any byte is another
// secret.
func TestHashesAreComparedWhole(t *testing.T) {
	a, store := newAuthenticator(t, nil)
	const secret = "a-secret-of-enough-letters-00000"
	good := session.Digest(sha256.Sum256([]byte(secret)))
	put := func(id string, hash session.Digest) {
		answer := store.Apply(t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: session.Token{ID: id, Hash: hash, Roles: 2}})[0]
		require.NoError(t, answer.Failure())
		require.Equal(t, session.Done, answer.Result.Code)
	}
	put("good", good)
	_, err := a.token(t.Context(), "gn_team.good."+secret)
	require.NoError(t, err)
	for _, i := range []int{0, 1, 15, 31} {
		other := good
		other[i] ^= 1
		id := fmt.Sprint("bad", i)
		put(id, other)
		_, err := a.token(t.Context(), "gn_team."+id+"."+secret)
		require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, "byte %d", i)
	}
}

// A token that was used and verified before it expired is let in no more behind that, and
// who is in for long is put out.
func TestKnownTokensExpire(t *testing.T) {
	store := storage.NewMemory(nil)
	begin := time.Now()
	var ahead atomic.Int64
	a, err := New(Config{
		Store: store, Required: true, Now: func() time.Time { return begin.Add(time.Duration(ahead.Load())) },
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"reason"}),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		require.NoError(t, store.Close())
	})
	const secret = "a-secret-of-enough-letters-00000"
	answer := store.Apply(t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: session.Token{
		ID: "short", Hash: sha256.Sum256([]byte(secret)), Roles: 2, Expires: begin.Add(time.Minute).UnixMilli(),
	}})[0]
	require.NoError(t, answer.Failure())
	var p *Principal
	for range 2 {
		p, err = a.token(t.Context(), "gn_team.short."+secret)
		require.NoError(t, err)
	}
	guard, stop := a.Guard(With(t.Context(), p))
	defer stop()
	require.NoError(t, a.AfterRead(t.Context(), p))
	ahead.Store(int64(time.Minute))
	_, err = a.token(t.Context(), "gn_team.short."+secret)
	require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason)
	_, err = a.Nearby(t.Context(), p)
	require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason)
	select {
	case <-guard.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("who is in stays in")
	}
}

// A token that is revoked and made anew, with the same secret and other rights, is no
// more the one by which something was checked.
func TestTokensThatAreMadeAnewAreOthers(t *testing.T) {
	a, store := newAuthenticator(t, nil)
	const secret = "a-secret-of-enough-letters-00000"
	made := session.Token{ID: "same", Hash: sha256.Sum256([]byte(secret)), Roles: 2, Agents: []string{"bot"}, Policies: []string{"p"}}
	put := func(x session.Token) {
		require.NoError(t, store.Apply(t.Context(), &session.RevokeToken{NS: "team", By: session.Maker{Client: "t"}, ID: "same"})[0].Failure())
		require.NoError(t, store.Apply(t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: x})[0].Failure())
	}
	put(made)
	p, err := a.token(t.Context(), "gn_team.same."+secret)
	require.NoError(t, err)
	put(made)
	next, err := a.Again(t.Context(), p)
	require.NoError(t, err)
	require.NotEqual(t, p.authority.Epoch, next.authority.Epoch)
	for what, change := range map[string]func(x *session.Token){
		"roles": func(x *session.Token) { x.Roles = 4 }, "agents": func(x *session.Token) { x.Agents = nil }, "policies": func(x *session.Token) { x.Policies = []string{"q"} },
		"secret": func(x *session.Token) { x.Hash[31] ^= 1 }, "environment": func(x *session.Token) { x.Environment = "staging" },
	} {
		x := made
		change(&x)
		put(x)
		_, err := a.Again(t.Context(), p)
		require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, what)
	}
}

// A reader counts what is read of a store.
type reader struct {
	storage.Store
	reads []string
}

func (r *reader) Get(ctx context.Context, k session.Key, how storage.Read) (storage.Found, error) {
	r.reads = append(r.reads, fmt.Sprint(k, " ", how))
	return r.Store.Get(ctx, k, how)
}

// Whatever is wrong with a token, the node does the same to find it out, at every one of
// several tries: how long it takes does not tell which ids there are.
func TestUnknownIDsTakeNoLonger(t *testing.T) {
	store, at := &reader{Store: storage.NewMemory(nil)}, time.Now()
	a, err := New(Config{
		Store: store, Required: true, Now: func() time.Time { return at },
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"reason"}),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		require.NoError(t, store.Close())
	})
	const secret = "a-secret-of-enough-letters-00000"
	put := func(id string, expires int64) {
		x := session.Token{ID: id, Hash: sha256.Sum256([]byte(secret)), Roles: 2, Expires: expires}
		require.NoError(t, store.Apply(t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: x})[0].Failure())
	}
	put("good", 0)
	put("past", at.Add(-time.Minute).UnixMilli())
	put("gone", 0)
	require.NoError(t, store.Apply(t.Context(), &session.RevokeToken{NS: "team", By: session.Maker{Client: "t"}, ID: "gone"})[0].Failure())
	tries := func(token string) (all [][]string) {
		for range 3 {
			at = at.Add(time.Second)
			for range 2 {
				store.reads = nil
				_, err := a.token(t.Context(), token)
				require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, token)
				all = append(all, store.reads)
			}
		}
		return all
	}
	want := tries("gn_team.none." + secret)
	require.Len(t, want[0], 2, "what this node knows, and what stands now")
	for _, token := range []string{"gn_team.good.another-secret-of-enough-letters", "gn_team.past." + secret, "gn_team.gone." + secret} {
		require.Equal(t, want, tries(token), token)
	}
}
