package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// A record that is removed takes the parts of its ids along, else the next of
// that name would find them.
func TestRemoveTakesThePartsAlong(t *testing.T) {
	k := session.ClientKey("ns", "w")
	p := NewPlace("{gov}", "ns", "{gov:ns}")
	s := NewSwap(&p, "0123456789abcdef", []Want{{Key: k, Parts: 1 << 3}})
	s.Remove(0, Entry{})
	var gone []string
	for i, op := range s.Ops {
		if op == "D" || op == "X" {
			gone = append(gone, s.Keys[s.Ops[i+1].(int)-1])
		}
	}
	want := []string{p.Record(k)}
	for part := range session.ForgottenParts {
		want = append(want, p.Part(k, part))
	}
	require.ElementsMatch(t, want, gone)
}
