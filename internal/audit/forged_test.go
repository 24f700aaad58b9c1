package audit

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
	"example.com/govnode/session"
)

// A book makes lines of changes of one session, as a node writes them. Whoever has a file
// can seal what he likes anew, and compute each head.
type book struct{ of session.Key }

var ofSession = book{session.SessionKey("n", "s")}

func (book) say(call string) []byte {
	s := SayOf(&session.Begin{NS: "n", Session: "s", Call: call}, &session.Authority{})
	return s.Text()
}

func (b book) next(c *session.Chain, code session.Code, call string) *session.Chain {
	return c.Next(0, code, Digest(b.say(call)))
}

// line is of a change; c is nil where its place is not known.
func (b book) line(c *session.Chain, at time.Time, outcome string, code session.Code, call string) string {
	link := ""
	if c != nil {
		link = fmt.Sprintf(`,"n":%d,"generation":%d,"head":"%x","code":%d`, c.N, c.Generation, c.Head[:], code)
	}
	return fmt.Sprintf(`{"timestamp":%q,"event_type":"change","namespace":"n","outcome":%q,"change":{"chain":%q,"said":%s%s}`,
		at.Format(time.RFC3339Nano), outcome, b.of, b.say(call), link)
}

// known is a line whose place is known and whose outcome is what it was.
func (b book) known(c *session.Chain, call string) string {
	return b.line(c, day, session.Admitted.String(), session.Admitted, call)
}

func (b book) headsAt(at time.Time, c *session.Chain) *Heads {
	return &Heads{At: at, Links: []Link{{Chain: b.of, N: c.N, Generation: c.Generation, Head: hex.EncodeToString(c.Head[:])}}}
}

// What a line says is what happened, or its place in the chain does not bear it out.
func TestForgedLines(t *testing.T) {
	b := ofSession
	first := b.next(nil, session.Admitted, "a")
	second := b.next(first, session.Denied, "b")
	third := b.next(second, session.Admitted, "c")
	denied := b.line(second, day, session.Denied.String(), session.Denied, "b")
	whole := []string{b.known(first, "a"), denied, b.known(third, "c")}
	late := day.Add(time.Hour)
	forked := b.next(first, session.Admitted, "x")
	for name, test := range map[string]struct {
		lines []string
		heads *Heads
		wrong string
	}{
		"nothing":                             {whole, b.headsAt(late, third), ""},
		"an outcome that nothing bears out":   {[]string{whole[0], b.line(nil, day, "admitted", 0, "b"), whole[2]}, b.headsAt(late, third), "no place in the chain of its record that would prove it"},
		"another outcome than that of a link": {[]string{whole[0], strings.Replace(denied, `"outcome":"denied`, `"outcome":"admitted`, 1), whole[2]}, b.headsAt(late, third), "the line has the outcome"},
		"another namespace":                   {[]string{whole[0], strings.Replace(denied, `"namespace":"n","outcome"`, `"namespace":"m","outcome"`, 1), whole[2]}, b.headsAt(late, third), "of another type or namespace"},
		"another type":                        {[]string{whole[0], strings.Replace(denied, `"change","namespace"`, `"policy","namespace"`, 1), whole[2]}, b.headsAt(late, third), "of another type or namespace"},
		"a line twice":                        {[]string{whole[0], whole[1], whole[2], whole[2]}, nil, "a line is there twice"},
		"the first line twice":                {[]string{whole[0], whole[0], whole[1], whole[2]}, nil, "a line is there twice"},
		"two changes behind one":              {append(slices.Clone(whole), b.known(forked, "x")), nil, "or the state was rolled back"},
		"a change that the state never had":   {append(slices.Clone(whole), b.known(b.next(third, session.Admitted, "d"), "d")), b.headsAt(late, third), "the state does not know change 4"},
		"a state that is older":               {whole, b.headsAt(late, second), "the state does not know change 3"},
		"a change behind the heads":           {append(slices.Clone(whole), b.known(b.next(third, session.Admitted, "d"), "d")), b.headsAt(day.Add(-10*time.Second), third), ""},
		"one line for two that were removed": {[]string{
			b.line(nil, day, "unknown", 0, "a"), b.known(b.next(b.next(nil, session.Admitted, "a"), session.Admitted, "x"), "x"),
			b.known(b.next(b.next(b.next(b.next(nil, session.Admitted, "a"), session.Admitted, "x"), session.Admitted, "a"), session.Admitted, "y"), "y"),
		}, nil, "change 3 of"},
	} {
		t.Run(name, func(t *testing.T) {
			tail := Tail{Node: "n1"}
			all, _ := verified(t, Against{Heads: test.heads}, sealedLines(&tail, test.lines...))
			if test.wrong == "" {
				require.Empty(t, all)
				return
			}
			require.Len(t, all, 1)
			require.Contains(t, all[0], test.wrong)
		})
	}
	// What is said twice is read by others in another way than here: by the first, the last, or
	// the one that is written as they expect it.
	for name, forge := range map[string][2]string{
		"said":     {`"said":`, `"said":{"do":"Begin","namespace":"n","session_id":"s","call_id":"x"},"said":`},
		"Said":     {`"said":`, `"said":{"do":"Begin","namespace":"n","session_id":"s","call_id":"x"},"Said":`},
		"outcome":  {`"outcome":`, `"outcome":"queued","outcome":`},
		"OUTCOME":  {`"outcome":`, `"outcome":"queued","OUTCOME":`},
		"a change": {`"change":`, `"change":{"said":{"do":"End"}},"change":`},
	} {
		for i := range whole {
			t.Run(name, func(t *testing.T) {
				lines := slices.Clone(whole)
				lines[i] = strings.Replace(lines[i], forge[0], forge[1], 1)
				tail := Tail{Node: "n1"}
				all, _ := verified(t, Against{Heads: b.headsAt(late, third)}, sealedLines(&tail, lines...))
				require.NotEmpty(t, all)
			})
		}
	}
	// In the files of two nodes as well.
	one, two := Tail{Node: "n1"}, Tail{Node: "n2"}
	all, _ := verified(t, Against{}, sealedLines(&one, whole...), sealedLines(&two, b.known(forked, "x")))
	require.Len(t, all, 1)
	require.Contains(t, all[0], "or the state was rolled back")
}

// Where a record has ended nobody may have a line of that, since it is told by who led at
// the time. What the line would say follows from the chain, and has a place in the
// namespace's.
func TestEndsWithoutALine(t *testing.T) {
	b, ns := ofSession, session.NamespaceKey("n")
	first := b.next(nil, session.Admitted, "a")
	second := b.next(first, session.Admitted, "b")
	fold := func(at *session.Chain, into *session.Chain) *session.Chain {
		f := session.Fold{Key: b.of, Chain: *at}
		return into.Next(0, session.Done, f.Audited())
	}
	heads := func(c *session.Chain) *Heads {
		return &Heads{At: day.Add(time.Hour), Links: []Link{{Chain: ns, N: c.N, Head: hex.EncodeToString(c.Head[:])}}}
	}
	lines := func(all ...string) string { tail := Tail{Node: "n1"}; return sealedLines(&tail, all...) }
	all, _ := verified(t, Against{Heads: heads(fold(second, nil))}, lines(b.known(first, "a"), b.known(second, "b")))
	require.Empty(t, all)
	all, _ = verified(t, Against{Heads: heads(fold(second, nil))}, lines(b.known(first, "a")))
	require.NotEmpty(t, all, "the last line of the session is missing")
	all, _ = verified(t, Against{Heads: heads((*session.Chain)(nil).Next(0, session.Done, session.Digest{1}))}, lines(b.known(first, "a")))
	require.NotEmpty(t, all, "it ended in no place of the namespace's chain")

	// A line of another end behind that finds its way, with and without the heads.
	o := book{session.SessionKey("n", "o")}
	other := o.next(nil, session.Admitted, "o")
	f := session.Fold{Key: o.of, Chain: *other}
	into := fold(second, nil).Next(0, session.Done, f.Audited())
	ended := fmt.Sprintf(`{"event_type":"chain_ended","namespace":"n","fold":{"chain":%q,"n":2,"generation":0,"head":"%x","of":{"chain":%q,"n":1,"generation":0,"head":"%x"}}`, ns, into.Head[:], o.of, other.Head[:])
	for _, against := range []Against{{}, {Heads: heads(into)}} {
		all, _ = verified(t, against, lines(b.known(first, "a"), b.known(second, "b"), o.known(other, "o"), ended))
		require.Empty(t, all)
	}
}

// Where the heads of some namespaces are missing they are named, and where there are those
// of all nothing is said.
func TestNamesNamespacesWithoutHeads(t *testing.T) {
	b := ofSession
	first := b.next(nil, session.Admitted, "a")
	log := func() string { tail := Tail{Node: "n1"}; return sealedLines(&tail, b.known(first, "a")) }
	late := b.headsAt(day.Add(time.Hour), first)
	late.Namespaces = []string{"n"}
	_, notes := verified(t, Against{Heads: late}, log())
	require.Empty(t, notes)
	for _, heads := range []*Heads{nil, {At: late.At, Namespaces: []string{"other"}}} {
		_, notes = verified(t, Against{Heads: heads}, log())
		require.Equal(t, []string{"without the heads of n nobody can tell whether changes are missing there at the end; see govnode audit heads"}, notes)
	}
}

// Many in a row whose answers were lost are followed, and some that were unlikely among not
// so many.
func TestThroughHundredsThatAreUnknown(t *testing.T) {
	b := ofSession
	for n, denied := range map[int][]int{300: nil, 20: {5, 12}} {
		var at *session.Chain
		var lines []string
		for i := range n {
			call, code := fmt.Sprint(i), session.Admitted
			if slices.Contains(denied, i) {
				code = session.Denied
			}
			at = b.next(at, code, call)
			lines = append(lines, b.line(nil, day, "unknown", 0, call))
		}
		against := Against{Heads: b.headsAt(day.Add(time.Hour), at)}
		tail := Tail{Node: "n1"}
		all, _ := verified(t, against, sealedLines(&tail, lines...))
		require.Empty(t, all)
		tail = Tail{Node: "n1"}
		all, _ = verified(t, against, sealedLines(&tail, append(lines[:n/2:n/2], lines[n/2+1:]...)...))
		require.Len(t, all, 1)
	}
}

// A log that its node began anew is one problem, and not one for each line behind that.
func TestALogThatWasBegunAnew(t *testing.T) {
	old, now := Tail{Node: "n1"}, Tail{Node: "n1"}
	text := sealedLines(&old, `{"x":1`, `{"x":2`, `{"x":3`)
	text += sealedLines(&now, `{"y":1`, `{"y":2`, `{"y":3`, `{"y":4`)
	all, _ := verified(t, Against{}, text)
	require.Len(t, all, 1)
	require.Contains(t, all[0], "was begun anew here")

	now = Tail{Node: "n1"}
	changed := strings.Replace(sealedLines(&now, `{"y":1`, `{"y":2`, `{"y":3`), `{"y":2`, `{"y":7`, 1)
	all, _ = verified(t, Against{}, sealedLines(&Tail{Node: "n1"}, `{"x":1`)+changed)
	require.Len(t, all, 2, "what stands behind is looked at")
}

// Where a log was begun anew two files begin with line 1. What tells which is the older one
// is what they hold, and not how they are called.
func TestFilesOfALogThatWasBegunAnew(t *testing.T) {
	old, now := Tail{Node: "n1"}, Tail{Node: "n1"}
	at := func(minute int) string {
		return fmt.Sprintf(`{"timestamp":%q`, day.Add(time.Duration(minute)*time.Minute).Format(time.RFC3339Nano))
	}
	older := []string{sealedLines(&old, at(0), at(1), at(2)), sealedLines(&old, at(3), at(4)), sealedLines(&old, at(5))}
	newer := []string{sealedLines(&now, at(10)), sealedLines(&now, at(11), at(12)), sealedLines(&now, at(13))}
	anew := "was begun anew here"
	for name, test := range map[string]struct {
		files []string // a, b, ...
		wrong []string
	}{
		"by their names":            {[]string{older[0], older[1], newer[0], newer[1]}, []string{"c:1: the log of node n1 " + anew + ", behind line 5"}},
		"against their names":       {[]string{newer[0], older[0]}, []string{"a:1: the log of node n1 " + anew + ", behind line 3"}},
		"in any order":              {[]string{newer[1], older[1], newer[0], older[2], older[0], newer[2]}, []string{"c:1: the log of node n1 " + anew + ", behind line 6"}},
		"the first of the older":    {[]string{newer[0], older[1]}, []string{"b:1: lines 1 to 3 of node n1 are missing", "a:1: the log of node n1 " + anew + ", behind line 5"}},
		"the second of the older":   {[]string{newer[0], older[2], older[0]}, []string{"b:1: lines 4 to 5 of node n1 are missing", "a:1: the log of node n1 " + anew + ", behind line 6"}},
		"the second of the newer":   {[]string{newer[2], older[0], newer[0]}, []string{"c:1: the log of node n1 " + anew + ", behind line 3", "a:1: lines 2 to 3 of node n1 are missing"}},
		"a file twice":              {[]string{newer[0], newer[0]}, []string{"b:1: line 1 of node n1 stands behind line 1"}},
		"no time, as written ahead": {[]string{sealedLines(&Tail{Node: "n1"}, `{"x":1`), sealedLines(&Tail{Node: "n1"}, `{"x":2`)}, []string{"b:1: the log of node n1 " + anew + ", behind line 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			all, _ := verified(t, Against{}, test.files...)
			require.Len(t, all, len(test.wrong), "%q", all)
			for i, wrong := range test.wrong {
				require.Contains(t, all[i], wrong)
			}
		})
	}
}

// A file whose seals were taken away is no file from before there were seals.
func TestSealsThatWereTakenAway(t *testing.T) {
	tail := Tail{Node: "n1"}
	before := `{"event_type":"from before"}` + "\n"
	all, _ := verified(t, Against{}, before+sealedLines(&tail, `{"x":1`))
	require.Empty(t, all, "the chain was begun here")
	all, _ = verified(t, Against{}, before+sealedLines(&tail, `{"x":2`))
	require.Contains(t, strings.Join(all, "\n"), "1 lines without a seal stand before line 2")

	_, anchor := anchored(t, "n1", Anchor{}, nil)
	for name, file := range map[string]string{"bare": before + before, "empty": ""} {
		kept := Against{}
		require.NoError(t, kept.ReadAnchors("kept", strings.NewReader(anchor)))
		all, _ = verified(t, kept, file)
		require.Len(t, all, 1, name)
		require.Contains(t, all[0], "no file has a line of that node")
	}
	kept := Against{}
	require.NoError(t, kept.ReadAnchors("kept", strings.NewReader(anchor)))
	other := Tail{Node: "n2"}
	all, notes := verified(t, kept, sealedLines(&other, `{"x":1`))
	require.Empty(t, all, "the file of another node alone")
	require.Contains(t, strings.Join(notes, "\n"), "no file of that node was given")
}

// Where anchors can be looked at they are there each minute, and all are signed.
func TestAnchorsThatWereRemoved(t *testing.T) {
	ca, roots := authority(t)
	by := certificate(t, ca, pki.Node, "n1")
	log := func(minutes int, anchorAt func(i int) (there, signed bool)) string {
		tail, text := &Tail{Node: "n1"}, ""
		for i := range minutes {
			at := day.Add(time.Duration(i) * time.Minute).Format(time.RFC3339Nano)
			text += sealedLines(tail, `{"timestamp":"`+at+`"`)
			if there, signed := anchorAt(i); there {
				c := by
				if !signed {
					c = nil
				}
				sealed, err := tail.SealAnchor([]byte(`{"event_type":"anchor","timestamp":"`+at+`"`), 0, Anchor{}, c)
				require.NoError(t, err)
				text += string(sealed) + "\n"
			}
		}
		return text
	}
	for name, test := range map[string]struct {
		anchorAt func(i int) (there, signed bool)
		wrong    string
	}{
		"all there":          {func(int) (bool, bool) { return true, true }, ""},
		"some not written":   {func(i int) (bool, bool) { return i%4 == 0, true }, ""},
		"removed":            {func(int) (bool, bool) { return false, false }, "has no anchor for"},
		"removed in a part":  {func(i int) (bool, bool) { return i < 10 || i > 17, true }, "has no anchor for"},
		"removed at the end": {func(i int) (bool, bool) { return i < 10, true }, "has no anchor for"},
		"signatures removed": {func(i int) (bool, bool) { return true, i != 5 }, "is not signed, and others of node n1 before it are"},
	} {
		t.Run(name, func(t *testing.T) {
			all, _ := verified(t, Against{Roots: roots}, log(20, test.anchorAt))
			if test.wrong == "" {
				require.Empty(t, all)
				return
			}
			require.Len(t, all, 1)
			require.Contains(t, all[0], test.wrong)
		})
	}
	// A node that was paused writes what came meanwhile, and then an anchor.
	tail := &Tail{Node: "n1"}
	text := ""
	for _, minute := range []int{0, 1, 60, 61} {
		at := day.Add(time.Duration(minute) * time.Minute)
		text += sealedLines(tail, `{"timestamp":"`+at.Format(time.RFC3339Nano)+`"`)
		sealed, err := tail.SealAnchor([]byte(`{"event_type":"anchor","timestamp":"`+at.Add(time.Second).Format(time.RFC3339Nano)+`"`), 0, Anchor{}, by)
		require.NoError(t, err)
		text += string(sealed) + "\n"
	}
	all, _ := verified(t, Against{Roots: roots}, text)
	require.Empty(t, all)
}
