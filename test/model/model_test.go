package model

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session"
	"example.com/govnode/session/wire"
	"example.com/govnode/test/report"
)

func init() { session.GuardFootprints() }

// TestStateMachine applies what generators make to the model and to replicas. A
// part of it runs by default, with seeds that are the same each time.
// GOVNODE_L0=long runs a million commands with new seeds; GOVNODE_L0_SEED=n one
// seed alone, which is how a failure is seen again.
func TestStateMachine(t *testing.T) {
	first, seeds, steps := uint64(0), 20, 2500
	long := os.Getenv("GOVNODE_L0") == "long"
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // there is little in memory
	if long {
		first, seeds, steps = rand.Uint64()>>16, 165, 4000
	}
	if s := os.Getenv("GOVNODE_L0_SEED"); s != "" {
		var err error
		first, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		seeds = 1
	}
	start, all := time.Now(), NewCounts()
	var lock sync.Mutex
	var failed []string
	var again string
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(seeds) && !t.Failed(); i = next.Add(1) - 1 {
				seed := first + uint64(i)
				c, failure := history(t, seed, steps)
				lock.Lock()
				if failure != "" {
					failed = append(failed, fmt.Sprintf("%s (seed %d)", failure, seed))
					again = fmt.Sprintf("GOVNODE_L0=long GOVNODE_L0_SEED=%d go test ./test/model -run StateMachine -v -count=1", seed)
				}
				all.Add(c)
				lock.Unlock()
			}
		})
	}
	workers.Wait()
	layer := report.Layer{
		Name: "L0", Took: time.Since(start), Operations: all.All(), Violations: failed, Replay: again,
		Figures: map[string]float64{"cuts": float64(all.Cuts), "digests compared": float64(all.Digests), "entries": float64(all.Steps)},
	}
	for i := range seeds {
		layer.Seeds = append(layer.Seeds, first+uint64(i))
	}
	require.NoError(t, report.Write(layer))
	if t.Failed() {
		return
	}
	t.Log(summary(all, first, seeds))
	if long && seeds > 1 {
		require.GreaterOrEqual(t, all.All(), 1_000_000)
		require.GreaterOrEqual(t, all.Cuts, 2000)
	}
	if seeds > 1 {
		require.Len(t, all.Commands, known(), "a kind of commands that no generator makes")
	}
}

// TestSeedsThatFailed runs those in which something was wrong once.
func TestSeedsThatFailed(t *testing.T) {
	for _, seed := range []uint64{
		99515532479189, // the law of rates did not know what a call has that waits for another rate
	} {
		_, failure := history(t, seed, 4000)
		require.Empty(t, failure, "seed %d", seed)
	}
}

// history runs one seed, and returns what it did and what was wrong.
func history(t *testing.T, seed uint64, n int) (*Counts, string) {
	c := NewChecker()
	g := NewGenerator(seed, c.Model)
	var steps []Step
	for range n {
		s := g.Step()
		steps = append(steps, s)
		err := c.Step(s)
		if err == nil {
			continue
		}
		short, failure := Shrink(steps, 60_000)
		if failure == nil {
			t.Errorf("seed %d: %v\nIt does not fail again: the state machine is not a function of its log.", seed, err)
			return c.Counts, err.Error()
		}
		commands := c.Counts.All()
		t.Errorf("%v\n\nThat is step %d of seed %d, after %d commands; GOVNODE_L0_SEED=%d sees it again. These %d steps fail as well:\n%v\n\n%s",
			failure, c.Counts.Steps, seed, commands, seed, len(short), failure, Program(short))
		return c.Counts, failure.Error()
	}
	return c.Counts, ""
}

// summary tells what was applied, and of each kind of command what became of it: what is
// drawn so that it nearly always comes to the same shows nothing.
func summary(c *Counts, first uint64, seeds int) string {
	text := &strings.Builder{}
	fmt.Fprintf(text, "L0: %d commands in %d entries, %d cuts, %d digests compared, divergences 0, seeds %d to %d",
		c.All(), c.Steps, c.Cuts, c.Digests, first, first+uint64(seeds)-1)
	for _, kind := range slices.Sorted(maps.Keys(c.Commands)) {
		fmt.Fprintf(text, "\n  %s %d:", kind, c.Commands[kind])
		codes := c.Codes[kind]
		for _, code := range slices.SortedFunc(maps.Keys(codes), func(a, b string) int {
			return cmp.Or(codes[b]-codes[a], strings.Compare(a, b))
		}) {
			fmt.Fprintf(text, " %s %d", code, codes[code])
		}
	}
	return text.String()
}

// TestLog applies a log to the model and to replicas: the file that GOVNODE_L0_LOG
// names, which a run of clusters leaves behind when something is wrong, see
// ReadLog. Beside it, with .answers behind its name, it writes what the state
// machine answers. Without such a file it applies what a generator made.
func TestLog(t *testing.T) {
	path := os.Getenv("GOVNODE_L0_LOG")
	if path == "" {
		path = filepath.Join(t.TempDir(), "log")
		var log []byte
		m, lines := New(), 0
		entry := func(s Step) {
			m.Apply(s.At, s.Commands)
			log = append(hex.AppendEncode(log, session.EncodeEntry(s.At, s.Commands)), '\n')
			lines++
		}
		for g := NewGenerator(5, m); len(log) < 1<<18; {
			entry(g.Step())
		}
		made := func(id string) *session.PutToken {
			return &session.PutToken{NS: "one", By: session.Maker{Client: "op"}, Token: session.Token{ID: id, Hash: session.Digest{1}, Roles: 1}}
		}
		entry(Step{At: m.Now, Commands: []session.Command{made("one"), made("two")}})
		saved := lines
		entry(Step{At: m.Now, Commands: []session.Command{
			&session.RevokeToken{NS: "one", By: session.Maker{Client: "op"}, ID: "one"}, made("three"),
			&session.Deny{NS: "one", By: session.Maker{Client: "op"}, Denied: session.DeniedSubject{Subject: "cert:late"}},
			&session.PutQuotas{NS: "one", By: session.Maker{Client: "op"}, Quotas: session.Quotas{Sessions: 7}},
		}})
		log = fmt.Appendf(log, "restore %d %d\n", lines/2, m.Now)
		log = fmt.Appendf(log, "restore %d %d\n", saved, m.Now)
		log = append(hex.AppendEncode(log, session.EncodeEntry(m.Now, []session.Command{
			&session.Acquire{NS: "one", Client: "c", Slot: "s", Pool: "a", Weight: 1, TTL: time.Second},
		})), '\n')
		require.NoError(t, os.WriteFile(path, log, 0o644))
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	log, err := ReadLog(f)
	require.NoError(t, err)
	require.NotEmpty(t, log)
	answers, err := os.Create(path + ".answers")
	require.NoError(t, err)
	defer answers.Close()
	buffered := bufio.NewWriter(answers)
	failure := Replay(log, buffered)
	require.NoError(t, buffered.Flush())
	t.Logf("%d lines; answers and digests: %s", len(log), answers.Name())
	if failure == nil {
		return
	}
	var steps []Step
	for _, l := range log {
		if l.Restores {
			t.Fatal(failure) // what a restore brings back cannot be made shorter
		}
		steps = append(steps, l.Step)
	}
	short, again := Shrink(steps, 60_000)
	t.Fatalf("%v\n\nThese %d steps fail as well:\n%v\n\n%s", failure, len(short), again, Program(short))
}

// Equal seeds make equal steps, whatever maps do.
func TestGeneratorIsAFunctionOfItsSeed(t *testing.T) {
	for seed := range uint64(8) {
		a, b := New(), New()
		g, h := NewGenerator(seed, a), NewGenerator(seed, b)
		for i := range 500 {
			x, y := g.Step(), h.Step()
			require.Equal(t, x, y, "seed %d, step %d", seed, i)
			a.Apply(x.At, x.Commands)
			b.Apply(y.At, y.Commands)
		}
	}
}

// A failure is made short: of many steps those remain that are needed.
func TestShrink(t *testing.T) {
	// What cannot be: a command that is not valid fails by itself.
	var steps []Step
	m := New()
	for g := NewGenerator(1, m); len(steps) < 300; {
		steps = append(steps, g.Step())
		m.Apply(steps[len(steps)-1].At, steps[len(steps)-1].Commands)
	}
	bad := &session.Close{NS: "one"}
	steps[200].Commands = append(slices.Clone(steps[200].Commands), bad)
	short, failure := Shrink(steps, 60_000)
	require.Equal(t, []Step{{At: steps[200].At, Commands: []session.Command{bad}}}, short)
	var f *Failure
	require.True(t, errors.As(error(failure), &f))
	require.Contains(t, Program(short), `&session.Close{NS: "one"}`)
}

// known is how many kinds of commands the state machine has.
func known() (n int) {
	for kind := range protowire.Number(session.Version) {
		empty := protowire.AppendBytes(protowire.AppendTag(nil, kind+1, protowire.BytesType), nil)
		if _, err := session.DecodeCommand(wire.Command.Seal(empty, 0)); !errors.Is(err, session.ErrUnknownKind) {
			n++
		}
	}
	return n
}
