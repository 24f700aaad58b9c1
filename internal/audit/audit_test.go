package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

func sealedLines(t *Tail, lines ...string) string {
	var out []byte
	for _, l := range lines {
		out = append(t.Seal(append(out, l...), len(out)), '\n')
	}
	return string(out)
}

func problems(t *testing.T, files ...string) []string {
	t.Helper()
	var in []File
	for i, f := range files {
		in = append(in, File{Name: string(rune('a' + i)), Text: strings.NewReader(f)})
	}
	r, err := Verify(in, Against{})
	require.NoError(t, err)
	var out []string
	for i := range r.Problems {
		out = append(out, r.Problems[i].String())
	}
	return out
}

// A line can be read as JSON, and its seal is its end.
func TestSeal(t *testing.T) {
	tail := Tail{Node: `a"b`}
	text := sealedLines(&tail, `{"event_type":"x","reason":"say \",\"sha256\":\"`+strings.Repeat("0", 64)+`\"}"`)
	var l Line
	require.NoError(t, json.Unmarshal([]byte(text), &l))
	require.Equal(t, `a"b`, l.Node)
	require.EqualValues(t, 1, l.Seq)
	require.Empty(t, problems(t, text))
}

// Rotated files may be given in any order, and those of other nodes among them.
func TestFilesInAnyOrder(t *testing.T) {
	a, b := Tail{Node: "a"}, Tail{Node: "b"}
	old := sealedLines(&a, `{"x":1`, `{"x":2`)
	now := sealedLines(&a, `{"x":3`)
	other := sealedLines(&b, `{"x":1`)
	require.Empty(t, problems(t, now, other, old))
	require.Equal(t, []string{"a:1: lines 1 to 2 of node a are missing before this one: removed, lost when the disk was full, or in a file that was not given"}, problems(t, now, other))
}

// The chain goes on behind the last whole line of a file.
func TestTailOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	tail, err := TailOf(path, "n")
	require.NoError(t, err)
	require.Equal(t, Tail{Node: "n"}, tail)

	was := Tail{Node: "n"}
	text := `{"event_type":"from before"}` + "\n" + sealedLines(&was, `{"x":1`, `{"x":2`)
	for _, rest := range []string{"", `{"x":3,"no`, "\n", `{"x":3,"no` + "\n"} {
		require.NoError(t, os.WriteFile(path, []byte(text+rest), 0o600))
		tail, err = TailOf(path, "n")
		require.NoError(t, err)
		require.Equal(t, was, tail, "%q", rest)
	}
	require.NoError(t, os.WriteFile(path, []byte(strings.TrimSuffix(text, "\n")), 0o600))
	tail, err = TailOf(path, "n")
	require.NoError(t, err)
	require.Equal(t, was, tail, "the byte that ends the last line is missing, and the line is whole")
	other, err := TailOf(path, "another")
	require.NoError(t, err)
	require.Zero(t, other.Seq, "the file is of another node")
}

// Lines can be sealed anew by whoever changes one, but what they say of a record has to
// follow from what was there, from its first change on.
func TestLinesThatAreSealedAnew(t *testing.T) {
	k := session.SessionKey("n", "s")
	say := func(call string) []byte {
		s := SayOf(&session.Begin{NS: "n", Session: "s", Call: call}, &session.Authority{})
		return s.Text()
	}
	file := func(at int, said []byte, code session.Code) string {
		var c *session.Chain
		var lines []string
		for i, call := range []string{"a", "b", "c"} {
			as, is := say(call), session.Admitted
			if c = c.Next(0, is, Digest(as)); i == at {
				as, is = said, code
			}
			lines = append(lines, fmt.Sprintf(`{"event_type":"change","namespace":"n","change":{"chain":%q,"said":%s,"n":%d,"generation":0,"head":"%x","code":%d}`, k, as, c.N, c.Head[:], is))
		}
		return sealedLines(&Tail{Node: "n"}, lines...)
	}
	require.Empty(t, problems(t, file(-1, nil, 0)))
	for i := range 3 {
		for _, text := range []string{file(i, say("x"), session.Admitted), file(i, say(string(rune('a'+i))), session.Denied)} {
			require.Equal(t, []string{fmt.Sprintf("a:%d: change %[1]d of %q does not follow from the one before: what was said or its outcome is not what was written", i+1, k)}, problems(t, text))
		}
	}
}

// A change whose outcome its node never learned is no gap.
func TestThroughWhatIsUnknown(t *testing.T) {
	k := session.SessionKey("n", "s")
	say := func(call string) []byte {
		s := SayOf(&session.Begin{NS: "n", Session: "s", Call: call}, &session.Authority{})
		return s.Text()
	}
	first := (*session.Chain)(nil).Next(0, session.Done, Digest(say("a")))
	second := first.Next(0, session.Queued, Digest(say("b")))
	third := second.Next(0, session.Admitted, Digest(say("c")))
	line := func(c *session.Chain, code session.Code, said []byte) string {
		link := ""
		if c != nil {
			link = `,"n":` + fmt.Sprint(c.N) + `,"generation":0,"head":"` + hex.EncodeToString(c.Head[:]) + `","code":` + fmt.Sprint(uint8(code))
		}
		return `{"event_type":"change","namespace":"n","change":{"chain":"` + string(k) + `","said":` + string(said) + link + `}`
	}
	tail := Tail{Node: "n"}
	require.Empty(t, problems(t, sealedLines(&tail, line(first, session.Done, say("a")), line(nil, 0, say("b")), line(third, session.Admitted, say("c")))))
	tail = Tail{Node: "n"}
	lost := problems(t, sealedLines(&tail, line(first, session.Done, say("a")), line(third, session.Admitted, say("c"))))
	require.Len(t, lost, 1)
	require.Contains(t, lost[0], "change 2 of")
}

// Nor are several of them in a row, or behind all that is known: before the head of the
// state, and before the line that says how the chain ended.
func TestThroughSeveralThatAreUnknown(t *testing.T) {
	k, ns := session.SessionKey("n", "s"), session.NamespaceKey("n")
	say := func(call string) []byte {
		s := SayOf(&session.Begin{NS: "n", Session: "s", Call: call}, &session.Authority{})
		return s.Text()
	}
	known := func(c *session.Chain, said []byte) string {
		return fmt.Sprintf(`{"event_type":"change","namespace":"n","change":{"chain":%q,"said":%s,"n":%d,"generation":0,"head":"%x","code":%d}`, k, said, c.N, c.Head[:], session.Admitted)
	}
	unknown := func(said []byte) string {
		return fmt.Sprintf(`{"event_type":"change","namespace":"n","change":{"chain":%q,"said":%s}`, k, said)
	}
	ended := func(c *session.Chain) string {
		f := session.Fold{Key: k, Chain: *c}
		into := (*session.Chain)(nil).Next(0, session.Done, f.Audited())
		return fmt.Sprintf(`{"fold":{"chain":%q,"n":1,"generation":0,"head":"%x","of":{"chain":%q,"n":%d,"generation":0,"head":"%x"}}`, ns, into.Head[:], k, c.N, c.Head[:])
	}
	first := (*session.Chain)(nil).Next(0, session.Admitted, Digest(say("a")))
	second := first.Next(0, session.Denied, Digest(say("b")))
	third := second.Next(0, session.Admitted, Digest(say("c")))
	fourth := third.Next(0, session.Admitted, Digest(say("d")))
	for name, test := range map[string]struct {
		lines []string
		head  *session.Chain
		wrong string
	}{
		"two in a row":                {[]string{known(first, say("a")), unknown(say("c")), unknown(say("b")), unknown(say("b")), known(fourth, say("d"))}, fourth, ""},
		"from the beginning":          {[]string{unknown(say("b")), unknown(say("a")), known(third, say("c"))}, third, ""},
		"before the head":             {[]string{known(first, say("a")), unknown(say("c")), unknown(say("b"))}, third, ""},
		"all of them":                 {[]string{unknown(say("a")), unknown(say("b"))}, second, ""},
		"before the end":              {[]string{known(first, say("a")), unknown(say("b")), ended(second)}, nil, ""},
		"one of two in a row":         {[]string{known(first, say("a")), unknown(say("c")), known(fourth, say("d"))}, fourth, "change 3 of"},
		"none before the head":        {[]string{known(first, say("a")), unknown(say("c"))}, second, "lines are missing at the end"},
		"none of all":                 {[]string{unknown(say("b"))}, first, "no file has one of them"},
		"none before the end":         {[]string{known(first, say("a")), unknown(say("c")), ended(second)}, nil, "ended with change 2, of which no file has a line"},
		"another outcome than it had": {[]string{known(first, say("a")), unknown(say("b")), strings.Replace(known(third, say("c")), `"code":1`, `"code":3`, 1)}, third, "which is change 3"},
	} {
		t.Run(name, func(t *testing.T) {
			tail := Tail{Node: "n"}
			heads := &Heads{}
			if c := test.head; c != nil {
				heads.Links = []Link{{Chain: k, N: c.N, Head: hex.EncodeToString(c.Head[:])}}
			} else {
				f := session.Fold{Key: k, Chain: *second}
				into := (*session.Chain)(nil).Next(0, session.Done, f.Audited())
				heads.Links = []Link{{Chain: ns, N: 1, Head: hex.EncodeToString(into.Head[:])}}
			}
			r, err := Verify([]File{{Name: "f", Text: strings.NewReader(sealedLines(&tail, test.lines...))}}, Against{Heads: heads})
			require.NoError(t, err)
			if test.wrong == "" {
				require.Empty(t, r.Problems)
				return
			}
			require.NotEmpty(t, r.Problems)
			require.Contains(t, r.Problems[0].What, test.wrong)
		})
	}
}

// Calls that were made together, and lost together, are many.
func TestThroughManyThatAreUnknown(t *testing.T) {
	k := session.SessionKey("n", "s")
	line := func(i int, c *session.Chain) (text string, said []byte) {
		s := SayOf(&session.Begin{NS: "n", Session: "s", Call: fmt.Sprint(i)}, &session.Authority{})
		link := ""
		if c != nil {
			next := c.Next(0, session.Admitted, Digest(s.Text()))
			link = fmt.Sprintf(`,"n":%d,"generation":0,"head":"%x"`, next.N, next.Head[:])
		}
		return fmt.Sprintf(`{"event_type":"change","namespace":"n","change":{"chain":%q,"said":%s%s,"code":%d}`, k, s.Text(), link, session.Admitted), s.Text()
	}
	tail, at := Tail{Node: "n"}, &session.Chain{}
	var lines []string
	for i := range 12 {
		lost, said := line(i, nil)
		known, _ := line(i, at)
		at = at.Next(0, session.Admitted, Digest(said))
		if i == 0 || i == 11 {
			lines = append(lines, known)
		} else {
			lines = append(lines, lost)
		}
	}
	other, _ := line(100, nil) // which was not applied
	require.Empty(t, problems(t, sealedLines(&tail, append([]string{other}, lines...)...)))
	tail = Tail{Node: "n"}
	require.Len(t, problems(t, sealedLines(&tail, append(lines[:3:3], lines[4:]...)...)), 1)
}

// What is said has no arguments, outputs, values or secrets, whatever the command.
func TestNothingSecretIsSaid(t *testing.T) {
	const canary = "canary-of-a-secret"
	for _, c := range []session.Command{
		&session.Set{NS: "n", By: session.Maker{Client: "c"}, Key: "k", Value: session.Value{Text: canary}},
		&session.Append{NS: "n", Key: "k", Items: []string{canary}},
		&session.End{NS: "n", Session: "s", Call: "c", Output: session.Output{Text: canary}},
		&session.Ask{NS: "n", ID: "a", Preview: canary},
		&session.PutStanding{NS: "n", Shown: canary},
		&session.PutPolicy{NS: "n", Name: "p", Tree: []byte(canary)},
		&session.Open{NS: "n", Session: "s", Attributes: []session.Attr{{Name: "a", Value: canary}}},
	} {
		s := SayOf(c, &session.Authority{})
		require.NotContains(t, string(s.Text()), canary, "%T", c)
		require.Equal(t, reflect.TypeOf(c).Elem().Name(), s.Do)
		require.Equal(t, "n", s.Namespace)
	}
}

func FuzzVerify(f *testing.F) {
	tail := Tail{Node: "n"}
	f.Add([]byte(sealedLines(&tail, `{"change":{"chain":"sn/s","said":{"namespace":"n"},"n":1,"generation":0,"head":"00","code":1}`)))
	f.Add([]byte(`{"fold":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		tail := Tail{Node: "n"}
		in := text
		if i := bytes.IndexByte(text, '\n'); i > 1 && text[0] == '{' { // with a seal that holds
			in = append(tail.Seal(bytes.Clone(text[:i]), 0), '\n')
		}
		if _, err := Verify([]File{{Name: "f", Text: bytes.NewReader(in)}}, Against{Heads: &Heads{}}); err != nil {
			require.ErrorContains(t, err, "f: ")
		}
	})
}
