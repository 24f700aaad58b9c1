package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// TestCrowdsInVirtualTime lets more wait at one node than it renews or claims in one go, for
// longer than a place lasts that is not renewed: each keeps his place, and has a slot when
// there are as many.
func TestCrowdsInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	synctest.Test(t, func(t *testing.T) {
		f, nodes := founded(t, 3)
		defer func() { require.NoError(t, f.end()) }()
		one, other := nodes[rand.IntN(3)], nodes[rand.IntN(3)]
		put := func(slots int32) {
			want(other, other.slots.PutPool, &v1.PutPoolRequest{Pool: "pool", Slots: slots, QueueLimit: proto.Int32(4096), RequestId: newID()})
		}
		put(1)
		other.slot(newID())
		const all = 1100
		var under sync.WaitGroup
		results, errs := make([]*v1.AcquireSlotResponse, all), make([]error, all)
		for i := range all {
			req := &v1.AcquireSlotRequest{
				Pool: "pool", SlotId: newID(), Client: string(rune('a' + i%3)), Ttl: durationpb.New(10 * time.Minute), Wait: durationpb.New(10 * time.Minute),
			}
			under.Go(func() { results[i], errs[i] = one.slots.AcquireSlot(one.ctx, req) })
		}
		waits := func() int32 { return want(other, other.slots.GetPool, &v1.GetPoolRequest{Pool: "pool"}).Pool.Waiting }
		require.NoError(t, eventually(time.Minute, func() error {
			if n := waits(); n != all {
				return fmt.Errorf("%d wait of %d", n, all)
			}
			return nil
		}))
		for range 3 {
			require.EqualValues(t, all, waits(), "who waits keeps his place for as long as he is there")
			time.Sleep(11 * time.Second)
		}
		put(1 + all)
		under.Wait()
		tokens := map[uint64]bool{}
		for i, res := range results {
			require.NoError(t, errs[i])
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "number %d: %v", i, res)
			require.False(t, tokens[res.Token], "a token is given once: %v", res)
			tokens[res.Token] = true
		}
		require.Zero(t, waits())
	})
}
