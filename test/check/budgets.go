package check

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A Budget has what is charged to it and to all below it, in millionths.
type Budget struct {
	Parent string
	Amount int64
	Per    time.Duration // after which nothing is used of it, again and again; 0 for never
}

// A Cost is what is charged to a budget, without those below it.
type Cost struct {
	Budget string
	Amount int64
}

// Budgets replays what was charged in the order of the log: no call is admitted
// that uses more than the amount of one of its budgets, and what is left at the end
// is what was reported, and what was assumed of calls that nobody reported.
func Budgets(h History) (broken []Violation) {
	l := ledger{History: h, made: map[string]time.Duration{}, used: map[string]usage{}}
	open := map[string]Effect{} // calls that have costs
	for _, e := range h.Effects {
		switch e.Kind {
		case Made:
			l.made[e.Object] = e.At
		case Adjust:
			for name, by := range h.totals([]Cost{{e.Object, e.Amount}}) {
				l.add(name, by, e.At)
			}
		case Begin:
			if !e.Granted || len(e.Costs) == 0 {
				continue
			}
			open[e.ID] = e
			totals := h.totals(e.Costs)
			for _, name := range slices.Sorted(maps.Keys(totals)) {
				l.add(name, totals[name], e.At)
				if used := l.used[name].of; used > h.Budgets[name].Amount {
					broken = append(broken, Violation{"budgets", fmt.Sprintf("%s was admitted at %d, and %s has used %d of %d by that", e.ID, e.Index, name, used, h.Budgets[name].Amount)})
				}
			}
		case End:
			was, charged := open[e.ID]
			if !charged {
				continue
			}
			delete(open, e.ID)
			assumed := h.totals(was.Costs)
			for name, total := range h.totals(reported(was.Costs, e.Costs)) {
				by := total - assumed[name]
				if by < 0 && l.period(name, e.At) != l.period(name, was.At) {
					continue // that was of another period
				}
				l.add(name, by, e.At)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Spent)) {
		if used := l.used[name].of; used != h.Spent[name] {
			broken = append(broken, Violation{"budgets", fmt.Sprintf("%s has used %d in the end, and the log comes to %d", name, h.Spent[name], used)})
		}
	}
	return broken
}

// Spent is Budgets for the end alone, where nobody has the log: what was
// acknowledged is in it, once, and beside it at most what is unknown.
func Spent(h History) (broken []Violation) {
	ends := map[string]Op{}
	for _, o := range h.Ops {
		if o.Kind == End {
			ends[o.ID] = o
		}
	}
	least, most := map[string]int64{}, map[string]int64{}
	between := func(costs ...map[string]int64) { // one of them is true
		for name := range h.Spent {
			low, high := costs[0][name], costs[0][name]
			for _, c := range costs[1:] {
				low, high = min(low, c[name]), max(high, c[name])
			}
			least[name], most[name] = least[name]+low, most[name]+high
		}
	}
	for _, o := range h.Ops {
		var costs map[string]int64
		switch {
		case o.Kind == Adjust:
			costs = h.totals([]Cost{{o.Object, o.Amount}})
		case o.Kind == Begin && len(o.Costs) > 0:
			costs = h.totals(o.Costs)
		default:
			continue
		}
		end, ended := ends[o.ID]
		corrected := h.totals(reported(o.Costs, end.Costs))
		switch {
		case o.Outcome == Unknown:
			between(nil, costs)
		case o.Outcome != Applied:
		case ended && end.Outcome == Applied:
			between(corrected)
		case ended && end.Outcome == Unknown:
			between(costs, corrected)
		default:
			between(costs)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Spent)) {
		if used := h.Spent[name]; used < least[name] || used > most[name] {
			broken = append(broken, Violation{"spent", fmt.Sprintf("%s has used %d in the end; acknowledged were %d, and with the unknown ones at most %d", name, used, least[name], most[name])})
		}
	}
	return broken
}

// totals is what costs come to in each budget, those below it included.
func (h *History) totals(costs []Cost) map[string]int64 {
	all := map[string]int64{}
	for _, c := range costs {
		for name := c.Budget; name != ""; name = h.Budgets[name].Parent {
			all[name] += c.Amount
		}
	}
	return all
}

// reported is what was assumed, where nothing else was said.
func reported(assumed, spent []Cost) []Cost {
	all := slices.Clone(assumed)
	for i := range all {
		for _, s := range spent {
			if s.Budget == all[i].Budget {
				all[i].Amount = s.Amount
			}
		}
	}
	return all
}

// A ledger is what is used of budgets.
type ledger struct {
	History
	made map[string]time.Duration // when their first period began
	used map[string]usage
}

// A usage is of one period.
type usage struct{ of, period int64 }

func (l *ledger) period(name string, at time.Duration) int64 {
	if l.Budgets[name].Per == 0 {
		return 0
	}
	return int64((at - l.made[name]) / l.Budgets[name].Per)
}

func (l *ledger) add(name string, by int64, at time.Duration) {
	u, now := l.used[name], l.period(name, at)
	if u.period != now {
		u = usage{period: now}
	}
	u.of += by
	l.used[name] = u
}
