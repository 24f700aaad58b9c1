package audit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// What a restore has taken back is not accused, though nothing has happened since in its
// namespace. What is missing for another reason is.
func TestRestores(t *testing.T) {
	b := ofSession
	change := func(was *session.Chain, generation uint32, at time.Time, call string) (*session.Chain, string) {
		c := was.Next(generation, session.Admitted, Digest(b.say(call)))
		return c, b.line(c, at, session.Admitted.String(), session.Admitted, call)
	}
	restored := func(at time.Time, more string) string {
		return fmt.Sprintf(`{"timestamp":%q,"event_type":"snapshot_restored","namespace":"$cluster"%s`, at.Format(time.RFC3339Nano), more)
	}
	first, a := change(nil, 0, day, "a")
	_, taken := change(first, 0, day.Add(time.Hour), "b")
	_, between := change(first, 1, day.Add(time.Hour), "e")
	soon, late := day.Add(2*time.Hour), day.Add(3*time.Hour)
	_, behind := change(first, 1, late, "c")
	_, beside := change(first, 0, late, "d")
	named := "the state does not know change 2"
	for name, test := range map[string]struct {
		lines  []string
		stands uint32
		gone   bool // the state has nothing of the session
		wrong  string
	}{
		"a change is taken back":   {[]string{a, taken, restored(soon, `,"generation":1`)}, 1, false, ""},
		"a session is taken back":  {[]string{a, taken, restored(soon, `,"generation":1`)}, 1, true, ""},
		"twice":                    {[]string{a, taken, restored(soon, `,"generation":1`), restored(late, `,"generation":2`)}, 2, false, ""},
		"no restore":               {[]string{a, taken}, 0, false, named},
		"a Redis that has lost it": {[]string{a, taken}, 9, false, named},
		"a Redis that has lost it behind a restore": {[]string{a, restored(soon, `,"generation":1`), behind}, 9, false, named},
		"a state from before the restore":           {[]string{a, taken, restored(soon, `,"generation":1`)}, 0, false, named},
		"an older state from behind the restore":    {[]string{a, restored(soon, `,"generation":1`), behind}, 1, false, named},
		"nobody knows whether it came into force":   {[]string{a, taken, restored(soon, `,"outcome":"unknown"`)}, 1, false, ""},
		"it has not": {[]string{a, taken, restored(soon, `,"outcome":"unknown"`)}, 0, false, named},
		"it has, and the clock of its node was slow":     {[]string{a, taken, restored(day, `,"outcome":"unknown","generation":1`)}, 1, false, ""},
		"it has not, and the clock of its node was slow": {[]string{a, taken, restored(day, `,"outcome":"unknown","generation":1`)}, 0, false, named},
		"it has, and another one came before it":         {[]string{a, between, restored(soon, `,"outcome":"unknown","generation":1`)}, 2, false, ""},
		"that does not take back what was made later":    {[]string{a, restored(soon, `,"outcome":"unknown"`), beside}, 9, false, named},
		"a time that is none":                            {[]string{a, `{"timestamp":"soon","event_type":"snapshot_restored"`}, 0, false, "the time of the restore cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			heads := b.headsAt(day.Add(24*time.Hour), first)
			if heads.Generations = map[string]uint32{"n": test.stands}; test.gone {
				heads.Links = nil
			}
			tail := Tail{Node: "n1"}
			all, _ := verified(t, Against{Heads: heads}, sealedLines(&tail, test.lines...))
			if test.wrong == "" {
				require.Empty(t, all)
				return
			}
			require.Len(t, all, 1)
			require.Contains(t, all[0], test.wrong)
		})
	}
}

// A change behind a restore whose line is missing is said to be missing, also where there is a
// line of as many changes from behind the snapshot that was restored: that one is not accused
// of having been altered.
func TestAChangeThatIsMissingBehindARestore(t *testing.T) {
	b := ofSession
	first := b.next(nil, session.Admitted, "a")
	taken := b.next(first, session.Admitted, "b")
	missing := first.Next(1, session.Admitted, Digest(b.say("c")))
	last := missing.Next(1, session.Admitted, Digest(b.say("d")))
	restored := fmt.Sprintf(`{"timestamp":%q,"event_type":"snapshot_restored","namespace":"$cluster","generation":1`, day.Format(time.RFC3339Nano))
	lines := sealedLines(&Tail{Node: "n"}, b.known(first, "a"), b.known(taken, "b"), restored, b.known(last, "d"))
	said := problems(t, lines)
	require.Len(t, said, 1)
	require.Contains(t, said[0], fmt.Sprintf("change 2 of %q has no line before this one, which is change 3", b.of))
}
