package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/chaos/power"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/processes/skew"
)

// TestLeasesAndClocks takes slots, and lets a clock of every node be wrong before
// they run out. By the clock of this process, which is right, nobody else has
// them before their TTL has passed, and not much later either.
func TestLeasesAndClocks(t *testing.T) {
	if os.Getenv("GOVNODE_L2") == "" && os.Getenv("GOVNODE_L3") == "" {
		t.Skip("real processes whose clocks are moved: GOVNODE_L2=1 or GOVNODE_L3=1")
	}
	const (
		ttl   = 2 * time.Second
		late  = 10 * time.Second // a leader whose clocks jump may lose its leadership
		slots = 16
	)
	dir := t.TempDir()
	program, err := processes.Program(dir)
	require.NoError(t, err)
	c, err := processes.New(program, power.Loopback{}, 3, func(node string) string { return filepath.Join(dir, node) }, "--log-level", "warn")
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.NoError(t, c.Found(20*time.Second))
	var clocks []*skew.Clocks
	var nodes []govnodev1connect.SlotServiceClient
	for _, n := range c.Nodes {
		x, err := skew.Of(n.Pid())
		if os.IsPermission(err) && os.Geteuid() != 0 {
			t.Skip(err)
		}
		require.NoError(t, err)
		clocks = append(clocks, x)
		nodes = append(nodes, govnodev1connect.NewSlotServiceClient(c.HTTP, "http://"+n.API))
	}
	all := func(do func(*skew.Clocks) error) func(*testing.T) {
		return func(t *testing.T) {
			for _, x := range clocks {
				require.NoError(t, do(x))
			}
		}
	}
	nothing := func(*testing.T) {}
	// Of which nothing is promised: it shows that clocks are moved, and that a lease
	// that is cut short is noticed.
	const bothFast = "both clocks fast"
	for i, test := range []struct {
		name        string
		wrong, back func(*testing.T)
	}{
		{"right", nothing, nothing},
		{"time of day ahead", all(func(x *skew.Clocks) error { return x.Jump(skew.Wall, time.Hour) }), nothing},
		{"time of day behind", all(func(x *skew.Clocks) error { return x.Jump(skew.Wall, -2*time.Hour) }), nothing},
		{"monotonic clock ahead", all(func(x *skew.Clocks) error { return x.Jump(skew.Monotonic, 30*time.Second) }), nothing},
		{"monotonic clock fast", all(func(x *skew.Clocks) error { return x.Rate(skew.Monotonic, 2) }), all(func(x *skew.Clocks) error { return x.Rate(skew.Monotonic, 1) })},
		{"time of day fast", all(func(x *skew.Clocks) error { return x.Rate(skew.Wall, 20) }), all(func(x *skew.Clocks) error { return x.Rate(skew.Wall, 1) })},
		{bothFast, all(func(x *skew.Clocks) error { return errors.Join(x.Rate(skew.Wall, 4), x.Rate(skew.Monotonic, 4)) }), nothing},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), ttl+3*late)
			defer cancel()
			pool := fmt.Sprint("pool", i)
			ask(ctx, t, nodes, func(ctx context.Context, n govnodev1connect.SlotServiceClient) error {
				_, err := n.PutPool(ctx, &v1.PutPoolRequest{Pool: pool, Slots: slots, RequestId: pool})
				return err
			})
			var called [slots]time.Time
			for j := range slots {
				called[j] = time.Now()
				require.NotZero(t, take(ctx, t, nodes, pool, fmt.Sprintf("first-%d-%d", i, j), ttl))
			}
			test.wrong(t)
			var took [slots]time.Duration
			var each sync.WaitGroup
			for j := range slots {
				each.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						if take(ctx, t, nodes, pool, fmt.Sprintf("next-%d-%d-%d", i, j, n), time.Minute) != 0 {
							took[j] = time.Since(called[0])
							return
						}
					}
				})
			}
			each.Wait()
			test.back(t)
			if test.name == bothFast {
				require.Less(t, slices.Min(took[:]), ttl)
				return
			}
			// Whoever is first in may have any of them, which were taken one after
			// another; none ran out before the first one.
			require.GreaterOrEqual(t, slices.Min(took[:]), ttl, "a lease was cut short")
			require.LessOrEqual(t, slices.Max(took[:]), called[slots-1].Sub(called[0])+ttl+late)
		})
	}
}

// ask asks nodes in turn until one answers.
func ask(ctx context.Context, t *testing.T, nodes []govnodev1connect.SlotServiceClient, one func(context.Context, govnodev1connect.SlotServiceClient) error) {
	for i := 0; ; i++ {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := one(attempt, nodes[i%len(nodes)])
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Error(err)
			return
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// take asks for a slot once, and returns its token, or 0.
func take(ctx context.Context, t *testing.T, nodes []govnodev1connect.SlotServiceClient, pool, id string, ttl time.Duration) (token uint64) {
	ask(ctx, t, nodes, func(ctx context.Context, n govnodev1connect.SlotServiceClient) error {
		res, err := n.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: pool, SlotId: id, Client: id, Ttl: durationpb.New(ttl)})
		token = res.GetToken()
		return err
	})
	return token
}
