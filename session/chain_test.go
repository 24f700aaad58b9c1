package session

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Auditors compute the heads of chains by themselves, so that what is hashed never
// changes.
func TestWhatIsHashedOfAChain(t *testing.T) {
	of := func(parts ...string) Digest { return sha256.Sum256([]byte(strings.Join(parts, ""))) }
	audited := Digest{7, 8}
	first := (*Chain)(nil).Next(3, Denied, audited)
	head := of("govnode.link.1\x00", strings.Repeat("\x00", 32), "\x00\x00\x00\x00\x00\x00\x00\x01", "\x00\x00\x00\x03", string([]byte{byte(Denied)}), string(audited[:]))
	require.Equal(t, &Chain{N: 1, Generation: 3, Head: head}, first)
	second := first.Next(4, Admitted, Digest{})
	next := of("govnode.link.1\x00", string(head[:]), "\x00\x00\x00\x00\x00\x00\x00\x02", "\x00\x00\x00\x04", string([]byte{byte(Admitted)}), strings.Repeat("\x00", 32))
	require.Equal(t, &Chain{N: 2, Generation: 4, Head: next}, second)
	require.Equal(t, head, first.Head, "which others may hold")

	fold := Fold{Key: SessionKey("ns", "s"), Chain: *second, Into: *first}
	require.Equal(t, of("govnode.fold.1\x00", string(fold.Key), "\x00", "\x00\x00\x00\x00\x00\x00\x00\x02", "\x00\x00\x00\x04", string(next[:])), fold.Audited())
}

// Each change has a link in the chain of its session, its client or its namespace; what
// changed nothing, or was not to be audited, has none.
func TestWhatHasALink(t *testing.T) {
	s := NewPartial()
	by, n := Maker{Client: "w"}, byte(0)
	do := func(c Command, audited bool) *Result {
		n++
		auth := &Authority{Epoch: EpochOf(s.Get(AccessKey("ns")))}
		if audited {
			auth.Audited = Digest{n}
		}
		c.(interface{ Authorize(*Authority) }).Authorize(auth)
		return &s.ApplyAll(0, []Command{c})[0]
	}
	links := func(want uint64, r *Result) {
		t.Helper()
		if want == 0 {
			require.Nil(t, r.Chain, "%+v", r)
			return
		}
		require.NotNil(t, r.Chain, "%+v", r)
		require.Equal(t, want, r.Chain.N)
	}
	pool := func(id string, slots int32) *PutPool {
		return &PutPool{NS: "ns", By: Maker{Client: "w", Request: id}, Pool: "q", Slots: slots}
	}
	limits := Limits{MaxConcurrent: 1, MaxToolCalls: 1, MaxAttempts: 9, MaxTokens: 1, Timeout: time.Hour, Checkpoint: 1}
	links(1, do(&PutPolicy{NS: "ns", By: by, Name: "p", Digest: Digest{1}, Tree: []byte("x"), Limits: limits}, true))
	links(1, do(pool("a", 1), true)) // of its client
	links(0, do(pool("a", 1), true)) // again
	links(0, do(pool("b", 1), false))
	links(2, do(pool("c", 2), true))
	links(1, do(&Open{NS: "ns", Session: "s", Agent: "a", Policy: "p", Digest: Digest{1}, IdleTTL: time.Hour}, true))
	begin := func(call string, digest Digest) *Begin {
		return &Begin{NS: "ns", Session: "s", Call: call, Tool: "t", Digest: digest, Verdict: Verdict{Allow: true}, Pools: []Want{{Pool: "policy/p", Weight: 1}}, TTL: time.Minute}
	}
	links(0, do(begin("x", Digest{2}), true)) // a premise that does not hold
	links(2, do(begin("x", Digest{1}), true))
	links(0, do(begin("x", Digest{1}), true))
	links(3, do(begin("y", Digest{1}), true)) // refused, and remembered
	links(0, do(&End{NS: "ns", Session: "other", Call: "x"}, true))
	links(4, do(&End{NS: "ns", Session: "s", Call: "x", Pools: []string{"policy/p"}}, true))
}

// Whatever somebody asks for has its link in the chain of a record that it may write; what
// nobody asks for has none.
func TestEveryCommandHasAChain(t *testing.T) {
	for name, c := range validCommands() {
		k, ok := ChainOf(c)
		if _, asked := c.(interface{ Authorize(*Authority) }); !asked || name == "Swept" {
			require.False(t, ok, name)
			require.Empty(t, k, name)
			continue
		}
		require.True(t, ok, name)
		require.Contains(t, c.Touches(), k, name)
		require.Contains(t, []byte{KindSession, KindClient}, k.Kind(), name)
	}
	put := &PutPool{NS: "ns", By: Maker{Client: "w"}}
	k, ok := ChainOf(put)
	require.True(t, ok)
	require.Equal(t, NamespaceKey("ns"), k, "a request that nobody remembers")

	chain := &Chain{N: 1}
	require.Same(t, chain, ChainOfRecord(&Session{Chain: chain}))
	require.Same(t, chain, ChainOfRecord(&Client{Chain: chain}))
	require.Same(t, chain, ChainOfRecord(&Namespace{Chain: chain}))
	require.Nil(t, ChainOfRecord(&Pool{}))
}

// audited says of a command that it is to be audited.
func audited(c Command, epoch uint64) Command {
	c.(interface{ Authorize(*Authority) }).Authorize(&Authority{Epoch: epoch, Audited: Digest{7}})
	return c
}

// Commands of one entry have a link each. What is refused has none, nor has what comes
// behind it unaudited, though one of them wrote the record by the way.
func TestLinksOfOneEntry(t *testing.T) {
	s := NewPartial()
	put := func(id string, slots int32) *PutPool {
		return &PutPool{NS: "ns", By: Maker{Client: "w", Request: id}, Pool: "q", Slots: slots}
	}
	acquire := func(slot string) *Acquire {
		return &Acquire{NS: "ns", Client: "w", Slot: slot, Pool: "q", Weight: 1, TTL: time.Second}
	}
	r := s.ApplyAll(0, []Command{
		audited(put("a", 2), 0), audited(put("b", 2), 0), audited(put("c", 3), 9), put("d", 3), audited(acquire("e"), 0),
	})
	require.EqualValues(t, 1, r[0].Chain.N)
	require.EqualValues(t, 2, r[1].Chain.N)
	require.Equal(t, StaleAccess, r[2].Code)
	require.Nil(t, r[2].Chain)
	require.Nil(t, r[3].Chain)
	require.EqualValues(t, 3, r[4].Chain.N)

	limits := Limits{MaxConcurrent: 2, MaxToolCalls: 9, MaxAttempts: 9, Timeout: time.Hour}
	call := func(id string) *Begin {
		return &Begin{NS: "ns", Session: "s", Call: id, Tool: "t", Digest: Digest{1}, Verdict: Verdict{Allow: true}, Pools: []Want{{"policy/p", 1}}, TTL: time.Second}
	}
	r = s.ApplyAll(0, []Command{
		&PutPolicy{NS: "ns", By: Maker{Client: "op"}, Name: "p", Digest: Digest{1}, Tree: []byte("x"), Limits: limits},
		audited(&Open{NS: "ns", Session: "s", Agent: "a", Policy: "p", Digest: Digest{1}, IdleTTL: time.Hour}, 0),
		audited(call("x"), 0), audited(call("y"), 0),
	})
	require.EqualValues(t, 3, r[3].Chain.N)
	r = s.ApplyAll(time.Minute, []Command{audited(&End{NS: "ns", Session: "s", Call: "none"}, 0)})
	require.Equal(t, NotFound, r[0].Code)
	require.Len(t, r[0].Lapsed, 2, "the session was written all the same")
	require.Nil(t, r[0].Chain)
}

// The chain of a record that is dropped goes into that of its namespace, and the answer
// says so, with what auditors need to follow it; one that has no chain leaves none there.
func TestChainsThatEnd(t *testing.T) {
	s := NewPartial()
	limits := Limits{MaxConcurrent: 1, MaxToolCalls: 9, MaxAttempts: 9, Timeout: time.Hour}
	put := func(client string) *PutPool {
		return &PutPool{NS: "ns", By: Maker{Client: client, Request: "a"}, Pool: "q", Slots: 2}
	}
	opened := func(id string) *Open {
		return &Open{NS: "ns", Session: id, Agent: "a", Policy: "p", Digest: Digest{1}, IdleTTL: time.Minute}
	}
	r := s.ApplyAll(0, []Command{
		&PutPolicy{NS: "ns", By: Maker{Client: "op"}, Name: "p", Digest: Digest{1}, Tree: []byte("x"), Limits: limits},
		audited(put("w"), 0), put("plain"), audited(opened("s"), 0), opened("plain"),
	})
	of := map[Key]*Chain{ClientKey("ns", "w"): r[1].Chain, SessionKey("ns", "s"): r[3].Chain}
	at := 2 * time.Hour
	var head *Chain
	links := uint64(0)
	for _, k := range []Key{ClientKey("ns", "plain"), ClientKey("ns", "w"), SessionKey("ns", "plain"), SessionKey("ns", "s")} {
		r := s.ApplyAll(at, []Command{&Tick{Keys: TickKeys(k, s.Stored(k))}, &Tick{}})
		require.Nil(t, s.Stored(k), k)
		require.Nil(t, r[0].Chain, "a tick is not audited")
		require.Empty(t, r[1].Folds, "that was another command")
		ns, _ := s.Get(NamespaceKey("ns")).(*Namespace)
		if of[k] == nil {
			require.Empty(t, r[0].Folds, k)
		} else {
			fold := Fold{Key: k, Chain: *of[k]}
			links++
			head = head.Next(0, Done, fold.Audited())
			fold.Into = *head
			require.Equal(t, []Fold{fold}, r[0].Folds, k)
			require.Equal(t, links, head.N)
		}
		if head == nil {
			require.True(t, ns == nil || ns.Chain == nil)
		} else {
			require.Equal(t, head, ns.Chain, k)
		}
	}
}
