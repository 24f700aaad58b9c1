package bench

import "fmt"

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
