package redis

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Where Redis does not answer, those who stand in line to look at it do not each wait for
// that: what failed for one who looks has failed for all who came before he began. And who
// has less patience leaves the line.
func TestAFailedLookIsOfAllInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = time.Second
		client := redis.NewClient(&redis.Options{Addr: "192.0.2.1:1", MaxRetries: -1, DialerRetries: 1, PoolSize: 100, DialTimeout: time.Minute,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(takes)
				return nil, errors.New("away")
			}})
		defer client.Close()
		monotonic := func() time.Duration { return 0 }
		r := &Store{cfg: Config{monotonic: monotonic}, log: testLog(), client: client, metrics: newMetrics()}
		d := r.newDomain("{gov}", "")
		began := time.Now()
		look := func(ctx context.Context) <-chan error {
			failed := make(chan error, 1)
			go func() { failed <- d.inspect(ctx, nil) }()
			synctest.Wait()
			return failed
		}
		first := look(t.Context())
		hasty, cancel := context.WithTimeout(t.Context(), takes/10)
		defer cancel()
		left := look(hasty)
		var line []<-chan error
		for range 20 {
			line = append(line, look(t.Context()))
		}
		require.ErrorIs(t, <-left, context.DeadlineExceeded)
		require.Equal(t, takes/10, time.Since(began))
		require.ErrorContains(t, <-first, "away")
		for _, failed := range line {
			require.ErrorContains(t, <-failed, "away")
		}
		require.Equal(t, 2*takes, time.Since(began), "one look for all of the line")
		require.ErrorContains(t, <-look(t.Context()), "away")
		require.Equal(t, 3*takes, time.Since(began), "who comes behind it looks himself")
	})
}
