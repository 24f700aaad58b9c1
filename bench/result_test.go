package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func runAt(callers int, throughput float64, p50 int64) Run {
	return Run{Load: Load{Callers: callers}, Counts: Counts{Ops: 1}, Throughput: throughput, Latency: Latency{P50: p50, P99: 2 * p50, Curve: []int64{p50, p50, p50}}}
}

func TestKnee(t *testing.T) {
	runs := func(pairs ...float64) (all []Run) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, runAt(int(pairs[i]), pairs[i+1], 1))
		}
		return all
	}
	for name, c := range map[string]struct {
		runs []Run
		want int
	}{
		"too few to tell":          {runs(1, 10, 2, 100, 4, 200, 8, 205), -1},
		"flat behind the third":    {runs(1, 10, 10, 100, 20, 200, 40, 205, 80, 207), 2},
		"falls behind the second":  {runs(1, 10, 16, 150, 64, 100, 128, 70, 256, 50), 1},
		"a straight line":          {runs(10, 100, 20, 200, 30, 300, 40, 400, 50, 500), -1},
		"flat from the beginning":  {runs(1, 50, 2, 50, 3, 50, 4, 50, 5, 50), -1},
		"more than in proportion":  {runs(1, 1, 2, 4, 3, 9, 4, 16, 5, 25), -1},
		"slowly bending at the th": {runs(1, 500, 64, 9000, 256, 17000, 512, 21000, 1024, 26000), 2},
	} {
		require.Equal(t, c.want, Knee(c.runs), name)
	}
	open := runs(1, 100, 1, 200, 1, 300, 1, 310, 1, 312)
	for i := range open {
		open[i].Rate = float64(100 * (i + 1))
	}
	open[3].Rate, open[4].Rate = 1000, 2000
	require.Equal(t, 2, Knee(open), "by rate in an open loop")
}

// A curve without a knee says why; what is no curve says nothing.
func TestNoKnee(t *testing.T) {
	series := func(runs ...Run) *Series {
		r := NewResult(Apart, time.Unix(0, 0))
		for i, run := range runs {
			r.Of("s").Add(i, run)
		}
		r.Finish()
		return r.Series[0]
	}
	three := []Run{runAt(1, 10, 1), runAt(16, 150, 1), runAt(64, 160, 1)}
	require.Contains(t, series(three...).NoKnee(), "3 loads are too few")
	require.Contains(t, series(runAt(1, 10, 1), runAt(2, 20, 1), runAt(3, 30, 1), runAt(4, 40, 1), runAt(5, 50, 1)).NoKnee(), "it has no knee")
	require.Empty(t, series(append(three, runAt(128, 161, 1), runAt(256, 162, 1))...).NoKnee(), "it has one")
	require.Empty(t, series(three[0]).NoKnee(), "one load is no curve")
	later := runAt(1, 10, 1)
	later.After = 100
	require.Empty(t, series(three[0], later).NoKnee(), "nor are two ages")
}

func TestFitAgents(t *testing.T) {
	for _, c := range []struct {
		throughput, perMinute float64
		hold                  time.Duration
		agents, open          int64
		ops                   float64
	}{
		{2000, 60, time.Second, 1000, 1000, 2},      // a call a second costs two operations
		{2000, 6, 2 * time.Second, 10000, 2000, 2},  // a tenth of the calls, twice as long
		{2000, 6, 25 * time.Second, 5000, 12500, 4}, // two renewals
		{2000, 6, 10 * time.Second, 6666, 6666, 3},  // the first renewal is due then
		{1, 60, 0, 0, 0, 2},                         // not even one
		{2000, 0.5, 500 * time.Millisecond, 120000, 500, 2},
	} {
		f, err := FitAgents(c.throughput, c.perMinute, c.hold)
		require.NoError(t, err)
		require.Equal(t, c.agents, f.Agents, "%+v", c)
		require.Equal(t, c.open, f.OpenCalls, "%+v", c)
		require.InDelta(t, c.ops, f.OpsPerCall, 1e-9)
	}
	for field, f := range map[string]func() (Fit, error){
		"throughput":      func() (Fit, error) { return FitAgents(0, 1, 0) },
		"calls-per-agent": func() (Fit, error) { return FitAgents(1, 0, 0) },
		"hold":            func() (Fit, error) { return FitAgents(1, 1, -1) },
	} {
		_, err := f()
		require.ErrorContains(t, err, field+":")
	}
}

// sample has two rounds of two systems at three loads.
func sample(scale float64) *Result {
	r := NewResult(Apart, time.Unix(0, 0).UTC())
	for round := range 3 {
		for i, callers := range []int{1, 64, 256, 512, 1024} {
			noise := 1 + 0.01*float64(round)
			r.Of("etcd, 3 nodes").Add(i, runAt(callers, []float64{500, 4000, 3800, 3500, 3000}[i]*noise, 1600))
			r.Of("govnode, 3 nodes").Add(i, runAt(callers, []float64{400, 9000, 15000, 19000, 24000}[i]*noise*scale, 800))
		}
	}
	r.Finish()
	return r
}

func TestMedianAndSpread(t *testing.T) {
	p := Point{Runs: []Run{runAt(1, 30, 1), runAt(1, 10, 2), runAt(1, 20, 3), runAt(1, 40, 4)}}
	require.EqualValues(t, 20, p.Median().Throughput)
	least, most := p.Spread()
	require.EqualValues(t, 10, least)
	require.EqualValues(t, 40, most)
	require.Zero(t, Point{}.Median())
}

func TestCompare(t *testing.T) {
	before, after := filepath.Join(t.TempDir(), "a.json"), filepath.Join(t.TempDir(), "b.json")
	require.NoError(t, sample(1).WriteJSON(before))
	require.NoError(t, sample(1.5).WriteJSON(after))
	a, err := ReadResult(before)
	require.NoError(t, err)
	require.Equal(t, sample(1), a)
	b, err := ReadResult(after)
	require.NoError(t, err)

	ratios, err := Compare(a, b)
	require.NoError(t, err)
	require.Len(t, ratios, 10)
	for _, r := range ratios {
		want := 1.0
		if r.System == "govnode, 3 nodes" {
			want = 1.5
		}
		require.InDelta(t, want, r.Throughput, 1e-9)
		require.Equal(t, want > 1, r.Apart, "rounds that do not overlap are told from those that do")
		require.InDelta(t, 1, r.P50, 1e-9)
	}

	against := a.Against()
	require.Len(t, against, 5)
	require.Equal(t, "govnode, 3 nodes", against[4].System)
	require.InDelta(t, 8, against[4].Throughput, 1e-9)
	require.InDelta(t, 0.5, against[4].P50, 1e-9)

	b.Scenario = Reads
	_, err = Compare(a, b)
	require.ErrorContains(t, err, "scenario:")
	_, err = Compare(a, NewResult(Apart, time.Now()))
	require.ErrorContains(t, err, "in common")
	b.Format = 99
	require.NoError(t, b.WriteJSON(after))
	_, err = ReadResult(after)
	require.ErrorContains(t, err, "format: 99")
	require.NoError(t, os.WriteFile(after, []byte("no"), 0o600))
	_, err = ReadResult(after)
	require.ErrorContains(t, err, "is not a result")
}

// Whatever the callers were answered and the system has not counted, or the
// other way round, is found.
func TestLedgers(t *testing.T) {
	own := []Ledger{{Counted: Counted{3, 2, 2}}, {Counted: Counted{5, 5, 4}}}
	equal := []Counted{{3, 2, 2}, {5, 5, 4}}
	a, err := CompareLedgers(own, equal)
	require.NoError(t, err)
	require.Equal(t, Audit{Sessions: 2, Attempts: 8, Calls: 7}, a)
	for field, plant := range map[string]func(c *Counted, by int64){
		"attempts":   func(c *Counted, by int64) { c.Attempts += by },
		"calls":      func(c *Counted, by int64) { c.Calls += by },
		"executions": func(c *Counted, by int64) { c.Executions += by },
	} {
		for _, by := range []int64{-1, 1} {
			wrong := append([]Counted(nil), equal...)
			plant(&wrong[1], by)
			_, err := CompareLedgers(own, wrong)
			require.ErrorContains(t, err, "1 of 2 sessions")
			require.ErrorContains(t, err, "session of caller 1: "+field)

			doubtful := append([]Ledger(nil), own...)
			doubtful[1].Unknown = 1
			_, err = CompareLedgers(doubtful, wrong)
			require.Equal(t, by < 0, err != nil, "what got no answer may have been counted, once, and nothing may be missing")
		}
	}
	_, err = CompareLedgers(own, equal[:1])
	require.ErrorContains(t, err, "ledgers:")
}

func TestText(t *testing.T) {
	r := sample(1)
	r.Series[0].Audit = []Audit{{Sessions: 9, Attempts: 100}, {Sessions: 9, Attempts: 23}}
	f, err := FitAgents(2000, 6, time.Second)
	require.NoError(t, err)
	r.Fit = &f
	var b bytes.Buffer
	require.NoError(t, r.WriteText(&b))
	for _, want := range []string{"9090", "knee", "8.00x", "equal the ledgers: 123 attempts", "10000 agents fit"} {
		require.Contains(t, b.String(), want)
	}
	require.ErrorIs(t, r.WriteText(broken{}), os.ErrClosed)
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

// The page loads nothing, and nothing in it comes from outside unescaped.
func TestHTML(t *testing.T) {
	r := sample(1)
	r.Of(`<img src=x onerror="alert(1)">`).Add(0, runAt(1, 100, 5))
	r.Finish()
	path := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, r.WriteHTML(path))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	page := string(b)
	require.Equal(t, 3, strings.Count(page, "<svg "))
	require.Equal(t, 3, strings.Count(page, "</svg>"))
	for _, absent := range []string{"<script", "<link", "<img", "http:", "https:", "url(", "NaN", "Inf"} {
		require.NotContains(t, page, absent)
	}
	for _, want := range []string{"&lt;img", "<title>knee</title>", "9,090", "8.00x", "1,024"} {
		require.Contains(t, page, want)
	}
	// What is wide scrolls in a box of its own, so that the page fits a phone.
	require.Equal(t, strings.Count(page, "<table>")+strings.Count(page, "<svg "), strings.Count(page, `<div class="box"><table>`)+strings.Count(page, `<div class="box"><svg `))
	require.Contains(t, page, ".box { overflow-x: auto }")

	few := NewResult(Apart, time.Unix(0, 0))
	few.Of("<b>").Add(0, runAt(1, 10, 1))
	few.Of("<b>").Add(1, runAt(2, 20, 1))
	few.Finish()
	require.NoError(t, few.WriteHTML(path))
	b, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(b), "<p>&lt;b&gt;: 2 loads are too few to tell")
}

func TestTicks(t *testing.T) {
	texts := func(a axis) (all []string) {
		for _, k := range a.ticks() {
			all = append(all, k.Text)
		}
		return all
	}
	require.Equal(t, []string{"0", "5,000", "10,000", "15,000", "20,000"}, texts(axis{least: 0, most: 20000})[:5:5])
	require.Equal(t, []string{"0.5", "1", "2", "5", "10", "20"}, texts(axis{least: 0.4, most: 30, log: true}))
	log := axis{least: 1, most: 100, log: true, from: 0, to: 200}
	require.InDelta(t, 100, log.place(10), 1e-9)
	require.Equal(t, "1,234,567", number(1234567))
}
