package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rowOf returns the cells of the first line that begins with a measure.
func rowOf(t *testing.T, markdown, measure string) []string {
	t.Helper()
	for line := range strings.Lines(markdown) {
		if strings.HasPrefix(line, "| "+measure+" |") {
			return strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		}
	}
	t.Fatalf("no row %q in\n%s", measure, markdown)
	return nil
}

// The table of goals says what is reached, what misses, in both directions, and
// what was not measured.
func TestMarkdownGoals(t *testing.T) {
	r := NewResult(Apart, time.Unix(0, 0))
	for round := range 2 {
		wobble := float64(round)
		r.Of(etcd3).Add(0, runAt(1, 500+wobble, 1000))
		r.Of(etcd3).Add(1, runAt(256, 2000+wobble, 100_000))
		r.Of(three).Add(0, runAt(1, 250+wobble, 2500))
		r.Of(three).Add(1, runAt(256, 9000+wobble, 20_000))
		r.Of(redisName).Add(0, runAt(256, 10_000-2000*wobble, 100_000))
		r.Of(three+", hot-pool").Add(0, runAt(256, 8100+wobble, 20_000))
		r.Of(three + ", hot-pool").Scenario = HotPool
	}
	var b bytes.Buffer
	require.NoError(t, WriteMarkdown(&b, []Named{{"empty.json", NewResult(Apart, time.Unix(0, 0))}, {"apart.json", r}}))
	for measure, want := range map[string][]string{
		"3 nodes, Exchange, 256 callers, vs etcd 3 nodes":        {"4x", "8x", "**4.50x**", "`apart.json`"},
		"3 nodes vs Redis `appendfsync always`, 256 callers":     {"1x", "1.5x", "**1.12x**; rounds overlap", "`apart.json`"},
		"p50 at 256 callers, 3 nodes, vs etcd 3 nodes":           {"0.3x", "0.15x", "**0.20x**", "`apart.json`"},
		"one caller alone, 3 nodes, p50 vs etcd 3 nodes, boltdb": {"2x", "1.3x", "**2.50x**, misses", "`apart.json`"},
		"one hot pool instead of many (throughput kept)":         {"0.6x", "0.9x", "**0.90x**", "`apart.json`"},
		"1 node vs the same Redis, 256 callers":                  {"1.6x", "2.5x", "not measured"},
	} {
		require.Equal(t, want, rowOf(t, b.String(), measure)[1:], measure)
	}
	require.Contains(t, b.String(), "| govnode, 3 nodes, hot-pool | 256 callers | 8,100 | 20.0 ms | 40.0 ms |")
	require.Contains(t, b.String(), "rounds: 2")
	require.Error(t, WriteMarkdown(broken{}, nil))
}

// Systems are held against peers that did the same work, then against the first
// of their own kind, and a system against itself before much was done.
func TestAgainst(t *testing.T) {
	r := NewResult("apart, hot-pool", time.Unix(0, 0))
	add := func(system, scenario string, after int64, throughput float64) {
		run := runAt(8, throughput, 10)
		run.After = after
		s := r.Of(system)
		s.Scenario = scenario
		s.Add(len(s.Points), run)
	}
	add("etcd, 3 nodes", Apart, 0, 100)
	add("etcd, 3 nodes, hot-pool", HotPool, 0, 10)
	add(three, Apart, 0, 400)
	add(three, Apart, 1_000_000, 300)
	add(three+", hot-pool", HotPool, 0, 200)
	var got []string
	for _, a := range r.Against() {
		got = append(got, a.System+" / "+a.Against+" = "+times(a.Throughput))
	}
	require.Equal(t, []string{
		"govnode, 3 nodes / etcd, 3 nodes = 4.00x",
		"govnode, 3 nodes, hot-pool / etcd, 3 nodes, hot-pool = 20.00x",
		"govnode, 3 nodes, hot-pool / govnode, 3 nodes = 0.50x",
		"govnode, 3 nodes / itself at first = 0.75x",
	}, got)
	require.Equal(t, -1, Knee([]Run{{Throughput: 1}, {Throughput: 9, Load: Load{After: 1}}, {Throughput: 10, Load: Load{After: 2}}}), "no load differs")
}

func TestLoadInWords(t *testing.T) {
	for want, l := range map[string]Load{
		"1 caller":                            {Callers: 1},
		"1,024 callers":                       {Callers: 1024},
		"2,000 ops/s due, 256 callers":        {Callers: 256, Rate: 2000},
		"256 callers after 10,000,000 ops":    {Callers: 256, After: 10_000_000},
		"0.5 ops/s due, 1 caller after 5 ops": {Callers: 1, Rate: 0.5, After: 5},
	} {
		require.Equal(t, want, l.String())
	}
	for want, n := range map[string]int64{"0": 0, "999": 999, "1,000": 1000, "12,345,678": 12345678, "-999": -999, "-1,000": -1000} {
		require.Equal(t, want, Thousands(n))
	}
}

// Where there is one load there is no curve to draw.
func TestBars(t *testing.T) {
	r := NewResult(Pools, time.Unix(0, 0))
	r.Of("<10 slots>").Add(0, runAt(8, 400, 5000))
	r.Of("<10 slots>").Add(0, runAt(8, 300, 5000))
	r.Of("100 slots").Add(0, runAt(8, 100, 20_000))
	d := pageOf(r)
	require.Len(t, d.Bars, 2)
	require.Len(t, d.Plots, 1)
	svg := string(d.Bars[0].SVG())
	require.Contains(t, svg, "&lt;10 slots&gt;, 8 callers")
	require.Contains(t, svg, `width="487.5"`, "300 of the most, 400")
	require.Contains(t, svg, `x1="487.5" x2="650.0"`, "from the least to the most")
	require.Contains(t, svg, ">300</text>")
	require.Contains(t, string(d.Bars[1].SVG()), ">40.0 ms</text>")
	require.Empty(t, pageOf(sample(1)).Bars)
}

// Ticks that would lie on another are left out, whatever order they come in.
func TestTicksHaveRoom(t *testing.T) {
	x := axis{least: 0, most: 100, from: 0, to: 400}
	var kept []float64
	for _, k := range apartBy([]tick{{At: 100}, {At: 0}, {At: 5}, {At: 50}, {At: 55}}, x) {
		kept = append(kept, k.At)
	}
	require.Equal(t, []float64{0, 50, 100}, kept)
}
