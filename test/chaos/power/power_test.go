package power

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/processes/disks"
	"example.com/govnode/test/report"
)

// seed returns the one that the environment names, or a new one.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if given := os.Getenv("GOVNODE_SEED"); given != "" {
		var err error
		s, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("GOVNODE_SEED=%d", s)
	return s
}

// TestPower cuts the power of nodes for a minute, and lets disks lie in the end,
// which must be found. GOVNODE_L3=long has other faults of disks as well.
func TestPower(t *testing.T) {
	mode := os.Getenv("GOVNODE_L3")
	if mode == "" {
		t.Skip("GOVNODE_L3=1 runs it, and GOVNODE_L3=long at length")
	}
	layer := report.Layer{Name: "L3", Violations: []string{}}
	if os.Geteuid() != 0 {
		layer.Skipped = "disks of nodes' own need root"
		require.NoError(t, report.Write(layer))
		t.Skip(layer.Skipped)
	}
	require.NoError(t, disks.Usable())
	program, err := processes.Program(t.TempDir())
	require.NoError(t, err)
	s := Setting{Program: program, Seed: seed(t), Clients: 24, Length: 40 * time.Second, Settle: 20 * time.Second, Cuts: 24, Whole: 6, Log: t.Logf}
	if mode == "long" {
		s.Length, s.Cuts, s.Whole, s.Others = 3*time.Minute, 50, 12, 2
	}
	began := time.Now()
	r, err := Run(s)
	require.NoError(t, err)
	for _, v := range r.Violations {
		t.Log(v)
	}
	control, err := Control(Setting{Program: s.Program, Seed: s.Seed, Clients: s.Clients, Settle: 3 * time.Second, Log: t.Logf})
	require.NoError(t, err)

	slices.Sort(r.Recovery)
	layer.Seeds, layer.Took, layer.Operations, layer.Unknown, layer.NotApplied = []uint64{s.Seed}, time.Since(began), r.Ops, r.Unknown, r.NotApplied
	layer.Faults = r.Faults
	cuts, whole := 0, r.Faults[CutAll.Name]
	for _, f := range []Fault{CutOne, CutLeader, CutMajority, CutAll} {
		cuts += r.Faults[f.Name]
	}
	layer.Figures = map[string]float64{
		"power cuts": float64(cuts), "power cuts of all": float64(whole), "acknowledged and asked again": float64(r.Asked),
		"lines of audits verified": float64(r.Audited.Lines), "lines of audits that power cuts took": float64(r.Audited.Taken),
		"places without a line where nodes were killed": float64(r.Audited.Missing),
		"acknowledged and lost":                         float64(r.Lost()), "acknowledged and lost with disks that lie": float64(control.Lost()),
	}
	layer.P99 = map[string]time.Duration{"nodes take work after a power cut": r.Recovery[len(r.Recovery)*99/100]}
	layer.Violations = append(layer.Violations, texts(r.Violations)...)
	if control.Lost() == 0 {
		layer.Violations = append(layer.Violations, "control: disks that lie have lost nothing that anybody noticed")
	}
	if len(layer.Violations) > 0 {
		layer.Replay = fmt.Sprintf("GOVNODE_L3=%s GOVNODE_SEED=%d go test -tags hashicorpmetrics ./test/chaos/power -run Power -v -count=1", mode, s.Seed)
	}
	require.NoError(t, report.Write(layer))
	t.Logf("%v: %d operations, %d of them unknown for a while, %d asked again; %v; after a cut nodes take work in %v at most; disks that lie have lost %d; %v",
		layer.Took.Round(time.Millisecond), r.Ops, r.Unknown, r.Asked, r.Faults, r.Recovery[len(r.Recovery)-1].Round(time.Millisecond), control.Lost(), layer.Figures)
	if n := len(control.Violations); n > 0 {
		t.Logf("with disks that lie, for instance: %v", control.Violations[0])
	}
	require.Empty(t, layer.Violations, layer.Replay)
	require.GreaterOrEqual(t, cuts, 20)
	require.GreaterOrEqual(t, whole, 5)
}

func texts(all []check.Violation) (texts []string) {
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return texts
}
