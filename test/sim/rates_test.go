package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/cluster"
	"example.com/govnode/test/check"
)

// rateEnv has what the process of a run counts.
const rateEnv = "GOVNODE_RATE_SEED"

const ratePer = time.Second

// A rate of ten per second under 64 callers at three nodes, for 60 s, in which the
// leader is killed twice: no second of log time holds more than ten, and where
// nothing is down at least nine and a half are admitted.
func TestARateWhoseLeaderIsKilled(t *testing.T) {
	if text := os.Getenv(rateEnv); text != "" {
		var seed uint64
		require.NoError(t, json.Unmarshal([]byte(text), &seed))
		inVirtualTime(t, func(t *testing.T) { rateUnderKills(t, seed) })
		return
	}
	if os.Getenv(settingEnv) != "" || os.Getenv(memoryEnv) != "" {
		t.Skip("this process runs something else")
	}
	out, err := testProcess(t.Context(), "^TestARateWhoseLeaderIsKilled$", rateEnv+"=7")
	require.NoError(t, err, out)
	_, line, _ := strings.Cut(out, reportMark)
	line, _, _ = strings.Cut(line, "\n")
	t.Log(line)
}

func rateUnderKills(t *testing.T, seed uint64) {
	const limit, callers, length, down = 10, 64, 60 * time.Second, 5 * time.Second
	start, rng := time.Now(), rand.New(rand.NewPCG(seed, 1))
	log := slog.New(slog.DiscardHandler)
	f, err := newFleet(3, rng, log, func(*cluster.Config) {})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.end()) }()
	require.NoError(t, f.found())
	rec := &recorder{start: start}
	var workers []*worker
	for i := range callers {
		w, err := newWorker(fmt.Sprintf("c%d", i+1), f, rand.New(rand.NewPCG(seed, uint64(100+i))), rec, 0, log)
		require.NoError(t, err)
		defer func() { require.NoError(t, w.close()) }()
		workers = append(workers, w)
	}
	_, err = workers[0].client.PutRate(t.Context(), client.Rate{Name: "llm", Limit: limit, Per: ratePer})
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	for _, w := range workers {
		busy.Go(func() {
			for ctx.Err() == nil {
				w.takeFrom(ctx, client.Take{Rate: "llm", Cost: 1, Wait: 30 * time.Second})
			}
		})
	}
	// A stretch is a time in which nothing is down, and in which those who wait
	// have been found again.
	var stretches [][2]time.Duration
	begun := time.Now()
	whole := begun.Add(2 * time.Second)
	for _, kill := range []time.Duration{length / 3, 2 * length / 3} {
		time.Sleep(time.Until(begun.Add(kill)))
		stretches = append(stretches, [2]time.Duration{whole.Sub(start), time.Since(start)})
		l := f.leader()
		require.NotNil(t, l)
		l.crash(false)
		time.Sleep(down)
		var others []string
		for _, h := range f.hosts {
			if h != l {
				others = append(others, h.raftAddress())
			}
		}
		require.NoError(t, l.start(entrance{join: others}))
		require.NoError(t, f.ready(healWithin))
		whole = time.Now().Add(2 * time.Second)
	}
	time.Sleep(time.Until(begun.Add(length)))
	stretches = append(stretches, [2]time.Duration{whole.Sub(start), time.Since(start)})
	stop()
	busy.Wait()
	states, until, err := f.states(healWithin)
	require.NoError(t, err)
	entries, err := f.committed(until)
	require.NoError(t, err)
	w, err := replay(entries, start, states)
	require.NoError(t, err)
	h := check.History{Ops: rec.ops, Effects: w.effects, Rates: map[string]check.Rate{"llm": {Limit: limit, Per: ratePer}}}
	for _, o := range h.Ops { // each answer stands in the log
		require.False(t, o.Outcome == check.Refused, "%v", o)
	}
	require.Empty(t, append(check.Rates(h), check.Order(h)...))
	require.Empty(t, check.Once(h))
	line := fmt.Sprintf("%d admitted in %v", h.Admitted("llm", 0, 1<<62), length)
	for _, s := range stretches {
		var times []time.Duration // at which entries were written
		for _, e := range w.effects {
			if at := entries[e.Index].at.Sub(start); s[0] <= at && at < s[1] {
				times = append(times, at)
			}
		}
		perSecond := throughput(times)
		line += fmt.Sprintf("; %.2f per second from %v to %v", perSecond, s[0].Round(time.Second), s[1].Round(time.Second))
		require.GreaterOrEqual(t, perSecond, 9.5, line)
	}
	fmt.Println(reportMark + line)
}

// throughput is how many came per second. They come in bursts, of which the last
// is its end alone.
func throughput(times []time.Duration) float64 {
	if len(times) == 0 {
		return 0
	}
	end := times[len(times)-1]
	n := slices.IndexFunc(times, func(at time.Duration) bool { return at > end-ratePer/2 })
	return float64(n) / (times[n] - times[0]).Seconds()
}
