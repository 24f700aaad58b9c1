package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"example.com/govnode/session"
)

// The state machine alone, at a million sessions: bytes of heap for each, what
// one more finished call costs, how long an Apply waits during a snapshot, and
// how long a restore takes. GOVNODE_SESSIONS sets another number.

const ns = "default"

var tools = []string{"search", "read_file", "write_file", "execute_code"}

func sessionCount(b *testing.B) int {
	n, err := strconv.Atoi(os.Getenv("GOVNODE_SESSIONS"))
	if err != nil {
		if os.Getenv("GOVNODE_MILLION") == "" {
			b.Skip("set GOVNODE_MILLION=1 (several GB of memory, a minute), or make bench-state")
		}
		n = 1_000_000
	}
	return n
}

// id looks like a ULID, of a time that rises with n.
func id(kind byte, n int) string { return fmt.Sprintf("01%08d%c%015d", n, kind, n) }

func policyName(i int) string { return "p" + strconv.Itoa(i/1000) }

func digestOf(i int) (d session.Digest) {
	copy(d[:], policyName(i))
	return d
}

// fill makes n sessions: an agent id, 4 tools, 8 finished calls, an open one.
func fill(s *session.State, n int) {
	for i := 0; i < n; i += 1000 {
		s.ApplyAll(0, []session.Command{&session.PutPolicy{NS: ns, Name: policyName(i), Digest: digestOf(i), Tree: []byte("x"), Limits: session.Limits{
			MaxTokens: 1 << 40, MaxToolCalls: 1 << 30, MaxAttempts: 1 << 30, Timeout: 1000 * time.Hour, MaxConcurrent: 4096, Backpressure: 4096, Checkpoint: 5,
		}}})
	}
	const entry = 64 // sessions at once, as group commit would have it
	for from := 0; from < n; from += entry {
		some := make([]int, min(entry, n-from))
		for k := range some {
			some[k] = from + k
		}
		apply(s, some, func(i int) session.Command {
			return &session.Open{NS: ns, Session: id('S', i), Agent: "agent-" + strconv.Itoa(i%1000), Policy: policyName(i), Digest: digestOf(i), IdleTTL: 24 * time.Hour}
		})
		calls(s, some, 0, 8)
		apply(s, some, func(i int) session.Command { return begin(i, 8) })
	}
}

// apply makes an entry of one command for each session.
func apply(s *session.State, sessions []int, f func(i int) session.Command) {
	cmds := make([]session.Command, len(sessions))
	for k, i := range sessions {
		cmds[k] = f(i)
	}
	for k, r := range s.ApplyAll(time.Second, cmds) {
		if r.Code != session.Done && r.Code != session.Admitted && r.Code != session.Ended {
			panic(fmt.Sprintf("%T of session %d: %v", cmds[k], sessions[k], r.Code))
		}
	}
}

// calls begins and ends calls from to to of some sessions.
func calls(s *session.State, sessions []int, from, to int) {
	for c := from; c < to; c++ {
		apply(s, sessions, func(i int) session.Command { return begin(i, c) })
		apply(s, sessions, func(i int) session.Command { return end(i, c) })
	}
}

func begin(i, c int) *session.Begin {
	return &session.Begin{NS: ns, Session: id('S', i), Call: id('C', c), Tool: tools[c%4], Digest: digestOf(i), Verdict: session.Verdict{Allow: true},
		Pools: []session.Want{{Pool: "policy/" + policyName(i), Weight: 1}}, TTL: time.Hour}
}

func end(i, c int) *session.End {
	return &session.End{NS: ns, Session: id('S', i), Call: id('C', c), Pools: []string{"policy/" + policyName(i)}, Status: session.Succeeded, Tokens: -1}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkMillionMemory(b *testing.B) {
	n := sessionCount(b)
	before := heap()
	s := session.New()
	fill(s, n)
	full := heap()
	b.ReportMetric(float64(full-before)/float64(n), "B/session")
	const part, more = 20_000, 64
	for from := 0; from < min(part, n); from += 64 {
		var some []int
		for i := from; i < min(from+64, part, n); i++ {
			some = append(some, i)
		}
		calls(s, some, 100, 100+more)
	}
	b.ReportMetric(float64(heap()-full)/float64(min(part, n))/more, "B/call")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(s)
}

func BenchmarkMillionSnapshot(b *testing.B) {
	n := sessionCount(b)
	s := session.New()
	fill(s, n)
	runtime.GC()
	var mu sync.Mutex
	var worst []float64
	c := 1000
	for round := range 5 {
		mu.Lock()
		t0 := time.Now()
		snap := s.Snapshot()
		taken := time.Since(t0)
		mu.Unlock()
		done := make(chan int)
		go func() {
			var w counter
			if err := session.WriteSnapshot(&w, snap); err != nil {
				panic(err)
			}
			done <- int(w)
		}()
		longest, applied := taken, 0
		t0 = time.Now()
		size := 0
		for size == 0 {
			select {
			case size = <-done:
			default:
			}
			i := (applied * 7919) % n
			cmds := make([]session.Command, 0, 64)
			for k := range 32 {
				cmds = append(cmds, begin((i+k)%n, c), end((i+k)%n, c))
			}
			t := time.Now()
			mu.Lock()
			s.ApplyAll(3*time.Second, cmds)
			mu.Unlock()
			longest = max(longest, time.Since(t))
			applied++
			c++
			time.Sleep(time.Until(t.Add(2 * time.Millisecond))) // 32,000 commands a second
		}
		b.Logf("snapshot %d: %d MB in %v, %d entries of 64 beside it, the slowest %v", round, size>>20, time.Since(t0), applied, longest)
		worst = append(worst, float64(longest.Microseconds())/1000)
	}
	slices.Sort(worst)
	b.ReportMetric(worst[len(worst)/2], "ms-worst-apply")
	b.ReportMetric(0, "ns/op")
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

func BenchmarkMillionRestore(b *testing.B) {
	n := sessionCount(b)
	s := session.New()
	fill(s, n)
	var buf bytes.Buffer
	if err := session.WriteSnapshot(&buf, s.Snapshot()); err != nil {
		b.Fatal(err)
	}
	before := s.Len()
	s = nil
	runtime.GC()
	t0 := time.Now()
	s, err := session.ReadSnapshot(bytes.NewReader(buf.Bytes()))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(t0).Seconds(), "s-restore")
	b.ReportMetric(float64(buf.Len())/float64(n), "B/session-on-disk")
	b.ReportMetric(0, "ns/op")
	if s.Len() != before {
		b.Fatalf("%d records of %d", s.Len(), before)
	}
}

// BenchmarkApply is the cost of a command in entries of 64 commands on 64
// sessions, half of them BeginCall through one pool of 100, half EndCall.
func BenchmarkApply(b *testing.B) {
	s := session.New()
	const sessions = 64
	s.ApplyAll(0, []session.Command{&session.PutPolicy{NS: ns, Name: "p0", Digest: digestOf(0), Tree: []byte("x"), Limits: session.Limits{
		MaxTokens: 1 << 40, MaxToolCalls: 1 << 30, MaxAttempts: 1 << 30, Timeout: 1000 * time.Hour, MaxConcurrent: 100, Backpressure: 100, Checkpoint: 5,
	}}})
	for i := range sessions {
		s.ApplyAll(0, []session.Command{&session.Open{NS: ns, Session: id('S', i), Agent: "agent", Policy: "p0", Digest: digestOf(0), IdleTTL: 24 * time.Hour}})
	}
	b.ReportAllocs()
	b.ResetTimer()
	c := 0
	for n := 0; n < b.N; n += 2 * sessions {
		b.StopTimer()
		begins, ends := make([]session.Command, sessions), make([]session.Command, sessions)
		for i := range sessions {
			begins[i], ends[i] = begin(i, c), end(i, c)
		}
		c++
		b.StartTimer()
		for i, r := range s.ApplyAll(time.Duration(c), begins) {
			if r.Code != session.Admitted {
				b.Fatalf("call %d of session %d: %v", c, i, r.Code)
			}
		}
		for i, r := range s.ApplyAll(time.Duration(c), ends) {
			if r.Code != session.Ended {
				b.Fatalf("call %d of session %d: %v", c, i, r.Code)
			}
		}
	}
}
