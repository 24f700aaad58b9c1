package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/test/alone"
	"example.com/govnode/test/chaos/trail"
	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/report"
	"example.com/govnode/test/sim"
)

// healWithin is how long a cluster may take to be whole again.
const healWithin = 10 * time.Second

// firstAnswerWithin is how long the other nodes may take to answer after their
// leader was killed.
const firstAnswerWithin = 3 * time.Second

// keepEnv is set to keep what a run in which nothing was wrong left behind.
const keepEnv = "GOVNODE_L2_KEEP"

// TestProcesses runs three nodes and their clients under faults for GOVNODE_L2_FOR
// (3 minutes), drawn by GOVNODE_L2_SEED, and wants nothing of what they promise to
// be broken.
func TestProcesses(t *testing.T) {
	seed, length := setting(t, 3*time.Minute)
	l := run(t, seed, length)
	tell(t, l)
}

// setting is what the environment says of a run.
func setting(t *testing.T, usually time.Duration) (seed uint64, length time.Duration) {
	if os.Getenv("GOVNODE_L2") == "" {
		t.Skip("real processes for some minutes: GOVNODE_L2=1, or make prove-l2")
	}
	seed, length = rand.Uint64N(1<<32), usually
	if text := os.Getenv("GOVNODE_L2_FOR"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err, "GOVNODE_L2_FOR")
	}
	if text := os.Getenv("GOVNODE_L2_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "GOVNODE_L2_SEED")
	}
	t.Logf("GOVNODE_L2_SEED=%d", seed)
	return seed, length
}

// tell writes the report, and fails with what is broken.
func tell(t *testing.T, l report.Layer) {
	require.NoError(t, report.Write(l))
	t.Logf("%d operations, %.2f %% unknown, %d not applied, %d faults of %d kinds, %v", l.Operations,
		100*float64(l.Unknown)/float64(max(l.Operations, 1)), l.NotApplied, sum(l.Faults), len(l.Faults), l.Figures)
	for _, kind := range slices.Sorted(maps.Keys(l.Faults)) {
		t.Logf("%6d %s", l.Faults[kind], kind)
	}
	for _, v := range l.Violations {
		t.Error(v)
	}
	if l.Replay != "" {
		t.Log(l.Replay)
	}
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// whole waits until all nodes are well and have a vote. One whose folder was lost is sent
// the log from its beginning, which is kept as the witness: that counts as a millisecond
// for each entry. It is well before it has its vote, and until then the loss of one more
// is that of the majority.
func whole(c *processes.Cluster) error {
	var entries uint64
	for _, x := range c.Nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		if s, err := c.Status(ctx, x); err == nil && s.Backend == "raft" {
			entries = max(entries, s.AppliedIndex)
		}
		cancel()
	}
	end := time.Now().Add(healWithin + time.Duration(entries)*time.Millisecond)
	for {
		err := c.Ready(time.Until(end))
		if err == nil {
			err = vote(c)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// vote reports who has no vote.
func vote(c *processes.Cluster) error {
	for _, x := range c.Nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err := c.Status(ctx, x)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", x.Name, err)
		}
		for _, p := range s.Peers {
			if p.Role == "nonvoter" {
				return fmt.Errorf("%s has no vote, says %s", p.Node, x.Name)
			}
		}
	}
	return nil
}

// run runs three nodes that put commands in order by themselves.
func run(t *testing.T, seed uint64, length time.Duration) report.Layer {
	dir := t.TempDir()
	program, err := processes.Program(dir)
	require.NoError(t, err)
	network, err := processes.NewNetwork(seed)
	require.NoError(t, err)
	c, err := processes.New(program, network, 3, func(node string) string { return filepath.Join(dir, node) },
		"--raft-snapshot-bytes", "1048576", "--raft-trailing-logs", "16777216", "--log-level", "warn") // the log stays whole: it is the witness
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.NoError(t, c.Secure(filepath.Join(dir, tlsDir)))
	require.NoError(t, c.AuditTo(filepath.Join(dir, auditDir)))
	require.NoError(t, c.Found(20*time.Second))
	return scenario{
		name: "L2", dir: dir, cluster: c, kinds: ofRaft, processes: 3,
		judge: func(h *check.History) []check.Violation { return judge(t, c, h, filepath.Join(dir, logLines)) },
	}.run(t, seed, length)
}

// tlsDir is the folder of the certificates of a run, and of the tokens.
const tlsDir = "tls"

// auditDir is the folder of the audits, which stay when the folder of a node is lost.
const auditDir = "audit"

// A scenario is clients at work on a cluster that runs, and what befalls it.
type scenario struct {
	name      string
	dir       string // of what is kept if something is wrong
	cluster   *processes.Cluster
	kinds     []kind
	processes int // of clients
	judge     func(*check.History) []check.Violation
}

// run lets things go wrong for a while, heals, and judges.
func (s scenario) run(t *testing.T, seed uint64, length time.Duration) (l report.Layer) {
	began := time.Now()
	var addresses []string
	for _, n := range s.cluster.Nodes {
		addresses = append(addresses, n.API)
	}
	work := sim.Workload{Name: "main", Addresses: addresses, Clients: 16, Seed: seed, Think: 12 * time.Millisecond, Start: time.Now(), Site: filepath.Join(s.dir, "site")}
	keys, err := newKeys(s.cluster, &work)
	require.NoError(t, err)
	require.NoError(t, work.Prepare(t.Context()))
	all := &clients{dir: s.dir, work: work, start: monotonic(), keys: keys}
	audits := trail.New(s.cluster, filepath.Join(s.dir, auditDir), time.Now())
	require.NoError(t, all.begin(s.processes))

	n := &nemesis{cluster: s.cluster, clients: all, token: keys.own, audits: audits, kinds: s.kinds, rng: rand.New(rand.NewPCG(seed, 2)), faults: map[string]int{}, log: func(format string, args ...any) {
		t.Logf("%6.1f s "+format, append([]any{time.Since(began).Seconds()}, args...)...)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	n.run(ctx)

	violated := func(name string, err error) {
		if err != nil {
			l.Violations = append(l.Violations, name+": "+err.Error())
		}
	}
	for _, err := range n.broken {
		violated("nemesis", err)
	}
	violated("heal", whole(s.cluster))
	h, broken, err := all.end()
	violated("clients", err)
	h.Ops = append(h.Ops, n.ops...)
	for _, err := range goes(t, s.cluster, work) {
		violated("goes", err)
	}
	time.Sleep(sim.Longest) // real processes have no other clock
	held, err := work.Final(t.Context(), &h)
	violated("final", err)
	violated("orphans", held)
	violated("heads", audits.Heads(keys.own))
	for _, v := range append(broken, s.judge(&h)...) {
		l.Violations = append(l.Violations, v.String())
	}
	for _, x := range s.cluster.Nodes {
		x.Stop(15 * time.Second)
	}
	found, err := audits.Judge(h)
	violated("audit", err)
	for _, v := range found.Broken {
		l.Violations = append(l.Violations, v.String())
	}
	for _, x := range s.cluster.Nodes {
		for _, err := range x.Failures() {
			violated("node", err)
		}
	}
	l.Name, l.Seeds, l.Took, l.Faults = s.name, []uint64{seed}, time.Since(began), n.faults
	l.Figures, l.P99 = map[string]float64{"lines of audits verified": float64(found.Lines), "places without a line where nodes were killed": float64(found.Missing)}, map[string]time.Duration{}
	count(&l, h)
	if len(n.answered) > 0 {
		slices.Sort(n.answered)
		p99 := n.answered[(len(n.answered)*99-1)/100]
		l.P99["first answer after the leader was killed"] = p99
		l.Figures["leaders killed and the next one waited for"] = float64(len(n.answered))
		if p99 > firstAnswerWithin {
			violated("first answer", fmt.Errorf("after the kill of a leader it took %v", n.answered))
		}
	}
	if len(l.Violations) > 0 || os.Getenv(keepEnv) != "" {
		kept, err := os.MkdirTemp("", "govnode-l2-*")
		require.NoError(t, err)
		require.NoError(t, os.CopyFS(kept, os.DirFS(s.dir)))
		path := filepath.Join(kept, logLines)
		if _, err := os.Stat(path); err == nil {
			l.Replay = fmt.Sprintf("the log again, entry by entry: GOVNODE_L0_LOG=%s go test -tags hashicorpmetrics ./test/model -run TestLog -v; ", path)
		}
		l.Replay += fmt.Sprintf("the histories of the clients and the data of the nodes are in %s; the same plan again: GOVNODE_L2_SEED=%d make prove-l2", kept, seed)
	}
	return l
}

// goes ends the node that leads, and then one of them, in order while others wait there.
// Nothing is wrong any more, and nobody else is at work.
func goes(t *testing.T, c *processes.Cluster, work sim.Workload) (broken []error) {
	leads := 0
	if l := c.Leader(); l != nil {
		leads = slices.Index(c.Nodes, l)
	}
	for _, at := range []int{leads, int(work.Seed % uint64(len(c.Nodes)))} {
		x := c.Nodes[at]
		whole, found, err := work.Goes(t.Context(), alone.Going{Node: at, InOrder: true, Go: func() { x.Stop(15 * time.Second) }, Keep: 2 * time.Second})
		broken = append(broken, err)
		for _, text := range found {
			broken = append(broken, errors.New(text))
		}
		if t.Logf("%s was ended in order while others waited there; all was looked at: %v", x.Name, whole); !x.Runs() {
			broken = append(broken, c.Start(x))
		}
		broken = append(broken, c.Ready(healWithin))
	}
	return broken
}

func count(l *report.Layer, h check.History) {
	l.Operations = len(h.Ops) + sum(h.Alone)
	for _, o := range h.Ops {
		switch o.Outcome {
		case check.Unknown:
			l.Unknown++
		case check.NotApplied:
			l.NotApplied++
		case check.Applied, check.Refused:
		}
	}
}

// logLines is the file with the log, as package model reads it.
const logLines = "log.lines"

// judge stops the nodes and holds the history to their logs, and their states to
// each other. If something is broken it leaves the log behind.
func judge(t *testing.T, c *processes.Cluster, h *check.History, lines string) (broken []check.Violation) {
	violated := func(name string, err error) {
		if err != nil {
			broken = append(broken, check.Violation{Check: name, Text: err.Error()})
		}
	}
	n := &nemesis{cluster: c}
	own, until := map[string]string{}, uint64(0)
	var at []time.Duration
	times := map[string]time.Duration{}
	for _, x := range c.Nodes {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		b, err := snapshot(ctx, n.members(x))
		if err == nil {
			own[x.Name], times[x.Name], err = sim.DigestOf(bytes.NewReader(b))
			at = append(at, times[x.Name])
		}
		violated("states", err)
		s, err := c.Status(ctx, x)
		violated("states", err)
		until = max(until, s.GetAppliedIndex())
		cancel()
	}
	var logs []map[uint64]*raft.Log
	for _, x := range c.Nodes {
		x.Stop(15 * time.Second)
		log, err := readLog(x.Dir)
		violated("log", err)
		logs = append(logs, log)
	}
	effects, digests, err := sim.Replay(logs, until, at)
	violated("log", err)
	if err != nil {
		return broken
	}
	for name, digest := range own {
		if !slices.Contains(digests[times[name]], digest) {
			violated("states", fmt.Errorf("%s has the state %s at log time %v, and the log comes to %v", name, digest, times[name], digests[times[name]]))
		}
	}
	h.Effects = effects
	broken = append(broken, check.All(*h)...)
	if len(broken) > 0 || os.Getenv(keepEnv) != "" {
		b, err := sim.LogLines(logs, until)
		violated("log", errors.Join(err, os.WriteFile(lines, b, 0o600)))
	}
	return broken
}

// readLog returns what the folder of a node that does not run has of the log.
func readLog(dir string) (map[uint64]*raft.Log, error) {
	s, err := durable.Open(durable.Options{Dir: dir, LogStore: durable.BoltDB, Segment: durable.SegmentSize, Logger: hclog.NewNullLogger()})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	first, err := s.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := s.LastIndex()
	if err != nil {
		return nil, err
	}
	log := make(map[uint64]*raft.Log, last-first+1)
	for i := first; i <= last; i++ {
		e := &raft.Log{}
		if err := s.GetLog(i, e); err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		log[i] = e
	}
	return log, nil
}
