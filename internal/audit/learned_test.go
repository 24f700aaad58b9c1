package audit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// learned makes the line of a change of one whose answer was lost.
func learned(line string) string { return strings.TrimSuffix(line, "}") + `,"learned":true}` }

// Hundreds whose answers were lost have their places once their nodes have learned them,
// in whatever order they had been asked for and were learned.
func TestHundredsThatWereLearned(t *testing.T) {
	b := ofSession
	var at *session.Chain
	var asked, told []string
	for i := range 400 {
		call, code := fmt.Sprint(i), []session.Code{session.Admitted, session.Denied}[i%2]
		at = b.next(at, code, call)
		asked = append(asked, b.line(nil, day, "unknown", 0, call))
		told = append(told, learned(b.line(at, day, code.String(), code, call)))
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, all := range [][]string{asked, told} {
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	against := Against{Heads: b.headsAt(day.Add(time.Hour), at)}
	log := func(lines ...string) string { tail := Tail{Node: "n1"}; return sealedLines(&tail, lines...) }
	all, _ := verified(t, against, log(slices.Concat(asked, told)...))
	require.Empty(t, all)
	all, _ = verified(t, against, log(slices.Concat(asked, told[1:])...))
	require.Empty(t, all, "one that was not learned is found out")
	all, _ = verified(t, against, log(slices.DeleteFunc(slices.Concat(asked, told), func(l string) bool { return strings.Contains(l, `"call_id":"200"`) })...))
	require.NotEmpty(t, all, "one is missing")
	require.Contains(t, all[0], "change 201 of")
	all, _ = verified(t, against, log(asked...))
	require.NotEmpty(t, all, "nobody has learned them")
	require.Contains(t, all[0], "no file has one of them")
}

// What was learned may be there more than once, and is no leave to say anything.
func TestForgedLinesOfWhatWasLearned(t *testing.T) {
	b := ofSession
	first := b.next(nil, session.Admitted, "a")
	second := b.next(first, session.Denied, "b")
	third := b.next(second, session.Admitted, "c")
	lost := b.line(nil, day, "unknown", 0, "b")
	told := learned(b.line(second, day, "denied", session.Denied, "b"))
	answered := b.line(second, day, "denied", session.Denied, "b")
	with := func(lines ...string) []string {
		return slices.Concat([]string{b.known(first, "a")}, lines, []string{b.known(third, "c")})
	}
	fork := learned(b.known(b.next(first, session.Admitted, "x"), "x"))
	again := b.next(third, session.Denied, "b")
	for name, test := range map[string]struct {
		lines []string
		head  *session.Chain
		wrong string
	}{
		"learned":                        {with(lost, told), third, ""},
		"learned by two":                 {with(lost, lost, told, told), third, ""},
		"answered to another":            {with(lost, answered, told), third, ""},
		"of another outcome":             {with(lost, strings.NewReplacer("denied", "admitted", `"code":3`, `"code":1`).Replace(told)), third, "does not follow from the one before"},
		"of another outcome beside it":   {with(lost, told, strings.NewReplacer("denied", "admitted", `"code":3`, `"code":1`).Replace(told)), third, "does not follow from the one before"},
		"of another change":              {with(lost, told, fork), third, "or the state was rolled back"},
		"that never was":                 {append(with(lost, told), learned(b.known(b.next(third, session.Admitted, "d"), "d"))), third, "the state does not know change 4"},
		"with an outcome and no place":   {with(lost, told, learned(b.line(nil, day, "denied", 0, "b"))), third, "no place in the chain of its record that would prove it"},
		"one request, and two like it":   {append(with(lost, told), b.known(b.next(again, session.Admitted, "d"), "d")), b.next(again, session.Admitted, "d"), "change 4 of"},
		"two requests, and two like it":  {append(with(lost, told, lost), b.known(b.next(again, session.Admitted, "d"), "d")), b.next(again, session.Admitted, "d"), ""},
		"what another answer says twice": {with(lost, told, answered, answered), third, "a line is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			tail := Tail{Node: "n1"}
			all, _ := verified(t, Against{Heads: b.headsAt(day.Add(time.Hour), test.head)}, sealedLines(&tail, test.lines...))
			if test.wrong == "" {
				require.Empty(t, all)
				return
			}
			require.NotEmpty(t, all)
			require.Contains(t, strings.Join(all, "\n"), test.wrong)
		})
	}
}

// Where too many orders are possible to try them, it says so.
func TestTooManyThatAreUnknown(t *testing.T) {
	b := ofSession
	var at *session.Chain
	var lines []string
	for i := range 20 {
		at = b.next(at, session.Admitted, fmt.Sprint(i))
		lines = append(lines, b.line(nil, day, "unknown", 0, fmt.Sprint(i)))
	}
	slices.Reverse(lines)
	tail := Tail{Node: "n1"}
	all, _ := verified(t, Against{}, sealedLines(&tail, append(lines, b.known(b.next(at, session.Admitted, "x"), "x"))...))
	require.Len(t, all, 1)
	require.Contains(t, all[0], "change 20 of")
	require.Contains(t, all[0], "or one of those whose outcome nobody has learned, which are too many to try")
}
