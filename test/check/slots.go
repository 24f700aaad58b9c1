package check

import (
	"fmt"
	"slices"
	"time"
)

// Holders holds the holders of each pool to its limit, by the time of where the
// work is done and by that of the log: a slot that was given back by its holder
// was held from the entry that granted it to the one that took it back.
func Holders(h History) (broken []Violation) {
	for pool, limit := range h.Limits {
		var times, places []edge
		for _, x := range h.Holds {
			if x.Pool == pool && x.From < x.Until {
				times = append(times, edge{int64(x.From), x.Weight, x.ID}, edge{int64(x.Until), -x.Weight, x.ID})
			}
		}
		granted := map[string]Effect{}
		weights := map[string]int{}
		for _, x := range h.Holds {
			weights[x.ID] = x.Weight
		}
		for _, e := range h.Effects {
			switch {
			case e.Object != pool:
			case e.Kind == Acquire && e.Granted:
				granted[e.ID] = e
			case e.Kind == Release && granted[e.ID].Index > 0 && granted[e.ID].Index < e.Index && weights[e.ID] > 0:
				places = append(places, edge{int64(granted[e.ID].Index), weights[e.ID], e.ID}, edge{int64(e.Index), -weights[e.ID], e.ID})
			}
		}
		broken = append(broken, atMost(limit, pool, "time", times, func(at int64) string { return time.Duration(at).String() })...)
		broken = append(broken, atMost(limit, pool, "index", places, func(at int64) string { return fmt.Sprint(at) })...)
	}
	return broken
}

// An edge is where a hold begins or ends.
type edge struct {
	at     int64
	weight int
	id     string
}

// atMost sweeps over holds. One that ends where another begins makes room for it.
func atMost(limit int, pool, what string, edges []edge, print func(int64) string) (broken []Violation) {
	slices.SortStableFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			if a.at < b.at {
				return -1
			}
			return 1
		}
		return a.weight - b.weight
	})
	inUse, ids := 0, map[string]bool{}
	for _, e := range edges {
		inUse += e.weight
		if e.weight < 0 {
			delete(ids, e.id)
			continue
		}
		ids[e.id] = true
		if inUse > limit {
			broken = append(broken, Violation{"holders", fmt.Sprintf("%s has %d of %d in use at %s %s: %v", pool, inUse, limit, what, print(e.at), ids)})
		}
	}
	return broken
}

// Tokens holds that no two slots of a pool have one token, and that a slot asked
// for after another one was granted has a higher one.
func Tokens(h History) (broken []Violation) {
	byPool := map[string][]Op{}
	for _, o := range h.Ops {
		if o.Kind == Acquire && o.Granted {
			byPool[o.Object] = append(byPool[o.Object], o)
		}
	}
	for _, ops := range byPool {
		seen := map[uint64]Op{}
		returned := slices.Clone(ops)
		slices.SortStableFunc(returned, func(a, b Op) int { return compare(a.Return, b.Return) })
		var highest Op
		for _, o := range byCall(ops) {
			if other, known := seen[o.Token]; known {
				broken = append(broken, Violation{"tokens", fmt.Sprintf("one token for two slots: %v; %v", o, other)})
			}
			seen[o.Token] = o
			for len(returned) > 0 && returned[0].Return < o.Call {
				if returned[0].Token > highest.Token {
					highest = returned[0]
				}
				returned = returned[1:]
			}
			if o.Token < highest.Token {
				broken = append(broken, Violation{"tokens", fmt.Sprintf("a token that is not higher than one before: %v; before: %v", o, highest)})
			}
		}
	}
	return broken
}
