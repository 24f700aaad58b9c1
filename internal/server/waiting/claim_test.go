package waiting

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// refusing is what a store answers whose leader has no room.
type refusing struct{}

func (refusing) Error() string { return "no room" }

func (refusing) Overloaded() bool { return true }

// A claim that the leader has no room for is its caller's to make again: the
// place is gone, so the node would ask in vain. Any other is made again here.
func TestAClaimThatIsNotAdmitted(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w := New(store, slog.New(slog.DiscardHandler), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewHistogram(prometheus.HistogramOpts{}), nil)
	w.Close() // what it does by itself is not looked at here
	x := &Wait{Pool: session.PoolKey("default", "q"), Holder: "h"}
	w.Join(x)
	w.answered(x, storage.Refused(errors.New("no leader")))
	require.Empty(t, x.done)
	w.answered(x, storage.Refused(refusing{}))
	require.Len(t, x.done, 1)
	a := <-x.done
	require.Equal(t, fault.ReasonOverloaded, fault.InfoOf(fault.OfAnswer(&a)).GetReason())
	require.Empty(t, w.pools, "it is not claimed again")
}
