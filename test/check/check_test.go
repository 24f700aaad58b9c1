package check

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const s = time.Second

// sound is a history in which everything is as it should be: each test breaks
// one thing of it.
func sound() History {
	return History{
		Ops: []Op{
			{Client: "x", Kind: Increment, Object: "a", ID: "1", Amount: 2, Call: 0, Return: 1 * s, Outcome: Applied, Index: 10, Value: 2},
			{Client: "x", Kind: Increment, Object: "a", ID: "2", Amount: 3, Call: 2 * s, Return: 3 * s, Outcome: Unknown},
			{Client: "x", Kind: Increment, Object: "a", ID: "3", Amount: 4, Call: 2 * s, Return: 3 * s, Outcome: Unknown},
			{Client: "x", Kind: Increment, Object: "a", ID: "4", Amount: 5, Call: 2 * s, Return: 3 * s, Outcome: NotApplied},
			{Client: "y", Kind: Increment, Object: "a", ID: "5", Amount: 7, Call: 4 * s, Return: 6 * s, Outcome: Applied, Index: 13, Value: 12},
			{Client: "y", Kind: Read, Object: "a", Call: 7 * s, Return: 8 * s, Outcome: Applied, Index: 14, Value: 12},
			{Client: "x", Kind: Acquire, Object: "p", ID: "s1", Call: 10 * s, Return: 11 * s, Outcome: Applied, Granted: true, Token: 1},
			{Client: "x", Kind: Release, Object: "p", ID: "s1", Call: 14 * s, Return: 15 * s, Outcome: Applied},
			{Client: "y", Kind: Acquire, Object: "p", ID: "s2", Call: 12 * s, Return: 17 * s, Outcome: Applied, Granted: true, Token: 2},
			{Client: "y", Kind: Release, Object: "p", ID: "s2", Call: 18 * s, Return: 19 * s, Outcome: Applied},
			{Client: "z", Kind: Begin, Object: "s", ID: "b5", Costs: []Cost{{"low", 6}}, Call: 20 * s, Return: 21 * s, Outcome: Applied, Granted: true},
			{Client: "z", Kind: End, Object: "s", ID: "b5", Costs: []Cost{{"low", 2}}, Call: 22 * s, Return: 23 * s, Outcome: Applied},
			{Client: "z", Kind: Begin, Object: "s", ID: "b6", Costs: []Cost{{"low", 8}}, Call: 24 * s, Return: 25 * s, Outcome: Applied, Granted: true}, // and lapses
			{Client: "z", Kind: Begin, Object: "s", ID: "b7", Costs: []Cost{{"low", 3}, {"top", 1}}, Call: 26 * s, Return: 27 * s, Outcome: Applied, Granted: true},
			{Client: "z", Kind: End, Object: "s", ID: "b7", Costs: []Cost{{"low", 4}}, Call: 28 * s, Return: 29 * s, Outcome: Unknown},
			{Client: "z", Kind: Begin, Object: "s", ID: "b8", Costs: []Cost{{"top", 2}}, Call: 30 * s, Return: 31 * s, Outcome: Unknown}, // and never was
			{Client: "z", Kind: Begin, Object: "s", ID: "b9", Costs: []Cost{{"top", 20}}, Call: 32 * s, Return: 33 * s, Outcome: Refused},
			{Client: "z", Kind: Adjust, Object: "low", ID: "j", Amount: 3, Call: 34 * s, Return: 35 * s, Outcome: Applied},
		},
		Effects: []Effect{
			{Kind: Increment, Object: "a", ID: "1", Index: 10},
			{Kind: Increment, Object: "a", ID: "2", Index: 11},
			{Kind: Increment, Object: "a", ID: "5", Index: 12}, // and answered when it was sent again
			{Kind: Acquire, Object: "p", ID: "s1", Index: 20, Granted: true},
			{Kind: Release, Object: "p", ID: "s1", Index: 21},
			{Kind: Acquire, Object: "p", ID: "s2", Index: 22, Granted: true},
			{Kind: Release, Object: "p", ID: "s2", Index: 23},
			{Kind: Begin, Object: "s", ID: "b1", Agent: "x", Index: 30, Granted: true},
			{Kind: Stop, Object: "x", ID: "t1", Index: 31},
			{Kind: Begin, Object: "s", ID: "b2", Agent: "y", Index: 32, Granted: true},
			{Kind: Continue, Object: "x", ID: "t2", Index: 33},
			{Kind: Begin, Object: "s", ID: "b3", Agent: "x", Index: 34, Granted: true},
			{Kind: Kill, Object: "x", ID: "t3", Index: 35},
			{Kind: Swept, Object: "x", ID: "t4", Index: 36},
			{Kind: Restored, ID: "37", Index: 37},
			{Kind: Begin, Object: "s", ID: "b4", Agent: "x", Index: 38, Granted: true},
			{Kind: Take, Object: "r", ID: "k1", Index: 39, Amount: 1, At: 1 * s},
			{Kind: Take, Object: "r", ID: "k2", Index: 40, Amount: 2, At: 10 * s},
			{Kind: Take, Object: "r", ID: "k3", Index: 41, Amount: 1, At: 11 * s},
			{Kind: Made, Object: "top", ID: "top", Index: 42, At: 20 * s},
			{Kind: Made, Object: "low", ID: "low", Index: 43, At: 20 * s},
			{Kind: Begin, Object: "s", ID: "b5", Index: 44, At: 25 * s, Granted: true, Costs: []Cost{{"low", 6}}},
			{Kind: End, Object: "s", ID: "b5", Index: 45, At: 29 * s, Costs: []Cost{{"low", 2}}},
			{Kind: Begin, Object: "s", ID: "b6", Index: 46, At: 29 * s, Granted: true, Costs: []Cost{{"low", 8}}},
			{Kind: Begin, Object: "s", ID: "b7", Index: 47, At: 30 * s, Granted: true, Costs: []Cost{{"low", 3}, {"top", 1}}},
			{Kind: End, Object: "s", ID: "b7", Index: 48, At: 31 * s, Costs: []Cost{{"low", 4}}},
			{Kind: Adjust, Object: "low", ID: "j", Index: 49, At: 32 * s, Amount: 3},
		},
		Budgets: map[string]Budget{"top": {Amount: 16}, "low": {Parent: "top", Amount: 10, Per: 10 * s}},
		Spent:   map[string]int64{"top": 18},
		Rates:   map[string]Rate{"r": {Limit: 3, Per: 10 * s}},
		Holds: []Hold{
			{Pool: "p", ID: "s1", Weight: 1, Token: 1, From: 11 * s, Until: 14 * s},
			{Pool: "p", ID: "s2", Weight: 1, Token: 2, From: 17 * s, Until: 18 * s},
		},
		Limits: map[string]int{"p": 1},
		Final:  map[string]int64{"a": 12},
	}
}

func (h *History) effect(kind Kind, id string) *Effect {
	return &h.Effects[slices.IndexFunc(h.Effects, func(e Effect) bool { return e.Kind == kind && e.ID == id })]
}

func TestSoundHistory(t *testing.T) { require.Empty(t, All(sound())) }

// Each way in which a history may be wrong is seen by the check that is made for
// it.
func TestBrokenHistories(t *testing.T) {
	for name, test := range map[string]struct {
		check  string
		change func(*History)
	}{
		"an answer from before what had returned":             {"order", func(h *History) { h.Ops[4].Index = 9 }},
		"an answer from the entry of what had returned":       {"order", func(h *History) { h.Ops[4].Index = 10 }},
		"a read of the past":                                  {"order", func(h *History) { h.Ops[5].Index, h.Ops[5].Value = 10, 2 }},
		"an effect before what had returned":                  {"order", func(h *History) { h.Effects[2].Index = 9 }},
		"an effect of an unknown one before it was asked for": {"order", func(h *History) { h.Effects[1].Index = 9 }},
		"an acknowledged increment that is lost":              {"order", func(h *History) { h.Effects = h.Effects[1:] }},
		"an acknowledged release that is lost":                {"order", func(h *History) { h.Effects = h.Effects[:6] }},
		"an effect of what was not applied": {"definite", func(h *History) {
			h.Effects = append(h.Effects, Effect{Kind: Increment, Object: "a", ID: "4", Index: 15})
		}},
		"an increment twice": {"once", func(h *History) {
			h.Effects = append(h.Effects, Effect{Kind: Increment, Object: "a", ID: "2", Index: 15})
		}},
		"a slot twice": {"once", func(h *History) {
			h.Effects = append(h.Effects, Effect{Kind: Acquire, Object: "p", ID: "s2", Index: 25, Granted: true})
		}},
		"an answer that is not the sum":   {"counters", func(h *History) { h.Ops[4].Value = 9 }},
		"a read that is not the sum":      {"counters", func(h *History) { h.Ops[5].Value = 5 }},
		"an increment nobody asked for":   {"counters", func(h *History) { h.Ops = h.Ops[1:] }},
		"an increment of another counter": {"counters", func(h *History) { h.Effects[1].Object = "b" }},
		"a counter that lost something":   {"counters", func(h *History) { h.Final["a"] = 9 }},
		"a counter below its ledger":      {"ledger", func(h *History) { h.Final["a"] = 7 }},
		"a counter above its ledger":      {"ledger", func(h *History) { h.Final["a"] = 17 }},
		"two at work at once":             {"holders", func(h *History) { h.Holds[1].From = 13 * s }},
		"two in the log at once":          {"holders", func(h *History) { h.Effects[5].Index = 21; h.Effects[4].Index = 22 }},
		"more weight than there is":       {"holders", func(h *History) { h.Holds[0].Weight = 2 }},
		"one token for two":               {"tokens", func(h *History) { h.Ops[8].Token = 1 }},
		"a window over its rate":          {"rates", func(h *History) { h.effect(Take, "k3").At = 11*s - 1 }},
		"a cost over its rate":            {"rates", func(h *History) { h.effect(Take, "k2").Amount = 4 }},
		"something taken twice":           {"once", func(h *History) { h.effect(Take, "k3").ID = "k1" }},
		"a token that falls":              {"tokens", func(h *History) { h.Ops[6].Token = 3 }},
		"a call behind a STOP":            {"signals", func(h *History) { h.Effects[9].Agent = "x" }},
		"a call behind a KILL":            {"signals", func(h *History) { h.Effects[14].Kind = End }},
		"a STOP that is not lifted":       {"signals", func(h *History) { h.Effects[10].Object = "y" }},
		"a sweep that has left one":       {"signals", func(h *History) { h.Effects[13].Open = 1 }},
		"a call beyond its budget":        {"budgets", func(h *History) { h.effect(Begin, "b6").Costs[0].Amount = 9 }},
		"a call beyond what is above it":  {"budgets", func(h *History) { h.effect(Begin, "b7").Costs[1].Amount = 4 }},
		"a call in the period before": {"budgets", func(h *History) {
			h.effect(Begin, "b7").At = 30*s - 1
		}},
		"what was not spent is kept":      {"budgets", func(h *History) { h.effect(End, "b5").Costs = nil }},
		"what was spent beyond is lost":   {"budgets", func(h *History) { h.Spent["top"] = 17 }},
		"a lapsed call that cost nothing": {"spent", func(h *History) { h.Spent["top"] = 10 }},
		"a bill that is lost":             {"spent", func(h *History) { h.Spent["top"] = 14 }},
		"a call that was charged twice":   {"spent", func(h *History) { h.Spent["top"] = 21 }},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			test.change(&h)
			var checks []string
			for _, v := range All(h) {
				checks = append(checks, v.Check)
			}
			require.Contains(t, checks, test.check)
		})
	}
}

// Times and places that agree are no violation: what overlaps may stand in any
// order, and one that ends makes room at once.
func TestWhatIsAllowed(t *testing.T) {
	for name, change := range map[string]func(*History){
		"what overlaps in the other order": func(h *History) { h.Ops[0].Return, h.Ops[4].Call, h.Ops[4].Index = 5*s, 4*s, 9 },
		"one ends as another begins":       func(h *History) { h.Holds[1].From = 14 * s },
		"a read beside an increment":       func(h *History) { h.Ops[5].Index = 13 },
		"a lost slot is not given back":    func(h *History) { h.Ops[7].Outcome = Unknown; h.Effects = append(h.Effects[:4:4], h.Effects[5:]...) },
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			change(&h)
			require.Empty(t, All(h))
		})
	}
}

// What was asked for with a token stands before its revocation.
func TestRevoked(t *testing.T) {
	revoke := Op{Kind: Revoke, Object: "t1", ID: "r", Call: 10, Return: 20, Index: 5, Outcome: Applied}
	before := Op{Kind: Increment, ID: "a", Shown: "t1", Call: 5, Return: 30, Index: 4, Outcome: Applied}
	refused := Op{Kind: Increment, ID: "b", Shown: "t1", Call: 21, Return: 30, Outcome: NotApplied}
	other := Op{Kind: Increment, ID: "c", Shown: "t2", Call: 21, Return: 30, Index: 7, Outcome: Applied}
	require.Empty(t, RevokedAnswers(History{Ops: []Op{before, refused, other, revoke}}))
	late, behind := before, before
	late.Call = 21
	behind.Index = 6
	require.Len(t, RevokedAnswers(History{Ops: []Op{late, revoke}}), 1)
	require.Len(t, RevokedAnswers(History{Ops: []Op{behind, revoke}}), 1)
	revoke.Outcome = Unknown
	require.Empty(t, RevokedAnswers(History{Ops: []Op{late, revoke}}), "nobody was told that it was revoked")

	log := []Effect{{Kind: Increment, ID: "a", By: "p1", Index: 4}, {Kind: Revoke, Object: "t1", By: "p1", Index: 5}, {Kind: Increment, ID: "c", By: "p2", Index: 6}, {Kind: End, ID: "d", Index: 7}}
	require.Empty(t, Revoked(History{Effects: log}))
	require.Len(t, Revoked(History{Effects: append(log, Effect{Kind: Acquire, ID: "e", By: "p1", Index: 8})}), 1)
}
