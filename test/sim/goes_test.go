package sim

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster"
)

// TestGoes has nodes go at which others wait, some times: nobody loses his place, and it
// comes to its end.
func TestGoes(t *testing.T) {
	if out, err := testProcess(t.Context(), "^TestGoesInVirtualTime$", "GOVNODE_L1_GOES=1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestGoesInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_GOES") == "" {
		t.Skip("it is run by TestGoes, in a process of its own")
	}
	inVirtualTime(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		f, err := newFleet(3, rng, slog.New(slog.DiscardHandler), func(*cluster.Config) {})
		require.NoError(t, err)
		defer func() { require.NoError(t, f.end()) }()
		require.NoError(t, f.found())
		rec := &recorder{start: time.Now()}
		w, err := newWorker("c1", f, rng, rec, 0, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer func() { require.NoError(t, w.close()) }()
		for range 3 {
			done, broken := f.goes(t.Context(), w)
			require.Empty(t, append(broken, rec.broken...))
			require.True(t, done)
		}
	})
}
