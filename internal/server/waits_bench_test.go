package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/waiting"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// BenchmarkClaim is how long it takes from a slot that comes free to the answer
// of who waited for it, while many others wait for other slots at this node: of
// few pools with long queues, and of as many pools as there are waiters.
func BenchmarkClaim(b *testing.B) {
	for _, n := range []struct{ all, each int }{{1, 1}, {10_000, 1}, {10_000, session.MaxQueue}, {100_000, session.MaxQueue}} {
		b.Run(fmt.Sprintf("waiters=%d/pool=%d", n.all, n.each), func(b *testing.B) { benchmarkClaim(b, n.all, n.each) })
	}
}

func benchmarkClaim(b *testing.B, all, each int) {
	store := storage.NewMemory(nil)
	s, err := New(Config{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = s.Close(), store.Close() }()
	w := s.waits
	slots := slotService{s, s.limits}
	ctx := b.Context()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var ops []operation
	for i := range all {
		pool := fmt.Sprintf("p%d", i/each)
		if i%each == 0 {
			_, err := slots.PutPool(ctx, &v1.PutPoolRequest{Pool: pool, Slots: 1, QueueLimit: ptr(int32(session.MaxQueue))})
			must(err)
			_, err = slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: pool, SlotId: "h", Client: pool, Ttl: durationpb.New(time.Hour)})
			must(err)
		}
		ops = append(ops, acquiring(ctx, s, &v1.AcquireSlotRequest{
			Pool: pool, SlotId: "w", Client: fmt.Sprintf("c%d", i), Wait: durationpb.New(10 * time.Minute)}))
		if len(ops) < maxOrdered && i < all-1 {
			continue
		}
		s.proceed(ctx, ops, course{queued: func(_ int, x *waiting.Wait) {
			w.Join(x)
		}})
		ops = ops[:0]
	}
	_, err = slots.PutPool(ctx, &v1.PutPoolRequest{Pool: "own", Slots: 1})
	must(err)
	b.ResetTimer()
	var worst time.Duration
	for i := 0; b.Loop(); i++ {
		held, err := slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: "own", SlotId: fmt.Sprint("a", i)})
		must(err)
		a := acquiring(ctx, s, &v1.AcquireSlotRequest{Pool: "own", SlotId: fmt.Sprint("b", i), Wait: durationpb.New(time.Minute)})
		var x *waiting.Wait
		s.proceed(ctx, []operation{a}, course{queued: func(_ int, queued *waiting.Wait) {
			x = queued
			w.Join(x)
		}})
		begun := time.Now()
		_, err = slots.ReleaseSlot(ctx, &v1.ReleaseSlotRequest{Pool: "own", SlotId: fmt.Sprint("a", i), Token: held.Token})
		must(err)
		must(w.Await(ctx, x))
		got := x.Answer
		worst = max(worst, time.Since(begun))
		_, err = slots.ReleaseSlot(ctx, &v1.ReleaseSlotRequest{Pool: "own", SlotId: fmt.Sprint("b", i), Token: got.Result.Grants[0].Token})
		must(err)
	}
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
}

// acquiring is an AcquireSlot that is ready to be ordered.
func acquiring(ctx context.Context, s *Server, req *v1.AcquireSlotRequest) operation {
	a := &acquire{}
	a.init(s, "default", nil, req)
	s.prepare(ctx, &input.Fields{}, a)
	return a
}

func ptr[T any](v T) *T { return &v }
