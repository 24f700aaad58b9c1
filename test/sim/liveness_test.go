package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What is fair begins some time after a fault has ended, the longer the slower
// elections are, and ends with the next one.
func TestFairTimeIsThatBetweenFaults(t *testing.T) {
	for heartbeat, settle := range map[time.Duration]time.Duration{0: 3 * time.Second, 500 * time.Millisecond: 3 * time.Second, 4 * time.Second: 24 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newWeather(time.Now(), heartbeat)
			time.Sleep(10 * time.Second)
			ends := w.begins()
			time.Sleep(5 * time.Second)
			require.Equal(t, []span{{from: 0, to: 10 * time.Second}}, w.fair(), "it is under way")
			ends()
			time.Sleep(45 * time.Second)
			fair := w.fair()
			require.Equal(t, []span{{from: 0, to: 10 * time.Second}, {from: 15*time.Second + settle, to: time.Minute}}, fair)
			require.Equal(t, 3*time.Second, within(fair, 7*time.Second, 15*time.Second+settle))
		})
	}
}
