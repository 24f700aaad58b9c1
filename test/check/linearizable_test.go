package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func add(from, to int, n, value int64) Op {
	return Op{Kind: Increment, Object: "a", ID: newID(), Amount: n, Call: seconds(from), Return: seconds(to), Outcome: Applied, Value: value}
}

// lost is an increment without an answer.
func lost(from, to int, n int64) Op {
	return Op{Kind: Increment, Object: "a", ID: newID(), Amount: n, Call: seconds(from), Return: seconds(to), Outcome: Unknown}
}

func read(from, to int, value int64) Op {
	return Op{Kind: Read, Object: "a", Call: seconds(from), Return: seconds(to), Outcome: Applied, Value: value}
}

func begin(from, to int, value int64) Op {
	return Op{Kind: Begin, Object: "x", ID: newID(), Call: seconds(from), Return: seconds(to), Outcome: Applied, Granted: true, Value: value}
}

func seconds(n int) time.Duration { return time.Duration(n) * s }

var ids int

func newID() string {
	ids++
	return fmt.Sprint(ids)
}

// A hold is what a client did with a slot, in seconds.
type hold struct {
	asked, got, until, given, back int // it is not given back if back is 0
	weight                         int
	token                          uint64
}

func slots(limit int, all ...hold) (h History) {
	h.Limits = map[string]int{"p": limit}
	for _, x := range all {
		id := newID()
		h.Ops = append(h.Ops, Op{Kind: Acquire, Object: "p", ID: id, Call: seconds(x.asked), Return: seconds(x.got), Outcome: Applied, Granted: true, Token: x.token})
		if x.back > 0 {
			h.Ops = append(h.Ops, Op{Kind: Release, Object: "p", ID: id, Call: seconds(x.given), Return: seconds(x.back), Outcome: Applied})
		}
		h.Holds = append(h.Holds, Hold{Pool: "p", ID: id, Weight: x.weight, Token: x.token, From: seconds(x.got), Until: seconds(x.until)})
	}
	return h
}

func TestLinearizable(t *testing.T) {
	for name, test := range map[string]struct {
		h  History
		ok bool
	}{
		"one after the other":                        {History{Ops: []Op{add(0, 1, 1, 1), add(2, 3, 1, 2), read(4, 5, 2)}}, true},
		"at once, in the other order":                {History{Ops: []Op{add(0, 5, 1, 3), add(1, 4, 2, 2), read(6, 7, 3)}}, true},
		"a read that misses what had returned":       {History{Ops: []Op{add(0, 1, 1, 1), read(2, 3, 0)}}, false},
		"a read beside an increment misses it":       {History{Ops: []Op{add(0, 3, 1, 1), read(1, 2, 0)}}, true},
		"two reads that go back":                     {History{Ops: []Op{add(0, 9, 1, 1), read(1, 2, 1), read(3, 4, 0)}}, false},
		"two answers with one sum":                   {History{Ops: []Op{add(0, 1, 1, 1), add(0, 1, 1, 1)}}, false},
		"a sum from nowhere":                         {History{Ops: []Op{add(0, 1, 1, 2)}}, false},
		"a lost one that happened":                   {History{Ops: []Op{lost(0, 1, 3), add(2, 3, 1, 4)}}, true},
		"a lost one that did not":                    {History{Ops: []Op{lost(0, 1, 3), add(2, 3, 1, 1)}}, true},
		"a lost one that happened later":             {History{Ops: []Op{lost(0, 1, 3), add(2, 3, 1, 1), read(4, 5, 4)}}, true},
		"a lost one that happened twice":             {History{Ops: []Op{lost(0, 1, 3), read(2, 3, 3), read(4, 5, 6)}}, false},
		"a lost one that happened and did not":       {History{Ops: []Op{lost(0, 1, 3), read(2, 3, 3), read(4, 5, 0)}}, false},
		"a lost one that happened before it was":     {History{Ops: []Op{read(0, 1, 3), lost(2, 3, 3)}}, false},
		"a part of a lost one":                       {History{Ops: []Op{lost(0, 1, 3), read(2, 3, 2)}}, false},
		"two of three lost ones":                     {History{Ops: []Op{lost(0, 1, 3), lost(0, 1, 4), lost(0, 1, 6), read(2, 3, 9), read(4, 5, 13)}}, true},
		"another two than before":                    {History{Ops: []Op{lost(0, 1, 3), lost(0, 1, 4), lost(0, 1, 6), read(2, 3, 9), read(4, 5, 10)}}, false},
		"what is read in the end":                    {History{Ops: []Op{add(0, 1, 1, 1)}, Final: map[string]int64{"a": 1}}, true},
		"what is lost in the end":                    {History{Ops: []Op{add(0, 1, 1, 1), lost(2, 3, 4)}, Final: map[string]int64{"a": 4}}, false},
		"what failed for certain happened":           {History{Ops: []Op{{Kind: Increment, Object: "a", Amount: 2, Outcome: NotApplied}, read(1, 2, 2)}}, false},
		"calls of a session":                         {History{Ops: []Op{begin(0, 2, 2), begin(1, 3, 1), begin(4, 5, 3)}}, true},
		"calls of which one was not counted":         {History{Ops: []Op{begin(0, 1, 1), begin(2, 3, 1)}}, false},
		"calls without a count":                      {History{Ops: []Op{begin(0, 1, 1), begin(2, 3, 0)}}, true},
		"one slot after the other":                   {slots(1, hold{0, 1, 3, 4, 5, 1, 1}, hold{6, 7, 8, 8, 9, 1, 2}), true},
		"two at once where there is room":            {slots(2, hold{0, 1, 8, 8, 9, 1, 1}, hold{2, 3, 8, 8, 9, 1, 2}), true},
		"two at once where there is none":            {slots(1, hold{0, 1, 8, 8, 9, 1, 1}, hold{2, 3, 8, 8, 9, 1, 2}), false},
		"a weight for which there is none":           {slots(2, hold{0, 1, 8, 8, 9, 2, 1}, hold{2, 3, 8, 8, 9, 1, 2}), false},
		"a grant while the slot is given back":       {slots(1, hold{0, 1, 4, 4, 7, 1, 1}, hold{5, 6, 8, 8, 9, 1, 2}), true},
		"a grant before the slot is given back":      {slots(1, hold{0, 1, 4, 7, 8, 1, 1}, hold{5, 6, 9, 9, 10, 1, 2}), false},
		"a grant after a lease was over":             {slots(1, hold{0, 1, 4, 0, 0, 1, 1}, hold{5, 6, 8, 8, 9, 1, 2}), true},
		"a grant before a lease was over":            {slots(1, hold{0, 1, 7, 0, 0, 1, 1}, hold{5, 6, 8, 8, 9, 1, 2}), false},
		"a grant as a lease is over":                 {slots(1, hold{0, 1, 5, 0, 0, 1, 1}, hold{4, 6, 8, 8, 9, 1, 2}), true},
		"a lease that is over before it is heard of": {slots(1, hold{0, 5, 2, 0, 0, 1, 1}, hold{6, 7, 8, 8, 9, 1, 2}), true},
		"tokens of the same time":                    {slots(2, hold{0, 5, 8, 8, 9, 1, 2}, hold{1, 4, 8, 8, 9, 1, 1}), true},
		"tokens that fall":                           {slots(2, hold{0, 1, 8, 8, 9, 1, 2}, hold{2, 4, 8, 8, 9, 1, 1}), false},
		"two with one token":                         {slots(2, hold{0, 5, 8, 8, 9, 1, 1}, hold{1, 4, 8, 8, 9, 1, 1}), false},
	} {
		t.Run(name, func(t *testing.T) {
			broken := Linearizable(test.h)
			require.Equal(t, test.ok, len(broken) == 0, broken)
			for _, v := range broken {
				require.NotContains(t, v.Text, "not checked")
			}
		})
	}
}

// What was made by a real counter and a real pool is accepted, however long it is
// and whatever was lost of it, and one wrong answer in it is found.
func TestLinearizableLong(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		h := made(rng, 3000)
		require.Empty(t, Linearizable(h), seed)
		var answered []int
		for i, o := range h.Ops {
			if o.Kind == Increment && o.Outcome == Applied {
				answered = append(answered, i)
			}
		}
		h.Ops[answered[rng.IntN(len(answered))]].Value++
		require.NotEmpty(t, Linearizable(h), seed)
	}
}

// made is a history of what 16 clients did, one in ten of whom do not hear what
// became of it.
func made(rng *rand.Rand, n int) (h History) {
	h.Limits, h.Final = map[string]int{"p": 3}, map[string]int64{}
	free := [16]time.Duration{}
	type holder struct {
		op    int // of h.Ops
		until time.Duration
	}
	var holders []holder
	var token uint64
	now := time.Duration(0)
	for range n {
		now += time.Duration(1 + rng.IntN(100))
		c := rng.IntN(len(free))
		if free[c] >= now {
			continue
		}
		o := Op{Client: fmt.Sprint(c), ID: newID(), Call: now - time.Duration(rng.Int64N(int64(now-free[c]))), Return: now + time.Duration(rng.IntN(800))}
		free[c] = o.Return
		o.Outcome = Applied
		if rng.IntN(10) == 0 {
			o.Outcome = Unknown
		}
		switch rng.IntN(3) {
		case 0:
			o.Kind, o.Object, o.Amount = Increment, "a", int64(1+rng.IntN(9))
			if o.Outcome == Applied || rng.IntN(2) == 0 {
				h.Final["a"] += o.Amount
			}
			if o.Outcome == Applied {
				o.Value = h.Final["a"]
			}
		case 1:
			o.Kind, o.Object, o.Value, o.Outcome = Read, "a", h.Final["a"], Applied
		case 2:
			for i := 0; i < len(holders); i++ {
				if holders[i].until < now {
					holders = append(holders[:i], holders[i+1:]...)
				}
			}
			if len(holders) == 3 {
				continue
			}
			token++
			o.Kind, o.Object, o.Granted, o.Token, o.Outcome = Acquire, "p", true, token, Applied
			until := o.Return + time.Duration(rng.IntN(300))
			holders = append(holders, holder{len(h.Ops), until})
			h.Holds = append(h.Holds, Hold{Pool: "p", ID: o.ID, Weight: 1, Token: token, From: o.Return, Until: until})
		}
		h.Ops = append(h.Ops, o)
	}
	return h
}

// Many clients wait for the same answer at once, and some are never heard of again:
// the sums tell the order.
func TestManyAtOnce(t *testing.T) {
	var h History
	for i := range 40 {
		h.Ops = append(h.Ops, lost(0, 0, int64(1+i%9)))
	}
	sum := int64(0)
	for i := range 60 {
		if i%7 == 0 {
			sum += 4 // of one that was lost
		}
		sum += int64(1 + i%5)
		h.Ops = append(h.Ops, add(1, 1000, int64(1+i%5), sum), read(1, 1000, sum))
	}
	slices.Reverse(h.Ops)
	require.Empty(t, linearizable(h, 2*time.Second))
	h.Ops = append(h.Ops, read(1001, 1002, sum-1))
	require.Len(t, linearizable(h, 2*time.Second), 1)
}

// What cannot be decided is no pass.
func TestNotChecked(t *testing.T) {
	// The first is given back all the time.
	all := []hold{{asked: 0, got: 1, until: 2, given: 2, back: 100_000, weight: 1, token: 1}}
	for i := range mostOps / 2 {
		n := 10 * (i + 1)
		all = append(all, hold{asked: n, got: n + 1, until: n + 2, given: n + 2, back: n + 3, weight: 1, token: uint64(i + 2)})
	}
	h := slots(2, all...)
	broken := Linearizable(h)
	require.Len(t, broken, 1)
	require.Contains(t, broken[0].Text, "not checked: 5002 operations")

	// Each token is there twice, which no order explains, and there are many.
	all = nil
	for i := range 60 {
		all = append(all, hold{asked: i, got: 1000, until: 1000, given: 1000, back: 2000, weight: 1, token: uint64(1 + i%30)})
	}
	h = slots(60, all...)
	broken = linearizable(h, time.Millisecond)
	require.Len(t, broken, 1)
	require.True(t, strings.Contains(broken[0].Text, "took longer than 1ms"), broken)
}

// Where there are too many ways in which lost increments may have happened, what
// they come to is bounded all the same.
func TestManyLost(t *testing.T) {
	var h History
	total := int64(0)
	for i := range 40 {
		h.Ops = append(h.Ops, lost(0, 1, int64(1000+i*i)))
		total += int64(1000 + i*i)
	}
	h.Ops = append(h.Ops, read(2, 3, total/2), read(4, 5, total))
	require.Empty(t, Linearizable(h))
	h.Ops = append(h.Ops, read(6, 7, total+1))
	require.NotEmpty(t, Linearizable(h))
}
