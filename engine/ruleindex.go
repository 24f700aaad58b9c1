package engine

import (
	"cmp"
	"slices"
	"sort"

	"example.com/govnode/engine/value"
)

// A ruleIndex finds the rules that may match without walking over all of them.
// It never changes which rule is first: it leaves out only rules that are
// known not to match, or to come after one that does.
//
// Two shapes of conditions are indexed by their field: equality with constant
// strings (eq, in), and bounds on numbers (gt, gte, lt, lte).
type ruleIndex struct {
	groups []indexGroup
	rest   []int32 // rules that must be tried
}

type indexGroup struct {
	field   *fieldPath
	byValue map[string][]int32
	above   bounds // gt, gte
	below   bounds // lt, lte
	strict  bool   // holds a deny that cannot be judged without the field
}

// maxIndexed bounds the fields that are indexed, and so the cost of merging.
const maxIndexed = 4

// maxLists is the number of lists that are merged: the rest, and for each
// field either its string or its two bounds.
const maxLists = 1 + 2*maxIndexed

// minIndexed is the number of rules from which looking a field up is cheaper
// than trying them.
const minIndexed = 4

func newRuleIndex(rules []*compiledRule) ruleIndex {
	var x ruleIndex
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
		default:
			for _, w := range constants(&r.Condition) {
				x.groups[g].byValue[w] = append(x.groups[g].byValue[w], int32(i))
			}
		}
		x.groups[g].strict = x.groups[g].strict || r.strict
	}
	for i := range x.groups {
		x.groups[i].above.seal()
		x.groups[i].below.seal()
	}
	return x
}

// chooseFields makes a group of each field that enough rules can be found by.
func (x *ruleIndex) chooseFields(rules []*compiledRule) map[*fieldPath]int {
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
			x.groups = append(x.groups, indexGroup{field: f, byValue: map[string][]int32{}, below: bounds{descending: true}})
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
)

func shapeOf(r *compiledRule) ruleShape {
	switch c := &r.Condition; {
	case r.fact != nil:
		return otherShape
	case c.Value.Kind() == value.Number && (c.Operator == OpGt || c.Operator == OpGte):
		return aboveShape
	case c.Value.Kind() == value.Number && (c.Operator == OpLt || c.Operator == OpLte):
		return belowShape
	case len(constants(c)) > 0:
		return constantShape
	}
	return otherShape
}

// constants returns the strings that a condition compares its field with, each
// once, or nothing where it does more than that.
func constants(c *Condition) []string {
	switch {
	case c.Operator == OpEq:
		if s, ok := c.Value.AsString(); ok {
			return []string{s}
		}
	case c.Operator == OpIn && c.Value.Kind() == value.List:
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

// candidates fills lists with rules, each ascending: lists[0] with those that
// must be tried, the others with rules that match for certain. It reports false where every rule has to be tried in turn, because one of
// those left out would be an error.
func (x *ruleIndex) candidates(e *evaluation, lists *[maxLists][]int32) (n int, ok bool) {
	if len(x.groups) == 0 {
		return 0, false
	}
	lists[0] = x.rest
	n = 1
	for i := range x.groups {
		g := &x.groups[i]
		v, present := e.lookup(g.field)
		if !present {
			if g.strict {
				return 0, false
			}
			continue
		}
		switch v.Kind() {
		case value.Number, value.Bool:
			lists[n], lists[n+1] = g.above.first(v), g.below.first(v)
			n += 2
		case value.String:
			if g.ordered() {
				return 0, false // a bound on a text is an error
			}
			s, _ := v.AsString()
			lists[n] = g.byValue[s]
			n++
		default:
			if g.ordered() {
				return 0, false
			}
		}
	}
	return n, true
}

func (g *indexGroup) ordered() bool { return len(g.above.limits)+len(g.below.limits) > 0 }

// bounds holds rules of the form "field > limit" (or <, descending), sorted so
// that the rules a value satisfies are a prefix. Of a prefix only the rule
// that is evaluated first matters.
type bounds struct {
	descending bool
	limits     []limit
	earliest   []int32 // earliest[i] is the first in rank of limits[:i+1]
}

type limit struct {
	value     value.Value
	inclusive bool
	rule      int32
}

func (b *bounds) add(c *Condition, rule int32) {
	b.limits = append(b.limits, limit{value: c.Value, inclusive: c.Operator == OpGte || c.Operator == OpLte, rule: rule})
}

func (b *bounds) seal() {
	slices.SortStableFunc(b.limits, func(x, y limit) int {
		if c := b.compare(x.value, y.value); c != 0 {
			return c
		}
		return trueFirst(x.inclusive, y.inclusive)
	})
	b.earliest = make([]int32, len(b.limits))
	for i, l := range b.limits {
		b.earliest[i] = l.rule
		if i > 0 {
			b.earliest[i] = min(l.rule, b.earliest[i-1])
		}
	}
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

// first returns the rule that v satisfies and that is evaluated first, as a
// list of one, or nothing.
func (b *bounds) first(v value.Value) []int32 {
	n := sort.Search(len(b.limits), func(i int) bool {
		c := b.compare(b.limits[i].value, v)
		return c > 0 || c == 0 && !b.limits[i].inclusive
	})
	if n == 0 {
		return nil
	}
	return b.earliest[n-1 : n]
}
