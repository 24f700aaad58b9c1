package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// Commands that are decoded one entry into the place of the one before, and applied with
// results that are, come to the same as any others; neither the state nor a result has
// anything of such a command that changes with the next one.
func TestNothingKeepsADecodedCommand(t *testing.T) {
	histories(t, 24, func(t *testing.T, h *sessiontest.History) {
		h.Timed = h.Seed%2 == 1
		at, entries := record(h, 250)
		one, two := newWorld().state, newWorld().state
		var d session.Decoder
		var room, kept []session.Result
		var was string
		for i := range entries {
			entries[i] = append(entries[i], wrong(entries[i])...)
			b := session.EncodeEntry(at[i], entries[i])
			now, cmds, err := d.Decode(b)
			require.NoError(t, err)
			require.Equal(t, was, encode(kept), "results of entry %d, with the next one decoded", i-1)
			require.Equal(t, at[i], now)
			require.Equal(t, b, session.EncodeEntry(now, cmds), "entry %d", i)
			want := encode(one.ApplyAll(at[i], entries[i]))
			room = two.ApplyInto(room, now, cmds)
			require.Equal(t, want, encode(room), "entry %d: %s", i, show(entries[i]))
			kept, was = append(kept[:0], room...), want
		}
		require.Equal(t, sessiontest.Dump(one), sessiontest.Dump(two))
		_, _, err := d.Decode(session.EncodeEntry(0, nil))
		require.NoError(t, err)
		require.Equal(t, sessiontest.Dump(one), sessiontest.Dump(two), "with the last entry gone")
	})
}

// wrong makes commands whose premises do not hold, which change nothing, and whose answers
// say what holds instead of what their lists say.
func wrong(cmds []session.Command) (all []session.Command) {
	for _, c := range cmds {
		if b, ok := c.(*session.Begin); ok {
			other := *b
			other.Call, other.Seen = b.Call+"-", []session.Premise{{Fact: session.FactCalls, Lo: -2, Hi: -1}}
			all = append(all, &session.End{NS: b.NS, Session: b.Session, Call: b.Call, Pools: []string{"x"}, Status: session.Failed}, &other)
		}
	}
	return all
}

// An entry that cannot be decoded, and one that is larger than any that nodes make, leave
// nothing behind in the next one.
func TestADecoderGoesOn(t *testing.T) {
	begin := func(id string) *session.Begin {
		return &session.Begin{
			NS: ns, Session: "s", Call: id, Pools: []session.Want{{Pool: "a", Weight: 1}, {Pool: "b", Weight: 2}, {Pool: "c", Weight: 3}},
			Seen: []session.Premise{{Fact: session.FactCalls, Hi: 3}}, Tokens: 7,
		}
	}
	end := func(id string) *session.End {
		return &session.End{NS: ns, Session: "s", Call: id, Pools: []string{"a", "b", "c"}, Tokens: -1}
	}
	var d session.Decoder
	decodes := func(cmds ...session.Command) {
		t.Helper()
		_, got, err := d.Decode(session.EncodeEntry(time.Second, cmds))
		require.NoError(t, err)
		require.Equal(t, cmds, got)
	}
	decodes(begin("1"), end("2"), begin("3"))
	decodes(&session.Begin{NS: ns, Session: "s", Call: "4"}, &session.End{NS: ns, Session: "s", Call: "5"})
	b := session.EncodeEntry(time.Second, []session.Command{begin("6"), end("7")})
	b[len(b)-1] ^= 1
	_, got, err := d.Decode(b)
	require.ErrorIs(t, err, session.ErrDamaged)
	require.Empty(t, got)
	decodes(&session.End{NS: ns, Session: "s", Call: "8"})
	var many []session.Command
	for range 1025 {
		many = append(many, begin("9"), end("9"))
	}
	decodes(many...)
	decodes(&session.Begin{NS: ns, Session: "s", Call: "10"})
}
