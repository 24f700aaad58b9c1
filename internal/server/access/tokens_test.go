package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
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

// A reader counts what is read of a store, and holds late reads up for a while.
type reader struct {
	storage.Store
	mu    sync.Mutex
	reads []string
	slow  time.Duration // behind what the store has answered
	shut  error         // instead of an answer
}

func (r *reader) Get(ctx context.Context, k session.Key, how storage.Read) (storage.Found, error) {
	r.mu.Lock()
	r.reads = append(r.reads, fmt.Sprint(k, " ", how))
	r.mu.Unlock()
	if r.shut != nil {
		return storage.Found{}, storage.Unread(r.shut)
	}
	found, err := r.Store.Get(ctx, k, how)
	if how == storage.Latest && r.slow > 0 {
		select {
		case <-time.After(r.slow):
		case <-ctx.Done():
			return storage.Found{}, ctx.Err()
		}
	}
	return found, err
}

// readable is an Authenticator over a reader, in virtual time.
func readable(t *testing.T) (*Authenticator, *reader) {
	store := &reader{Store: storage.NewMemory(nil)}
	a, err := New(Config{
		Store: store, Required: true, Now: time.Now,
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"reason"}),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		require.NoError(t, store.Close())
	})
	return a, store
}

const aSecret = "a-secret-of-enough-letters-00000"

func put(t *testing.T, store storage.Store, id string, expires int64) {
	x := session.Token{ID: id, Hash: sha256.Sum256([]byte(aSecret)), Roles: 2, Expires: expires}
	require.NoError(t, store.Apply(t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: x})[0].Failure())
}

// While nothing can be read, as in a quarantine over Redis, who comes by the local socket is
// let in all the same, so that he can restore; who may have been revoked or denied is not.
func TestTheLocalSocketNeedsNoRecord(t *testing.T) {
	a, store := readable(t)
	put(t, store, "good", 0)
	token := http.Header{AuthorizationHeader: {"Bearer gn_team.good." + aSecret}}
	_, err := a.identify(t.Context(), token)
	require.NoError(t, err)
	restore := connect.Spec{Procedure: "/govnode.v1.ClusterService/Restore"}
	local := WithLocal(t.Context(), 7)
	store.shut = errors.New("quarantine")
	ctx, err := a.Gate(local, restore, connect.Peer{}, http.Header{})
	require.NoError(t, err)
	p := From(ctx)
	require.Equal(t, "local:7", p.Name)
	_, err = a.AsOfNow(ctx, p)
	require.NoError(t, err)
	require.Zero(t, p.Authority(session.ClusterNamespace).Epoch, "of no record")

	_, err = a.Gate(t.Context(), restore, connect.Peer{}, token)
	require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason)
	_, err = a.channel(t.Context(), &Principal{Name: "cert:ann", denials: []string{"cert:ann"}})
	require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason)
}

// Whatever is wrong with a token, the node does the same to find it out, at every one of
// several tries: how long it takes does not tell which ids there are.
func TestUnknownIDsTakeNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, store := readable(t)
		put(t, store, "good", 0)
		put(t, store, "past", time.Now().Add(-time.Minute).UnixMilli())
		put(t, store, "gone", 0)
		require.NoError(t, store.Apply(t.Context(), &session.RevokeToken{NS: "team", By: session.Maker{Client: "t"}, ID: "gone"})[0].Failure())
		tries := func(token string) (all [][]string) {
			for range 3 {
				time.Sleep(time.Second)
				for range 2 {
					store.reads = nil
					begin := time.Now()
					_, err := a.token(t.Context(), token)
					require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, token)
					all = append(all, append(store.reads, time.Since(begin).String()))
				}
			}
			return all
		}
		want := tries("gn_team.none." + aSecret)
		require.Len(t, want[0], 3, "what this node knows, and what stands now")
		for _, token := range []string{"gn_team.good.another-secret-of-enough-letters", "gn_team.past." + aSecret, "gn_team.gone." + aSecret} {
			require.Equal(t, want, tries(token), token)
		}
	})
}

// Who asks for a token that this node does not know waits for no longer than he wants to,
// whatever the reads of others wait for.
func TestLateReadsHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, store := readable(t)
		store.slow = time.Hour // nobody leads
		begin := time.Now()
		var asking sync.WaitGroup
		for i := range 20 {
			asking.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := a.token(ctx, fmt.Sprintf("gn_team.token%d.%s", i, aSecret))
				require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason)
			})
		}
		asking.Wait()
		require.Equal(t, time.Second, time.Since(begin))
		// Without a deadline it ends too, and what is there by then is found.
		_, err := a.token(t.Context(), "gn_team.none."+aSecret)
		require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason)
		require.LessOrEqual(t, time.Since(begin), 3*laterFor)
	})
}

// A token that was made before somebody shows it is found, though a read is under way that
// began before it was made; and however many ask, the store is read ten times a second.
func TestLateReadsMissNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, store := readable(t)
		put(t, store, "other", 0)
		a.Store = &behind{reader: store}
		store.slow = 20 * time.Millisecond
		var asking sync.WaitGroup
		var guessed atomic.Int64
		for i := range 10 {
			asking.Go(func() {
				for range 20 {
					_, err := a.token(t.Context(), fmt.Sprintf("gn_team.guess%d.%s", i, aSecret))
					require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason)
					guessed.Add(1)
				}
			})
		}
		begin := time.Now()
		for i := range 50 {
			id := fmt.Sprint("made", i)
			put(t, store, id, 0)
			p, err := a.token(t.Context(), "gn_team."+id+"."+aSecret)
			require.NoError(t, err)
			require.Equal(t, "token:"+id, p.Name)
			time.Sleep(7 * time.Millisecond)
		}
		asking.Wait()
		late := 0
		store.mu.Lock()
		defer store.mu.Unlock()
		for _, r := range store.reads {
			if strings.HasSuffix(r, fmt.Sprint(storage.Latest)) {
				late++
			}
		}
		require.LessOrEqual(t, late, int(time.Since(begin)/laterPause)+1)
		require.EqualValues(t, 200, guessed.Load())
	})
}

// behind is a node that does not hear of changes.
type behind struct{ *reader }

func (b *behind) Get(ctx context.Context, k session.Key, how storage.Read) (storage.Found, error) {
	if how == storage.Nearby {
		return storage.Found{}, nil
	}
	return b.reader.Get(ctx, k, how)
}
