package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster"
	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/test/report"
)

// memoryEnv has the bits that this process turns.
const memoryEnv = "GOVNODE_L6_BITS"

// memoryBits are so many bits that turn in one run.
type memoryBits struct {
	Seed  uint64
	Count int
}

// memoryFound is what became of them.
type memoryFound struct {
	Found   int
	Gone    int           // since their node began anew before it found them
	Most    time.Duration // from the bit to the node's end
	Faults  map[string]int
	Cluster time.Duration
}

// A bit that turns in the memory of one member is found while other faults are
// under way: where nobody writes by that member alone, in what is written to by
// the others' word. After it turned, the member agrees with the others in at most
// one more of the rounds in which the members compare their states.
func TestTurnedBitsAreFound(t *testing.T) {
	if text := os.Getenv(memoryEnv); text != "" {
		var b memoryBits
		require.NoError(t, json.Unmarshal([]byte(text), &b))
		inVirtualTime(t, func(t *testing.T) { turnBits(t, b) })
		return
	}
	if os.Getenv(settingEnv) != "" {
		t.Skip("this process runs one setting")
	}
	runs := []memoryBits{{1, 3}}
	if os.Getenv("GOVNODE_L1") == "long" {
		runs = []memoryBits{{rand.Uint64N(1 << 32), 12}, {rand.Uint64N(1 << 32), 12}}
	}
	began, all := time.Now(), report.Layer{Name: "L6", Faults: map[string]int{}, Figures: map[string]float64{}, P99: map[string]time.Duration{}}
	for _, b := range runs {
		text, err := json.Marshal(b)
		require.NoError(t, err)
		out, err := testProcess(t.Context(), "^TestTurnedBitsAreFound$", memoryEnv+"="+string(text))
		require.NoError(t, err, "%s=%s: %s", memoryEnv, text, out)
		_, line, _ := strings.Cut(out, reportMark)
		line, _, _ = strings.Cut(line, "\n")
		t.Logf("%s: %s", text, line)
		var m memoryFound
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		all.Seeds, all.Cluster = append(all.Seeds, b.Seed), all.Cluster+m.Cluster
		all.Figures["bits found"] += float64(m.Found)
		all.Figures["bits gone with their process"] += float64(m.Gone)
		all.P99["a turned bit ends its node"] = max(all.P99["a turned bit ends its node"], m.Most)
		for kind, n := range m.Faults {
			all.Faults[kind] += n
		}
	}
	all.Took = time.Since(began)
	require.NoError(t, report.Write(all))
}

const checkEvery = 20 * time.Second

// A turned bit has to be found, unless the member begins anew before that.
func turnBits(t *testing.T, b memoryBits) {
	start, rng := time.Now(), rand.New(rand.NewPCG(b.Seed, 6))
	var mu sync.Mutex
	registries := map[string]*prometheus.Registry{}
	f, err := newFleet(3+2*rng.IntN(2), rng, slog.New(slog.DiscardHandler), func(c *cluster.Config) {
		// The log stays whole, so that who begins anew has nothing of a snapshot of
		// the damaged one.
		c.SnapshotBytes, c.CheckInterval, c.Registry = 1<<40, checkEvery, prometheus.NewRegistry()
		mu.Lock()
		defer mu.Unlock()
		registries[c.ID] = c.Registry
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.end()) }()
	require.NoError(t, f.found())
	_, _, err = storage.One(t.Context(), f.leader().up(), &session.Increment{NS: quietNS, By: session.Maker{Client: "c", Request: "1"}, Key: "quiet", Amount: 1})
	require.NoError(t, err)
	rec := &recorder{start: time.Now()}
	w, err := newWorker("c1", f, rng, rec, 200*time.Millisecond, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer func() { require.NoError(t, w.close()) }()
	require.NoError(t, w.prepare(t.Context()))

	n := newNemesis(f, rng, []*worker{w}, Setting{Seed: b.Seed, Length: time.Duration(b.Count) * 2 * time.Minute, Gap: 8 * time.Second})
	n.faults = slices.DeleteFunc(n.faults, func(f fault) bool {
		return slices.Contains([]string{"replace", "remove and add", "restore"}, f.kind) // they are for whoever has the damage
	})
	working, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() { w.work(working) })
	busy.Go(n.run)

	rounds := func(name string) (agreed float64) {
		mu.Lock()
		families, err := registries[name].Gather()
		mu.Unlock()
		require.NoError(t, err)
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "gov_raft_state_checks_total" && m.GetLabel()[0].GetValue() == "agree" {
					agreed = m.GetCounter().GetValue()
				}
			}
		}
		return agreed
	}
	var m memoryFound
	for i := range b.Count {
		time.Sleep(time.Duration(rng.Int64N(int64(2 * checkEvery))))
		h := n.anyHost(rng)
		var node *cluster.Node
		for before := 0.0; ; time.Sleep(time.Second) { // between two rounds: one that is under way may agree as well
			up := h.up()
			if up != nil && up == node && rounds(h.name) > before {
				break
			}
			if node = up; node != nil {
				before = rounds(h.name)
			}
		}
		require.True(t, turn(node, i%2 == 0))
		at, before := time.Now(), rounds(h.name)
		for len(h.failures()) == 0 && h.up() == node {
			agreed := rounds(h.name) - before
			require.LessOrEqual(t, agreed, 1.0, "%s has agreed with the others %v times since its memory changed", h.name, agreed)
			time.Sleep(time.Second)
		}
		if len(h.failures()) == 0 {
			m.Gone++
			continue
		}
		require.Regexp(t, "changed by itself|differs from that of a majority", h.failures()[0].Error())
		m.Found, m.Most = m.Found+1, max(m.Most, time.Since(at))
		h.mu.Lock()
		h.failed = nil
		h.mu.Unlock()
		h.crash(false)
		h.disk.wipe()
		n.enter(h, true)
	}
	busy.Go(func() { time.Sleep(time.Until(n.start.Add(n.length))); stop() })
	busy.Wait()
	require.Positive(t, m.Found)
	m.Faults, m.Cluster = n.counts, time.Since(start)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	fmt.Println(reportMark + string(text))
}

const quietNS = "quiet"

// turn changes the state of a node behind its back: a bit of a counter to which
// nobody writes, or as if it had counted once more than the others. It reports
// false where there is nothing to change.
func turn(node *cluster.Node, quiet bool) bool {
	fsm := private(reflect.ValueOf(node), "fsm")
	mu := private(fsm, "mu").Addr().Interface().(*sync.RWMutex)
	mu.Lock()
	defer mu.Unlock()
	state := private(fsm, "state").Interface().(*session.State)
	c, _ := state.Stored(session.CounterKey(quietNS, "quiet")).(*session.Counter)
	if c == nil {
		return false
	}
	if quiet {
		c.Value.N ^= 1 << 40
	} else {
		state.ApplyAll(state.Now(), []session.Command{&session.Increment{NS: quietNS, By: session.Maker{Client: "c", Request: "rogue"}, Key: "quiet", Amount: 1}})
	}
	return true
}

// private is a field of what v points to, which its package shows to nobody: so
// does memory that fails.
func private(v reflect.Value, name string) reflect.Value {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	field := v.FieldByName(name)
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
}
