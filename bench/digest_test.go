package bench

import (
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/govnode/session"
)

// BenchmarkMillionDigest is a hash of the whole state at a million sessions:
// cold, with nothing written since, with half of what is kept read again, after a
// hundredth of the shards was written into, and how long an Apply waits while it is made at a quarter of a core.
func BenchmarkMillionDigest(b *testing.B) {
	n := sessionCount(b)
	s := session.New()
	fill(s, n)
	runtime.GC()
	digest := func(name string, again func(shard int) bool) {
		t := time.Now()
		if _, err := s.Snapshot().Digest(again, nil); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(t).Microseconds())/1000, "ms-"+name)
	}
	digest("cold", nil)
	digest("idle", nil)
	digest("half", func(shard int) bool { return shard%2 == 0 })
	c := 1000
	cmds := func(many int) (cmds []session.Command) {
		for range many {
			i := (c * 7919) % n
			cmds = append(cmds, begin(i, c), end(i, c))
			c++
		}
		return cmds
	}
	s.ApplyAll(2*time.Second, cmds(164))
	digest("hundredth", nil)

	var mu sync.Mutex
	applies := func(during func() bool) (all []time.Duration) {
		for during() {
			entry := cmds(32)
			t := time.Now()
			mu.Lock()
			s.ApplyAll(3*time.Second, entry)
			mu.Unlock()
			all = append(all, time.Since(t))
			time.Sleep(time.Until(t.Add(2 * time.Millisecond))) // 32,000 commands a second
		}
		slices.Sort(all)
		return all
	}
	end := time.Now().Add(time.Second)
	alone := applies(func() bool { return time.Now().Before(end) })
	b.ReportMetric(float64(alone[len(alone)/2].Microseconds()), "µs-apply-alone")

	done, count := make(chan struct{}), 0
	mu.Lock()
	v := s.Snapshot()
	mu.Unlock()
	go func() {
		defer close(done)
		begun := time.Now()
		for range 3 { // each hashes what was written meanwhile
			_, err := v.Digest(nil, func() error {
				count++
				if worked := time.Since(begun); worked > 2*time.Millisecond {
					time.Sleep(3 * worked)
					begun = time.Now()
				}
				return nil
			})
			if err != nil {
				panic(err)
			}
			mu.Lock()
			v = s.Snapshot()
			mu.Unlock()
		}
	}()
	beside := applies(func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	})
	b.ReportMetric(float64(beside[len(beside)/2].Microseconds()), "µs-apply-beside")
	b.ReportMetric(float64(beside[len(beside)-1].Microseconds())/1000, "ms-worst-apply")
	b.Logf("%d shards hashed beside %d entries", count, len(beside))
	b.ReportMetric(0, "ns/op")
}
