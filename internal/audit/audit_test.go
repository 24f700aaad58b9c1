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
	other, err := TailOf(path, "another")
	require.NoError(t, err)
	require.Zero(t, other.Seq, "the file is of another node")
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
