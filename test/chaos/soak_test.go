package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/chaos/power"
	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/processes/disks"
	"example.com/govnode/test/report"
	"example.com/govnode/test/sim"
)

// A window is what a soak says of some minutes.
type window struct {
	Number     int
	At         time.Duration // since the soak began, when the window had ended
	Seed       uint64        // of the soak
	Operations int
	Unknown    int
	NotApplied int
	Faults     map[string]int
	P99        time.Duration    // of operations that were applied and do not wait for a slot, their repeats included
	Memory     map[string]int64 // resident MB of each node in the end
	Violations []string
}

func (w window) String() string {
	var memory []string
	for _, name := range slices.Sorted(maps.Keys(w.Memory)) {
		memory = append(memory, fmt.Sprintf("%s %d MB", name, w.Memory[name]))
	}
	return fmt.Sprintf("window %d, at %v: %d operations, %.2f %% unknown, %d not applied, p99 %v; %d faults of %d kinds; %s; %d violations",
		w.Number, w.At.Round(time.Second), w.Operations, 100*float64(w.Unknown)/float64(max(1, w.Operations)), w.NotApplied, w.P99.Round(time.Millisecond),
		sum(w.Faults), len(w.Faults), strings.Join(memory, ", "), len(w.Violations))
}

// TestSoak runs one cluster for GOVNODE_SOAK under everything that befalls
// processes, networks, clocks and disks, as GOVNODE_SOAK_SEED draws it, and judges
// it every GOVNODE_SOAK_WINDOW (5 minutes). The first violation ends it.
func TestSoak(t *testing.T) {
	if os.Getenv("GOVNODE_SOAK") == "" {
		t.Skip("hours of faults: GOVNODE_SOAK=8h, or make soak")
	}
	duration := func(name string, fallback time.Duration) time.Duration {
		text := os.Getenv(name)
		if text == "" {
			return fallback
		}
		d, err := time.ParseDuration(text)
		require.NoError(t, err, name)
		return d
	}
	length, each := duration("GOVNODE_SOAK", 0), duration("GOVNODE_SOAK_WINDOW", 5*time.Minute)
	if os.Geteuid() != 0 {
		const why = "disks of nodes' own need root"
		require.NoError(t, report.Write(report.Layer{Name: "L4", Violations: []string{}, Skipped: why}))
		t.Skip(why)
	}
	require.NoError(t, disks.Usable())
	seed := rand.Uint64N(1 << 32)
	if text := os.Getenv("GOVNODE_SOAK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "GOVNODE_SOAK_SEED")
	}
	t.Logf("GOVNODE_SOAK_SEED=%d", seed)
	s := newSoak(t, seed)
	layer := report.Layer{Name: "L4", Seeds: []uint64{seed}, Faults: map[string]int{}, Figures: map[string]float64{}, P99: map[string]time.Duration{}, Violations: []string{}}
	for len(layer.Violations) == 0 && time.Since(s.began) < length {
		w := s.window(min(each, max(time.Minute, length-time.Since(s.began))))
		line, err := json.Marshal(w)
		require.NoError(t, err)
		t.Logf("%s\n%s", w, line)
		layer.Operations, layer.Unknown, layer.NotApplied = layer.Operations+w.Operations, layer.Unknown+w.Unknown, layer.NotApplied+w.NotApplied
		for kind, count := range w.Faults {
			layer.Faults[kind] += count
		}
		layer.P99["an operation, in the worst window"] = max(layer.P99["an operation, in the worst window"], w.P99)
		layer.Figures["windows"]++
		layer.Violations = append(layer.Violations, w.Violations...)
	}
	layer.Took = time.Since(s.began)
	if len(layer.Violations) > 0 {
		layer.Replay = fmt.Sprintf("%s; the same plan again: GOVNODE_SOAK=%v GOVNODE_SOAK_SEED=%d make soak", s.keep(), length, seed)
	}
	require.NoError(t, report.Write(layer))
	for _, v := range layer.Violations {
		t.Error(v)
	}
	if t.Failed() {
		t.Log(layer.Replay)
	}
}

// A soak is one cluster for all windows.
type soak struct {
	t     *testing.T
	rig   *power.Rig
	seed  uint64
	rng   *rand.Rand
	began time.Time
	dir   string           // of the histories
	base  map[string]int64 // counters as the window found them
	spent map[string]int64 // likewise, what was used of budgets
	count int
}

func newSoak(t *testing.T, seed uint64) *soak {
	dir := t.TempDir()
	program, err := processes.Program(dir)
	require.NoError(t, err)
	network, err := processes.NewNetwork(seed)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(seed, 3))
	// The audit log has no bound, and a disk of these is soon full of it.
	rig, err := power.NewRig(program, network, rng, t.Logf, "--raft-snapshot-bytes", "1048576", "--audit", "/dev/null")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rig.Close()) })
	return &soak{t: t, rig: rig, seed: seed, rng: rng, began: time.Now(), dir: dir, base: map[string]int64{}, spent: map[string]int64{}}
}

// window lets clients work and things go wrong for a while, heals, and judges.
func (s *soak) window(length time.Duration) (w window) {
	s.count++
	w = window{Number: s.count, Seed: s.seed, Faults: map[string]int{}, Memory: map[string]int64{}}
	violated := func(name string, err error) {
		if err != nil {
			w.Violations = append(w.Violations, name+": "+err.Error())
		}
	}
	dir := filepath.Join(s.dir, fmt.Sprint("window-", s.count))
	require.NoError(s.t, os.Mkdir(dir, 0o700))
	var addresses []string
	for _, n := range s.rig.Nodes {
		addresses = append(addresses, n.API)
	}
	work := sim.Workload{Name: fmt.Sprint("w", s.count), Addresses: addresses, Clients: 8, Seed: s.seed + uint64(s.count), Think: 20 * time.Millisecond, Start: time.Now()}
	keys, err := newKeys(s.rig.Cluster, &work)
	require.NoError(s.t, err)
	if s.count == 1 {
		require.NoError(s.t, work.Prepare(s.t.Context()))
	}
	all := &clients{dir: dir, work: work, start: monotonic(), keys: keys}
	require.NoError(s.t, all.begin(3))
	n := &nemesis{cluster: s.rig.Cluster, clients: all, token: keys.own, kinds: ofRaft, rng: s.rng, faults: map[string]int{}, log: func(format string, args ...any) {
		s.t.Logf("%7.1f s "+format, append([]any{time.Since(s.began).Seconds()}, args...)...)
	}}
	clear(s.rig.Faults)
	ctx, cancel := context.WithTimeout(s.t.Context(), length-sim.Longest)
	violated("disk", s.befall(ctx, n))
	cancel()
	for _, err := range n.broken {
		violated("nemesis", err)
	}
	violated("heal", s.rig.Whole())
	h, broken, err := all.end()
	violated("clients", err)
	h.Ops = append(h.Ops, n.ops...)
	for _, v := range broken {
		w.Violations = append(w.Violations, v.String())
	}
	time.Sleep(sim.Longest)
	held, err := work.Final(s.t.Context(), &h)
	violated("final", err)
	violated("orphans", held)
	violated("states", s.states(n))
	for _, x := range s.rig.Nodes {
		for _, err := range x.Forgive() {
			violated("node", err)
		}
		w.Memory[x.Name] = resident(x.Pid())
	}
	// Of the log there is no more than its end: what answers say of each other
	// has to do, from where the counters stood when the window began.
	counters := maps.Clone(h.Final)
	for name, value := range counters {
		h.Final[name] = value - s.base[name]
	}
	for name, used := range h.Spent {
		h.Spent[name], s.spent[name] = used-s.spent[name], used
	}
	for i, o := range h.Ops {
		if (o.Kind == check.Increment || o.Kind == check.Read) && o.Outcome == check.Applied {
			h.Ops[i].Value -= s.base[o.Object]
		}
	}
	s.base = counters
	for _, judge := range []func(check.History) []check.Violation{check.Sums, check.Spent, check.Answers, check.Holders, check.Tokens, check.RevokedAnswers} {
		for _, v := range judge(h) {
			w.Violations = append(w.Violations, v.String())
		}
	}
	maps.Copy(w.Faults, n.faults)
	maps.Copy(w.Faults, s.rig.Faults)
	w.At, w.Operations = time.Since(s.began), len(h.Ops)+sum(h.Alone)
	var took []time.Duration
	for _, o := range h.Ops {
		switch o.Outcome {
		case check.Unknown:
			w.Unknown++
		case check.NotApplied:
			w.NotApplied++
		case check.Applied:
			if o.Kind != check.Acquire { // which waits for others
				took = append(took, o.Return-o.Call)
			}
		case check.Refused:
		}
	}
	if slices.Sort(took); len(took) > 0 {
		w.P99 = took[(len(took)*99-1)/100]
	}
	if len(w.Violations) == 0 {
		require.NoError(s.t, os.RemoveAll(dir))
	}
	return w
}

// befall lets things go wrong until ctx is done, and mends the last. What befalls
// disks comes alone: what is expected of a node then could not be told from what
// is not.
func (s *soak) befall(ctx context.Context, n *nemesis) error {
	broken := slices.Concat([]power.Fault{power.CutOne, power.CutLeader, power.CutMajority, power.CutAll}, power.Others)
	var under sync.WaitGroup
	defer under.Wait()
	for ctx.Err() == nil {
		sleep(ctx, time.Second+time.Duration(s.rng.Int64N(int64(3*time.Second))))
		pick, lasts := s.rng.Uint64(), 300*time.Millisecond+time.Duration(s.rng.Int64N(int64(3*time.Second)))
		if ctx.Err() != nil {
			return nil
		}
		if s.rng.IntN(3) == 0 {
			f := broken[s.rng.IntN(len(broken))]
			under.Wait()
			if err := s.rig.Whole(); err != nil {
				return fmt.Errorf("before %s: %w", f.Name, err)
			}
			n.log("%s", f.Name)
			if err := f.Do(s.rig); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			s.rig.Faults[f.Name]++
			continue
		}
		k := n.kinds[s.rng.IntN(len(n.kinds))]
		under.Go(func() { n.befall(ctx, k, pick, lasts) })
	}
	return nil
}

// states holds the states of the nodes to each other, where they are of one log
// time. Nobody works, but what was left behind has leases, so that the time of
// the log goes on: they are asked side by side until all were seen at one.
func (s *soak) states(n *nemesis) error {
	type state struct {
		at     time.Duration
		digest string
	}
	seen := map[state]map[string]bool{} // by which nodes
	for end := time.Now().Add(3 * healWithin); ; time.Sleep(50 * time.Millisecond) {
		var mu sync.Mutex
		var asked sync.WaitGroup
		var errs []error
		whole := false
		for _, x := range s.rig.Nodes {
			asked.Go(func() {
				ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
				defer cancel()
				b, err := snapshot(ctx, n.members(x))
				var own state
				if err == nil {
					own.digest, own.at, err = sim.DigestOf(bytes.NewReader(b))
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", x.Name, err))
					return
				}
				if seen[own] == nil {
					seen[own] = map[string]bool{}
				}
				seen[own][x.Name] = true
				whole = whole || len(seen[own]) == len(s.rig.Nodes)
			})
		}
		if asked.Wait(); whole {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("no log time at which all nodes have one state: %v: %w", seen, errors.Join(errs...))
		}
	}
}

// resident is the memory of a process in MB, as far as it can be told.
func resident(pid int) (megabytes int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &megabytes); err == nil {
			return megabytes / 1024
		}
	}
	return 0
}

// keep copies what is needed to see what happened, and says where it is.
func (s *soak) keep() string {
	kept, err := os.MkdirTemp("", "govnode-soak-*")
	require.NoError(s.t, err)
	require.NoError(s.t, os.CopyFS(filepath.Join(kept, "histories"), os.DirFS(s.dir)))
	for _, n := range s.rig.Nodes {
		n.Kill()
		require.NoError(s.t, os.CopyFS(filepath.Join(kept, n.Name), os.DirFS(n.Dir)))
	}
	return "the histories of the clients and the data of the nodes are in " + kept
}
