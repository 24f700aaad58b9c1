package matching

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/value"
)

// An index finds the rules that may match without walking over all of them.
// It never changes which rule is first: it leaves out only rules that are
// known not to match, or to come after one that does.
//
// Three shapes of conditions are indexed by their field: equality with constant
// strings (eq, in), bounds on numbers (gt, gte, lt, lte), and expressions that
// can only be found at the beginning of a text, after a literal (matches).
type index struct {
	groups []indexGroup
	rest   []int32 // rules that must be tried
}

type indexGroup struct {
	field   *fieldPath
	name    string    // of the field
	isTool  bool      // it is the name of the tool
	byValue textTable // the first rule in rank that the text satisfies
	prefix  prefixes
	above   bounds // gt, gte
	below   bounds // lt, lte
	strict  bool   // holds a deny that cannot be judged without the field
	ordered bool   // holds a bound, which a text cannot be compared with
	// replaced says that byValue or prefix holds U+FFFD, and with it what
	// becomes of bytes that are no UTF-8.
	replaced bool
	// An integer from idleFrom to idleTo satisfies no rule.
	idleFrom, idleTo int64
}

// maxIndexed bounds the fields that are indexed, and so what a call costs at least.
const maxIndexed = 4

// minIndexed is the number of rules from which looking a field up is cheaper
// than trying them.
const minIndexed = 2

func newIndex(rules []*Rule) index {
	var x index
	group := x.chooseFields(rules)
	for i, r := range rules {
		g, indexed := group[r.field]
		switch shape := shapeOf(r); {
		case !indexed || shape == otherShape:
			x.rest = append(x.rest, int32(i))
			continue
		case shape == aboveShape:
			x.groups[g].above.add(&r.Condition, int32(i))
		case shape == belowShape:
			x.groups[g].below.add(&r.Condition, int32(i))
		case shape == prefixShape:
			x.groups[g].replaced = x.groups[g].replaced || replaced(r.Condition.Search.Prefix())
			x.groups[g].prefix.add(r.Condition.Search, int32(i))
		default:
			for _, w := range constants(&r.Condition) {
				x.groups[g].replaced = x.groups[g].replaced || replaced(w)
				x.groups[g].byValue.add(w, int32(i))
			}
		}
		x.groups[g].strict = x.groups[g].strict || r.strict
	}
	for i := range x.groups {
		g := &x.groups[i]
		g.ordered = len(g.above.limits)+len(g.below.limits) > 0
		g.above.seal()
		g.below.seal()
		g.prefix.seal()
		g.idle()
	}
	return x
}

// chooseFields makes a group of each field that enough rules can be found by.
func (x *index) chooseFields(rules []*Rule) map[*fieldPath]int {
	count := map[*fieldPath]int{}
	var order []*fieldPath
	for _, r := range rules {
		if shapeOf(r) != otherShape {
			if count[r.field]++; count[r.field] == 1 {
				order = append(order, r.field)
			}
		}
	}
	slices.SortStableFunc(order, func(a, b *fieldPath) int { return cmp.Compare(count[b], count[a]) })
	group := map[*fieldPath]int{}
	for _, f := range order {
		if len(x.groups) < maxIndexed && count[f] >= minIndexed {
			group[f] = len(x.groups)
			x.groups = append(x.groups, indexGroup{field: f, name: f.name, isTool: f.root == toolNameField && f.segments == nil, below: bounds{descending: true}})
		}
	}
	return group
}

type ruleShape uint8

const (
	otherShape ruleShape = iota
	constantShape
	aboveShape
	belowShape
	prefixShape
)

func shapeOf(r *Rule) ruleShape {
	switch c := &r.Condition; {
	case r.fact != nil:
		return otherShape
	case c.Value.Kind() == value.Number && (c.Operator == document.OpGt || c.Operator == document.OpGte):
		return aboveShape
	case c.Value.Kind() == value.Number && (c.Operator == document.OpLt || c.Operator == document.OpLte):
		return belowShape
	case c.Operator == document.OpMatches && c.Search.Prefix() != "":
		return prefixShape
	case len(constants(c)) > 0:
		return constantShape
	}
	return otherShape
}

// constants returns the strings that a condition compares its field with, each
// once, or nothing where it does more than that.
func constants(c *document.Condition) []string {
	switch {
	case c.Operator == document.OpEq:
		if s, ok := c.Value.AsString(); ok {
			return []string{s}
		}
	case c.Operator == document.OpIn && c.Value.Kind() == value.List:
		var words []string
		for item := range c.Value.Items() {
			s, ok := item.AsString()
			if !ok {
				return nil
			}
			words = append(words, s)
		}
		slices.Sort(words)
		return slices.Compact(words)
	}
	return nil
}

// first returns the rank of the first rule that matches or cannot be judged,
// then with its error; the number of rules if there is none. It reports false
// where every rule has to be tried in turn, because one of those left out would
// be an error.
//
// The rest come last, because of all rules these alone leave premises, and no
// rule behind the one that decides may leave any.
func (x *index) first(e Evaluation, rules []*Rule) (best int32, err error, ok bool) {
	if len(x.groups) == 0 {
		return 0, nil, false
	}
	best = int32(len(rules))
	for i := range x.groups {
		g := &x.groups[i]
		text, known := e.ownText(g.field)
		if !known {
			v := e.lookup(g.field)
			switch {
			case v == nil && g.strict:
				return 0, nil, false
			case v == nil:
				continue
			case v.Kind() != value.String:
				if best, err, ok = g.firstOther(e, v, best, err); !ok {
					return 0, nil, false
				}
				continue
			}
			text, _ = v.AsString()
		}
		if g.ordered {
			return 0, nil, false // a bound on a text is an error
		}
		if rank, found := g.byValue.find(text); found && rank < best {
			best, err = rank, nil
		}
		if g.prefix.mayBegin(text) {
			best, err = g.prefix.try(e, text, best, err)
		}
	}
	for _, i := range x.rest {
		if i >= best {
			break
		}
		if hit, failed := rules[i].Matches(e); hit || failed != nil {
			return i, failed, true
		}
	}
	return best, err, true
}

// firstOther is the part of first for a value that is no text.
func (g *indexGroup) firstOther(e Evaluation, v *value.Value, best int32, err error) (int32, error, bool) {
	switch v.Kind() {
	case value.Number, value.Bool:
		if rank := g.firstNumber(v, best); rank < best {
			best, err = rank, nil
		}
	default:
		if g.ordered {
			return 0, nil, false
		}
	}
	if len(g.prefix.list) > 0 {
		best, err = g.prefix.try(e, v.Str(), best, err)
	}
	return best, err, true
}

// idle works out idleFrom and idleTo, when all else is known.
func (g *indexGroup) idle() {
	g.idleFrom, g.idleTo = 1, 0
	from, to := int64(math.MinInt64), int64(math.MaxInt64)
	if len(g.above.limits) > 0 {
		if len(g.above.nearest) == 0 || g.above.nearest[0] == math.MinInt64 {
			return
		}
		to = g.above.nearest[0] - 1
	}
	if len(g.below.limits) > 0 {
		if len(g.below.nearest) == 0 || g.below.nearest[0] == math.MinInt64 {
			return
		}
		from = ^(g.below.nearest[0] - 1)
	}
	if len(g.prefix.list) == 0 { // which numbers are searched for, as texts
		g.idleFrom, g.idleTo = from, to
	}
}

// firstNumber returns the rank of the first bound that a number satisfies, or
// best where that is not before it.
func (g *indexGroup) firstNumber(v *value.Value, best int32) int32 {
	if len(g.above.limits) > 0 {
		best = min(best, g.above.first(v))
	}
	if len(g.below.limits) > 0 {
		best = min(best, g.below.first(v))
	}
	return best
}

// bounds holds rules of the form "field > limit" (or <, descending), sorted so
// that the rules a value satisfies are a prefix. Of a prefix only the rule
// that is evaluated first matters.
type bounds struct {
	descending bool
	limits     []limit
	earliest   []int32 // earliest[i] is the first in rank of limits[:i+1]
	// nearest[i] is the integer nearest to limits[i] that satisfies it, so that
	// integers compare as such; nil if a limit has none in 64 bits. Descending,
	// it is the complement, whose order is the reverse.
	nearest []int64
}

type limit struct {
	value     value.Value
	inclusive bool
	rule      int32
}

func (b *bounds) add(c *document.Condition, rule int32) {
	b.limits = append(b.limits, limit{value: c.Value, inclusive: c.Operator == document.OpGte || c.Operator == document.OpLte, rule: rule})
}

func (b *bounds) seal() {
	slices.SortStableFunc(b.limits, func(x, y limit) int {
		if c := b.compare(x.value, y.value); c != 0 {
			return c
		}
		return value.TrueFirst(x.inclusive, y.inclusive)
	})
	b.earliest = make([]int32, len(b.limits))
	for i, l := range b.limits {
		b.earliest[i] = l.rule
		if i > 0 {
			b.earliest[i] = min(l.rule, b.earliest[i-1])
		}
	}
	b.nearest = make([]int64, 0, len(b.limits))
	for _, l := range b.limits {
		n, ok := b.nearestTo(l)
		if !ok {
			b.nearest = nil
			return
		}
		if b.descending {
			n = ^n
		}
		b.nearest = append(b.nearest, n)
	}
}

func (b *bounds) nearestTo(l limit) (n int64, ok bool) {
	if n, ok = l.value.AsInt(); ok {
		switch {
		case l.inclusive:
			return n, true
		case b.descending:
			return n - 1, n > math.MinInt64
		}
		return n + 1, n < math.MaxInt64
	}
	f, ok := l.value.AsFloat()
	if f = math.Ceil(f); b.descending {
		f-- // what lies below a limit that is no integer
	}
	return int64(f), ok && f > -1<<62 && f < 1<<62
}

// compare orders two numbers in the direction of the bounds. Numbers always
// compare.
func (b *bounds) compare(x, y value.Value) int {
	c, _ := value.Compare(x, y)
	if b.descending {
		return -c
	}
	return c
}

// first returns the rank of the rule that v satisfies and that is evaluated
// first, or one behind all ranks.
func (b *bounds) first(v *value.Value) int32 {
	x, ok := v.Int()
	if !ok || b.nearest == nil {
		return b.firstOf(*v)
	}
	if b.descending {
		x = ^x
	}
	n, hi := 0, len(b.nearest)
	for n < hi {
		mid := int(uint(n+hi) / 2)
		if b.nearest[mid] <= x {
			n = mid + 1
		} else {
			hi = mid
		}
	}
	if n == 0 {
		return math.MaxInt32
	}
	return b.earliest[n-1]
}

// firstOf is first for any number.
func (b *bounds) firstOf(v value.Value) int32 {
	n := sort.Search(len(b.limits), func(i int) bool {
		c := b.compare(b.limits[i].value, v)
		return c > 0 || c == 0 && !b.limits[i].inclusive
	})
	if n == 0 {
		return math.MaxInt32
	}
	return b.earliest[n-1]
}
