package check

import (
	"fmt"
	"slices"
	"time"
)

// Order holds the log to the clock: what had returned before another operation
// was called stands before it in the log, and a read sees it. So it is with the
// places that answers name, and with those at which the log has the effects. An
// operation that was acknowledged has one.
func Order(h History) (broken []Violation) {
	effects := h.effects()
	effective := make([]placed, 0, len(h.Ops))
	for _, o := range h.Ops {
		if o.Kind.reads() {
			continue
		}
		all := effects[effectKey{o.Kind, o.ID}]
		switch {
		case len(all) > 0:
			effective = append(effective, placed{o, all[0].Index})
		case o.Outcome == Applied:
			broken = append(broken, Violation{"order", fmt.Sprintf("acknowledged, and the log has nothing of it: %v", o)})
		}
	}
	broken = append(broken, Answers(h)...)
	return append(broken, inOrder("effects", effective)...)
}

// Answers is Order for the places that answers name, where nobody has the log.
func Answers(h History) []Violation {
	answered := make([]placed, 0, len(h.Ops))
	for _, o := range h.Ops {
		if o.Outcome == Applied && o.Index > 0 {
			answered = append(answered, placed{o, o.Index})
		}
	}
	return inOrder("answers", answered)
}

// A placed operation has a place in the log.
type placed struct {
	Op
	index uint64
}

func inOrder(what string, ops []placed) (broken []Violation) {
	called, returned := slices.Clone(ops), make([]placed, 0, len(ops))
	for _, o := range ops {
		if o.Outcome != Unknown {
			returned = append(returned, o)
		}
	}
	slices.SortStableFunc(called, func(a, b placed) int { return compare(a.Call, b.Call) })
	slices.SortStableFunc(returned, func(a, b placed) int { return compare(a.Return, b.Return) })
	var latest placed // the one of the highest place among those that had returned
	for _, o := range called {
		for len(returned) > 0 && returned[0].Return < o.Call {
			if returned[0].index > latest.index {
				latest = returned[0]
			}
			returned = returned[1:]
		}
		if o.index < latest.index || o.index == latest.index && !o.Kind.reads() && !latest.Kind.reads() {
			broken = append(broken, Violation{"order", fmt.Sprintf("%s: at %d, and one that had returned before stands at %d: %v; before: %v",
				what, o.index, latest.index, o.Op, latest.Op)})
		}
	}
	return broken
}

func compare(a, b time.Duration) int { return int(a - b) }

// Once holds that no operation has two effects, however often it was sent.
func Once(h History) (broken []Violation) {
	for k, all := range h.effects() {
		if len(all) > 1 {
			broken = append(broken, Violation{"once", fmt.Sprintf("%s %s took effect at %d and at %d", k.kind, k.id, all[0].Index, all[1].Index)})
		}
	}
	return broken
}

// Definite holds that what was said not to have been applied never was.
func Definite(h History) (broken []Violation) {
	effects := h.effects()
	for _, o := range h.Ops {
		if all := effects[effectKey{o.Kind, o.ID}]; o.Outcome == NotApplied && len(all) > 0 {
			broken = append(broken, Violation{"definite", fmt.Sprintf("said not to be applied, and took effect at %d: %v", all[0].Index, o)})
		}
	}
	return broken
}
