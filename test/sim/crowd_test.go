package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
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
	inVirtualTime(t, func(t *testing.T) {
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

// TestComesBackInVirtualTime has somebody wait at a node who goes to another one, while the first
// is cut off, or while nobody leads: his place is given up by nobody, although for a time he could
// not be seen to ask for it.
func TestComesBackInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	for _, leaderless := range []bool{false, true} {
		t.Run(fmt.Sprint("leaderless ", leaderless), func(t *testing.T) {
			for range 4 {
				inVirtualTime(t, func(t *testing.T) { comesBack(t, leaderless) })
			}
		})
	}
}

func comesBack(t *testing.T, leaderless bool) {
	f, nodes := founded(t, 3)
	defer func() { require.NoError(t, f.end()) }()
	leads := slices.Index(f.hosts, f.leader())
	left, third := f.hosts[(leads+1)%3], f.hosts[(leads+2)%3]
	first, second := nodes[(leads+1)%3], nodes[(leads+2)%3]
	want(second, second.slots.PutPool, &v1.PutPoolRequest{Pool: "pool", Slots: 1, RequestId: newID()})
	holder := newID()
	token := second.slot(holder)
	waits := func() int32 {
		return want(second, second.slots.GetPool, &v1.GetPoolRequest{Pool: "pool"}).Pool.Waiting
	}
	req := &v1.AcquireSlotRequest{Pool: "pool", SlotId: newID(), Client: "c", Ttl: durationpb.New(10 * time.Minute), Wait: durationpb.New(10 * time.Minute)}
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := first.slots.AcquireSlot(ctx, req)
		gone <- err
	}()
	require.NoError(t, eventually(time.Minute, func() error {
		if waits() != 1 {
			return errors.New("nobody waits")
		}
		return nil
	}))
	mend := f.network.hold(links(left.name, f.names(), true, true)...)
	if leaderless {
		f.hosts[leads].crash(false)
	}
	leave()
	require.Error(t, <-gone)
	answered := make(chan *v1.AcquireSlotResponse, 1)
	go func() { // again and again, since a node may have no answer
		for res, err := second.slots.AcquireSlot(t.Context(), req); ; res, err = second.slots.AcquireSlot(t.Context(), req) {
			if err == nil || t.Context().Err() != nil {
				answered <- res
				return
			}
		}
	}()
	time.Sleep(time.Duration(4000+rand.IntN(4000)) * time.Millisecond)
	mend()
	time.Sleep(8 * time.Second)
	require.Empty(t, answered, "he waits on")
	require.EqualValues(t, 1, waits())
	want(second, second.slots.ReleaseSlot, &v1.ReleaseSlotRequest{Pool: "pool", SlotId: holder, Token: token})
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, (<-answered).GetOutcome())
	if leaderless {
		require.NoError(t, f.hosts[leads].start(entrance{join: []string{left.raftAddress(), third.raftAddress()}}))
		require.NoError(t, f.ready(healWithin))
	}
}
