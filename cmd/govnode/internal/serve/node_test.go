package serve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// A node whose elections are set to take long does not refuse new work while
// one goes on as it should.
func TestLeaderPatience(t *testing.T) {
	for _, test := range []struct{ heartbeat, election, patience time.Duration }{
		{0, 0, 5 * time.Second}, // without Raft
		{500 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second},
		{20 * time.Millisecond, 20 * time.Millisecond, 5 * time.Second},
		{3 * time.Second, time.Second, 30 * time.Second},
		{time.Second, time.Minute, 10 * time.Minute},
	} {
		require.Equal(t, test.patience, leaderPatience(&config.Config{Heartbeat: test.heartbeat, Election: test.election}), "%v", test)
	}
}
