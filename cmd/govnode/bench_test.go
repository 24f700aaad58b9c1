package main

import (
	"bytes"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// A wrong flag is named, nothing is started, and the exit code says so.
func TestBenchFlags(t *testing.T) {
	for field, args := range map[string][]string{
		"nodes":           {"--nodes", "2"},
		"scenario":        {"--scenario", "x"},
		"callers":         {"--callers", "0"},
		"rate":            {"--rate", "-1"},
		"rate: NaN":       {"--rate", "NaN"},
		"sweep: 0":        {"--sweep", "1,0"},
		"sweep: 7":        {"--sweep", "7,7"},
		"duration":        {"--duration", "1ms"},
		"warmup":          {"--warmup", "-1s"},
		"rounds":          {"--rounds", "0"},
		"clients":         {"--clients", "65"},
		"transport":       {"--transport", "pigeon"},
		"sessions":        {"--sessions", "2", "--against", "redis"},
		"slots":           {"--slots", "-1"},
		"slots: 0":        {"--slots", "10,0"},
		"fill: 0":         {"--fill", "0"},
		"fill: 100":       {"--fill", "100", "--callers", "101"},
		"fill, slots":     {"--fill", "1000", "--against", "redis"},
		"fill: belongs":   {"--addr", "127.0.0.1:1", "--fill", "1000"},
		"after: 5":        {"--after", "10,5"},
		"after: -1":       {"--after", "-1"},
		"after-callers":   {"--after-callers", "0"},
		"snapshots":       {"--snapshots", "never"},
		"log-store":       {"--log-store", "paper"},
		"hold":            {"--hold", "2h"},
		"against":         {"--against", "postgres"},
		"scenario: \"fle": {"--scenario", "fleet", "--against", "redis"},
		"etcd-nodes":      {"--etcd-nodes", "2"},
		"etcd-program":    {"--against", "etcd", "--etcd-program", "no-such-program"},
		"redis-server":    {"--against", "redis", "--redis-server", "no-such-program"},
		"calls-per-agent": {"--calls-per-agent", "-1"},
		"addr":            {"--addr", "nowhere"},
		"nodes: belongs":  {"--addr", "127.0.0.1:1", "--nodes", "3"},
	} {
		var out, errs bytes.Buffer
		code := execute(append([]string{"bench"}, args...), &out, &errs)
		require.Equal(t, terminal.ExitUsage, code, "%v: %s", args, &errs)
		require.Contains(t, errs.String(), "govnode: "+field, "%v", args)
		require.Empty(t, out.String())
	}
}

func TestBenchCompareCommand(t *testing.T) {
	write := func(name string, throughput float64) string {
		r := bench.NewResult(bench.Apart, time.Now())
		r.Of("govnode, 1 node").Add(0, bench.Run{Load: bench.Load{Callers: 8}, Counts: bench.Counts{Ops: 1}, Throughput: throughput, Latency: bench.Latency{P50: 10, P99: 20}})
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, r.WriteJSON(path))
		return path
	}
	var out, errs bytes.Buffer
	require.Equal(t, terminal.ExitYes, execute([]string{"bench", "compare", write("a", 100), write("b", 250)}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "2.50x")
	require.Equal(t, terminal.ExitUsage, execute([]string{"bench", "compare", write("a", 100), "absent.json"}, &out, &errs))
	require.Contains(t, errs.String(), "absent.json")
	require.Equal(t, terminal.ExitUsage, execute([]string{"bench", "compare", "one.json"}, &out, &errs))
}

// The whole command against a node that runs: figures, files, and ledgers that
// hold.
func TestBenchAgainstARunningNode(t *testing.T) {
	t.Parallel()
	node := start(t, "dev", "--backend", "memory", "--listen", "127.0.0.1:0")
	node.mustAwait(t, `^ready$`, 1)
	address := node.mustAwait(t, nodeLine, 1)[0][2]
	folder := t.TempDir()
	json, html := filepath.Join(folder, "r.json"), filepath.Join(folder, "r.html")
	var out, errs bytes.Buffer
	code := execute([]string{"bench", "--addr", address, "--sweep", "1,4,8", "--duration", "400ms", "--warmup", "50ms",
		"--calls-per-agent", "6", "--json", json, "--html", html}, &out, &errs)
	require.Equal(t, terminal.ExitYes, code, errs.String())
	require.Contains(t, out.String(), "the counts of 8 sessions equal the ledgers")
	require.Contains(t, out.String(), "agents fit")
	require.FileExists(t, html)
	r, err := bench.ReadResult(json)
	require.NoError(t, err)
	require.Len(t, r.Series[0].Points, 3)
	for _, p := range r.Series[0].Points {
		require.Positive(t, p.Median().Throughput)
	}
	require.Positive(t, r.Fit.Agents)
}

// A cluster that it starts itself: filled, worked, watched, and gone.
func TestBenchStartsACluster(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	json := filepath.Join(folder, "r.json")
	p := start(t, "bench", "--nodes", "1", "--fill", "500", "--scenario", "apart,hot-pool", "--snapshots", "save", "--callers", "4", "--sessions", "3",
		"--after", "0,50", "--after-callers", "8", "--duration", "1s", "--warmup", "20ms", "--json", json)
	require.NoError(t, p.wait(), p.printed())
	r, err := bench.ReadResult(json)
	require.NoError(t, err)
	require.Len(t, r.Series, 2)
	require.Equal(t, "govnode, 1 node, while saved, 500 sessions", r.Series[0].System)
	require.Equal(t, bench.HotPool, r.Series[1].Scenario)
	for _, s := range r.Series {
		require.Equal(t, 24, s.Audit[0].Sessions)
		require.Len(t, s.Points, 2)
		late := s.Points[1].Median()
		require.GreaterOrEqual(t, late.Before, int64(50))
		require.Positive(t, late.Disk.Log)
		require.Positive(t, late.Disk.SnapshotsTaken)
		if runtime.GOOS == "linux" {
			require.Equal(t, bench.Client, late.Processes[0].Name)
			require.Equal(t, "node1 (leader)", late.Processes[1].Name)
			require.Positive(t, late.Processes[1].CPU())
		}
	}
	var out, errs bytes.Buffer
	require.Equal(t, terminal.ExitYes, execute([]string{"bench", "table", json}, &out, &errs), errs.String())
	require.Contains(t, out.String(), "| govnode, 1 node, while saved, hot-pool, 500 sessions | 4 callers after 50 ops |")
}
