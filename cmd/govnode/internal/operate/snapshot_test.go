package operate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The commands that move a whole state have a --timeout of their own, in fact
// and in their help.
func TestSnapshotsTakeTheirTime(t *testing.T) {
	for _, cmd := range Snapshot().Commands() {
		if f := cmd.Flags().Lookup("timeout"); f != nil {
			require.Equal(t, []string{"10m0s", "10m0s"}, []string{f.DefValue, f.Value.String()}, cmd.Name())
		}
	}
}
