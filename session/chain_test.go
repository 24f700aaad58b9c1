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
