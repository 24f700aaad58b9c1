package bench

import (
	"fmt"
	"math"
	"slices"
)

// Knee returns the index of the run behind which more load brings little more
// throughput: the one that lies highest above the straight line between the ends
// of the curve, both axes being scaled to 1 (Kneedle, Satopää and others 2011).
// It is -1 for too few runs and for a curve that has no bend, whose system was not
// worked hard enough to tell; and where runs lie apart by what was done before, and
// not by load alone.
func Knee(runs []Run) int {
	if len(runs) < leastLoads || !byLoadAlone(runs) {
		return -1
	}
	load := func(r Run) float64 {
		if r.Rate > 0 {
			return r.Rate
		}
		return float64(r.Callers)
	}
	x, y := spanOf(runs, load), spanOf(runs, func(r Run) float64 { return r.Throughput })
	best, most := -1, leastBend
	for i, r := range runs {
		if above := y.scale(r.Throughput) - x.scale(load(r)); above > most {
			best, most = i, above
		}
	}
	return best
}

// leastBend is how far a curve has to rise above the straight line between its
// ends, of its own height, to have a knee at all.
const leastBend = 0.05

// leastLoads is how many loads a curve must have for its knee to say something:
// with fewer, the knee is one of one or two inner points whatever the system does.
const leastLoads = 5

func byLoadAlone(runs []Run) bool {
	return !slices.ContainsFunc(runs, func(r Run) bool { return r.After != runs[0].After })
}

// NoKnee says why a system that was measured at several loads has no knee. It is
// empty if it has one, or if there is no curve.
func (s *Series) NoKnee() string {
	runs := s.medians()
	switch {
	case s.Knee >= 0 || len(runs) < 2 || !byLoadAlone(runs):
		return ""
	case len(runs) < leastLoads:
		return fmt.Sprintf("%d loads are too few to tell where more load brings little more; sweep at least %d", len(runs), leastLoads)
	}
	return "it has no knee: at the highest load it was not at its limit, or at the lowest it was already"
}

// A span is between the least and the most of something.
type span struct{ least, most float64 }

func spanOf(runs []Run, value func(Run) float64) span {
	s := span{math.Inf(1), math.Inf(-1)}
	for _, r := range runs {
		s.least, s.most = min(s.least, value(r)), max(s.most, value(r))
	}
	return s
}

// scale maps the span to 0..1.
func (s span) scale(v float64) float64 {
	if s.most <= s.least {
		return 0
	}
	return (v - s.least) / (s.most - s.least)
}
