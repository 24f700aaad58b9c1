package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// mostOps is how many operations are searched at once. Longer parts are cut
	// where nothing is under way.
	mostOps = 5000
	// segment is from how many operations on such a place is looked for.
	segment = 1000
	// searchFor is how long the search for an order of one segment may take.
	searchFor = 30 * time.Second
)

// Linearizable looks for an order of the operations of each counter, pool and
// session that agrees with the clock of the clients and explains every answer.
// It ignores the places in the log: it would see what a log that lies hides.
//
// An operation of which nobody knows what became may take effect at any time
// after it was called, or never. A slot that was not given back is held for as
// long as its holder may have trusted its lease, and its end is an operation of
// its own. What the search does not decide in time is reported as that.
func Linearizable(h History) (broken []Violation) { return linearizable(h, searchFor) }

func linearizable(h History, within time.Duration) (broken []Violation) {
	for _, parts := range []map[string]part{counted(h), pooled(h)} {
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			if text := parts[name].search(within); text != "" {
				broken = append(broken, Violation{"linearizable", name + ": " + text})
			}
		}
	}
	return broken
}

// A part is all that was done with one object.
type part struct {
	ops []porcupine.Operation
	// place orders the operations whose answers tell in which order they took
	// effect: sums and tokens only rise.
	place func(o porcupine.Operation) (n int64, known bool)
	// summed says that these are additions to one sum, which rises with each.
	summed bool
	model  porcupine.Model // Init is its state when nothing was done yet
	// after returns the state in which operations leave the object, all of those
	// between two moments at which nothing is under way.
	after func(state any, ops []porcupine.Operation) any
}

// search returns what is wrong with a part.
func (p part) search(within time.Duration) string {
	if text := p.narrow(); text != "" {
		return text
	}
	slices.SortStableFunc(p.ops, func(a, b porcupine.Operation) int { return compare(time.Duration(a.Call), time.Duration(b.Call)) })
	model, state := p.model, p.model.Init()
	model.Init = func() any { return state }
	for from := 0; from < len(p.ops); {
		to, latest := from, int64(math.MinInt64)
		for to < len(p.ops) && (to-from < segment || p.ops[to].Call <= latest) {
			latest = max(latest, p.ops[to].Return)
			to++
		}
		ops := p.ops[from:to]
		if len(ops) > mostOps {
			return fmt.Sprintf("not checked: %d operations, and no moment at which nothing is under way", len(ops))
		}
		switch porcupine.CheckEventsTimeout(model, events(ops), within) {
		case porcupine.Ok:
		case porcupine.Illegal:
			return "no order of the operations explains the answers; " + stuck(model, ops, within)
		case porcupine.Unknown:
			return fmt.Sprintf("not checked: the search in %d operations took longer than %v", len(ops), within)
		}
		from, state = to, p.after(state, ops)
	}
	return ""
}

// narrow takes from the time in which an operation may have taken effect what its
// answer rules out: it did so before any of a higher place had returned, and after
// all of a lower one were called. Without that the search would have to find it
// out, which takes long where somebody waited for an answer for minutes.
func (p part) narrow() string {
	type placed struct {
		*porcupine.Operation
		n, call, back int64
	}
	var all []placed
	for i := range p.ops {
		if n, known := p.place(p.ops[i]); known {
			all = append(all, placed{&p.ops[i], n, p.ops[i].Call, p.ops[i].Return})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.n, b.n) })
	latest, of := int64(math.MinInt64), 0 // the latest call of those before
	for i := range all {
		for ; all[of].n < all[i].n; of++ {
			latest = max(latest, all[of].Call)
		}
		all[i].call = max(all[i].call, latest)
	}
	earliest, of := int64(math.MaxInt64), len(all)-1 // the earliest return of those behind
	for i := range slices.Backward(all) {
		for ; all[of].n > all[i].n; of-- {
			earliest = min(earliest, all[of].Return)
		}
		all[i].back = min(all[i].back, earliest)
	}
	for _, o := range all {
		if o.call > o.back {
			return fmt.Sprintf("no order of the operations explains the answers; this one is from before what had returned, or from behind what was not asked for yet: %v", o.Metadata)
		}
		o.Call, o.Return = o.call, o.back
	}
	if !p.summed {
		return ""
	}
	// Their order is known but for reads of one sum, which are behind what made it.
	// Each happens as late as it can, when most of what is unknown may have: there
	// is nothing left to be searched.
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.n, b.n), cmp.Compare(b.Input.(addition).amount, a.Input.(addition).amount), cmp.Compare(a.back, b.back))
	})
	next := int64(math.MaxInt64)
	for _, o := range slices.Backward(all) {
		if next = min(next-1, o.back); next >= o.call {
			o.Call, o.Return = next, next
		}
	}
	return ""
}

// events returns calls and returns in the order of time. Who is called as another
// returns may be before it. An operation of no length whose place nobody asks for
// is over before the next one begins: many of them in any order would be many
// orders for the same.
func events(ops []porcupine.Operation) []porcupine.Event {
	type event struct {
		porcupine.Event
		at    int64
		order int
	}
	all := make([]event, 0, 2*len(ops))
	for i, o := range ops {
		order := 2
		if in, ok := o.Input.(addition); ok && in.maybe {
			order = 1
		}
		all = append(all,
			event{porcupine.Event{Kind: porcupine.CallEvent, Value: o.Input, Id: i}, o.Call, order % 2},
			event{porcupine.Event{Kind: porcupine.ReturnEvent, Value: o.Output, Id: i}, o.Return, order})
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order)) })
	out := make([]porcupine.Event, len(all))
	for i, e := range all {
		out[i] = e.Event
	}
	return out
}

// stuck says how far the search came.
func stuck(model porcupine.Model, ops []porcupine.Operation, within time.Duration) string {
	_, info := porcupine.CheckEventsVerbose(model, events(ops), within)
	var longest []int
	for _, all := range info.PartialLinearizations() {
		for _, one := range all {
			if len(one) > len(longest) {
				longest = one
			}
		}
	}
	placed := map[int]bool{}
	for _, i := range longest {
		placed[i] = true
	}
	var next *porcupine.Operation
	for i, o := range ops {
		if !placed[i] && (next == nil || o.Return < next.Return) {
			next = &ops[i]
		}
	}
	if next == nil {
		return fmt.Sprintf("%d of %d can be placed", len(longest), len(ops))
	}
	return fmt.Sprintf("after %d of %d there is no place for %v", len(longest), len(ops), next.Metadata)
}
