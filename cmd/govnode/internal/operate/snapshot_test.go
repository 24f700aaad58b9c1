package operate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// Every kind of record has a word: what has none is left out of the table.
func TestEveryKindOfRecordHasAWord(t *testing.T) {
	for _, kind := range []byte{
		session.KindSession, session.KindPool, session.KindClient, session.KindPolicy, session.KindName, session.KindPins,
		session.KindCounter, session.KindNamespace, session.KindBaseline, session.KindHash, session.KindBudget, session.KindApproval,
		session.KindStanding, session.KindList, session.KindSignals, session.KindAccess,
	} {
		words := 0
		for _, k := range recordKinds {
			if k.kind == kind {
				words++
			}
		}
		require.Equal(t, 1, words, string(kind))
	}
}

// The commands that move a whole state have a --timeout of their own, in fact
// and in their help.
func TestSnapshotsTakeTheirTime(t *testing.T) {
	for _, cmd := range Snapshot().Commands() {
		if f := cmd.Flags().Lookup("timeout"); f != nil {
			require.Equal(t, []string{"10m0s", "10m0s"}, []string{f.DefValue, f.Value.String()}, cmd.Name())
		}
	}
}
