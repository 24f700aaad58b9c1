package check

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// A sum is what is known of a counter at a place of an order.
type sum struct {
	n     int64
	spare int64 // what all amounts come to that may still be added
	// ways are all that these amounts may be, each in order and of 8 bytes for each
	// amount: an answer shows what was added together, and not which. There are
	// none if they became too many.
	ways []string
}

// These bound how many amounts and ways are told apart.
const (
	mostPending = 12
	mostWays    = 16
)

// An addition is an operation on a counter; one of 0 is a read.
type addition struct {
	amount int64
	maybe  bool // its answer is unknown: from now on it may happen at any time
}

// counted returns the parts of the counters, and of sessions as counters of their
// calls. Amounts are positive.
func counted(h History) map[string]part {
	parts, silent := map[string]part{}, map[string]bool{}
	for _, o := range h.Ops {
		var what string
		amount := o.Amount
		switch o.Kind {
		case Increment, Read:
			what = "counter " + o.Object
		case Begin:
			what, amount = "session "+o.Object, 1
			silent[what] = silent[what] || o.Outcome == Applied && o.Value == 0
		case Look:
			what = "session " + o.Object
		default:
			continue
		}
		op := porcupine.Operation{Input: addition{amount: amount}, Output: o.Value, Call: int64(o.Call), Return: int64(o.Return), Metadata: o}
		switch {
		case o.Kind.reads() && o.Outcome == Applied:
			op.Input = addition{}
		case o.Kind.reads(), o.Outcome == NotApplied, o.Outcome == Refused:
			continue
		case o.Outcome == Unknown:
			op.Input, op.Return = addition{amount, true}, op.Call
		}
		p := parts[what]
		p.ops = append(p.ops, op)
		parts[what] = p
	}
	for object, n := range h.Final {
		if p, known := parts["counter "+object]; known {
			p.ops = append(p.ops, porcupine.Operation{
				Input: addition{}, Output: n, Call: math.MaxInt64, Return: math.MaxInt64,
				Metadata: Op{Client: "in the end", Kind: Read, Object: object, Outcome: Applied, Value: n},
			})
			parts["counter "+object] = p
		}
	}
	for what, p := range parts {
		if silent[what] { // the answers do not say how many calls there were
			delete(parts, what)
			continue
		}
		p.after, p.summed = sums, true
		p.place = func(o porcupine.Operation) (int64, bool) { return o.Output.(int64), !o.Input.(addition).maybe }
		p.model = porcupine.Model{
			Init: func() any { return sum{ways: []string{""}} },
			Step: func(state, input, output any) (bool, any) {
				return count(state.(sum), input.(addition), output.(int64))
			},
			Equal: func(a, b any) bool { return equal(a.(sum), b.(sum)) },
		}
		parts[what] = p
	}
	return parts
}

// count is a step of a counter. An amount that may have been added is tried where
// an answer shows what the sum is, and not before.
func count(s sum, in addition, answer int64) (bool, sum) {
	if in.maybe {
		next := sum{n: s.n, spare: s.spare + in.amount}
		for _, way := range s.ways {
			all := append(amounts(way), in.amount)
			if len(all) > mostPending {
				next.ways = nil
				break
			}
			slices.Sort(all)
			next.ways = append(next.ways, pack(all))
		}
		return true, next
	}
	missing := answer - in.amount - s.n
	switch {
	case missing == 0:
		return true, sum{answer, s.spare, s.ways}
	case missing < 0 || missing > s.spare:
		return false, s
	}
	next := sum{n: answer, spare: s.spare - missing}
	for _, way := range s.ways {
		next.ways = append(next.ways, without(amounts(way), missing)...)
	}
	if len(s.ways) > 0 && len(next.ways) == 0 {
		return false, s
	}
	slices.Sort(next.ways)
	if next.ways = slices.Compact(next.ways); len(next.ways) > mostWays {
		next.ways = nil
	}
	return true, next
}

func equal(a, b sum) bool { return a.n == b.n && a.spare == b.spare && slices.Equal(a.ways, b.ways) }

// sums is what operations leave: sums only rise, so that their answers tell the
// order of all that were answered.
func sums(state any, ops []porcupine.Operation) any {
	var known, maybe []porcupine.Operation
	for _, o := range ops {
		if o.Input.(addition).maybe {
			maybe = append(maybe, o) // in the order of their calls
		} else {
			known = append(known, o)
		}
	}
	slices.SortStableFunc(known, func(a, b porcupine.Operation) int {
		return cmp.Or(cmp.Compare(a.Output.(int64), b.Output.(int64)), -cmp.Compare(a.Input.(addition).amount, b.Input.(addition).amount))
	})
	// What may happen at any time from its call on stands as early as can be:
	// before all of those behind which nobody stands who had returned by then.
	earliest := make([]int64, len(known)+1)
	earliest[len(known)] = math.MaxInt64
	for i := len(known) - 1; i >= 0; i-- {
		earliest[i] = min(earliest[i+1], known[i].Return)
	}
	s := state.(sum)
	step := func(o porcupine.Operation) { _, s = count(s, o.Input.(addition), o.Output.(int64)) }
	for i := range len(known) + 1 {
		for len(maybe) > 0 && maybe[0].Call <= earliest[i] {
			step(maybe[0])
			maybe = maybe[1:]
		}
		if i < len(known) {
			step(known[i])
		}
	}
	return s
}

func amounts(way string) (all []int64) {
	for b := []byte(way); len(b) > 0; b = b[8:] {
		all = append(all, int64(binary.BigEndian.Uint64(b)))
	}
	return all
}

func pack(amounts []int64) string {
	b := make([]byte, 0, 8*len(amounts))
	for _, n := range amounts {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

// without returns what is left of amounts for every way in which some of them come
// to a total.
func without(amounts []int64, total int64) (ways []string) {
	var left []int64
	var take func(rest []int64, total int64)
	take = func(rest []int64, total int64) {
		if total == 0 {
			ways = append(ways, pack(append(slices.Clone(left), rest...)))
			return
		}
		if len(rest) == 0 || rest[0] > total {
			return
		}
		take(rest[1:], total-rest[0])
		n := len(left)
		left = append(left, rest[0])
		take(rest[1:], total)
		left = left[:n]
	}
	take(amounts, total)
	return ways
}
