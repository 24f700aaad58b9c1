package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// leastBend is how far a curve has to rise above the straight line between its
// ends, of its own height, to have a knee at all.
const leastBend = 0.05

// leastLoads is how many loads a curve must have for its knee to say something:
// with fewer, the knee is one of one or two inner points whatever the system does.
const leastLoads = 5

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

// renewEvery is how often the client renews what it holds: a third of the lease
// of 30 s.
const renewEvery = 10 * time.Second

// A Fit says how many agents a system can hold.
type Fit struct {
	CallsPerMinute float64       `json:"calls_per_minute"` // of one agent
	Hold           time.Duration `json:"hold"`             // of one call
	Throughput     float64       `json:"throughput"`       // operations a second that are reckoned with
	OpsPerCall     float64       `json:"ops_per_call"`
	Agents         int64         `json:"agents"`
	// OpenCalls is how many calls of all agents are open at a time, on average
	// (Little's law). Pools must have as many slots.
	OpenCalls int64 `json:"open_calls"`
	// PerAgent is how many calls one agent has open at a time, on average. An
	// agent that makes one call after another cannot have more than one.
	PerAgent float64 `json:"per_agent"`
}

// FitAgents reckons how many agents fit, from a throughput in operations a
// second. A call costs its begin, its end, and a renewal every 10 s.
func FitAgents(throughput, callsPerMinute float64, hold time.Duration) (Fit, error) {
	switch {
	case throughput <= 0 || math.IsNaN(throughput) || math.IsInf(throughput, 0):
		return Fit{}, fmt.Errorf("throughput: %v: nothing was measured to reckon with", throughput)
	case callsPerMinute <= 0 || math.IsNaN(callsPerMinute) || math.IsInf(callsPerMinute, 0):
		return Fit{}, fmt.Errorf("calls-per-agent: %v: must be more than 0 calls a minute", callsPerMinute)
	case hold < 0:
		return Fit{}, fmt.Errorf("hold: %v: must not be negative", hold)
	}
	f := Fit{CallsPerMinute: callsPerMinute, Hold: hold, Throughput: throughput}
	f.OpsPerCall = 2 + float64(hold/renewEvery)
	perSecond := callsPerMinute / 60
	f.PerAgent = perSecond * hold.Seconds()
	f.Agents = int64(throughput / (perSecond * f.OpsPerCall))
	f.OpenCalls = int64(math.Ceil(float64(f.Agents) * f.PerAgent))
	return f, nil
}

// A Ratio compares the same load on the same system in two results, or on two
// systems in one.
type Ratio struct {
	System, Against string
	Load            Load
	Throughput      float64 // of System, divided by that of Against
	P50, P99        float64 // likewise; less is better
	// Apart says that the rounds of the two do not overlap in throughput.
	// Otherwise the difference may be the machine's.
	Apart bool
}

// Compare returns the ratios of b to a, for each system and load that both
// have.
func Compare(a, b *Result) ([]Ratio, error) {
	if a.Scenario != b.Scenario {
		return nil, fmt.Errorf("scenario: %s and %s are not the same work: compare results of one scenario", a.Scenario, b.Scenario)
	}
	var ratios []Ratio
	for _, sb := range b.Series {
		for _, sa := range a.Series {
			if sa.System == sb.System {
				ratios = append(ratios, ratiosOf(sa, sb)...)
			}
		}
	}
	if len(ratios) == 0 {
		return nil, fmt.Errorf("the two results have no system and load in common")
	}
	return ratios, nil
}

// Against returns the ratios of every system to each peer that did the same
// work, and then to the first system that is no peer.
func (r *Result) Against() []Ratio {
	var ratios []Ratio
	var first *Series
	for _, own := range r.Series {
		if IsPeer(own.System) {
			continue
		}
		for _, peer := range r.Series {
			if IsPeer(peer.System) && peer.Scenario == own.Scenario {
				ratios = append(ratios, ratiosOf(peer, own)...)
			}
		}
	}
	for _, own := range r.Series {
		switch {
		case IsPeer(own.System):
		case first == nil:
			first = own
		default:
			ratios = append(ratios, ratiosOf(first, own)...)
		}
	}
	for _, s := range r.Series {
		ratios = append(ratios, s.drift()...)
	}
	return ratios
}

// drift returns the ratios of the later runs of a system to its first one under
// the same load, when many operations lie between them.
func (s *Series) drift() []Ratio {
	var ratios []Ratio
	for i, late := range s.Points {
		for _, early := range s.Points[:i] {
			a, b := early.Median(), late.Median()
			if a.After == b.After || a.Callers != b.Callers || a.Rate != b.Rate || a.Ops == 0 || b.Ops == 0 {
				continue
			}
			name := fmt.Sprintf("itself after %s ops", Thousands(a.After))
			if a.After == 0 {
				name = "itself at first"
			}
			ratios = append(ratios, ratioOf(s.System, name, early, late))
			break
		}
	}
	return ratios
}

// ratiosOf divides b by a, load by load.
func ratiosOf(a, b *Series) []Ratio {
	var ratios []Ratio
	for _, pb := range b.Points {
		for _, pa := range a.Points {
			ra, rb := pa.Median(), pb.Median()
			if ra.Callers == rb.Callers && ra.Rate == rb.Rate && ra.After == rb.After && ra.Ops > 0 && rb.Ops > 0 {
				ratios = append(ratios, ratioOf(b.System, a.System, pa, pb))
			}
		}
	}
	return ratios
}

// ratioOf divides the median of b by that of a.
func ratioOf(system, against string, a, b Point) Ratio {
	ra, rb := a.Median(), b.Median()
	leastA, mostA := a.Spread()
	leastB, mostB := b.Spread()
	return Ratio{
		System: system, Against: against, Load: rb.Load,
		Throughput: rb.Throughput / ra.Throughput,
		P50:        over(rb.Latency.P50, ra.Latency.P50),
		P99:        over(rb.Latency.P99, ra.Latency.P99),
		Apart:      leastB > mostA || leastA > mostB,
	}
}

func over(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }
