package sandbox_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum/sandbox"
	"example.com/govnode/engine/value"
)

// testdata/attacks.txt, line by line.
func TestAttacks(t *testing.T) {
	raw, err := os.ReadFile("testdata/attacks.txt")
	require.NoError(t, err)
	var box *sandbox.Box
	seen := 0
	for i, line := range strings.Split(string(raw), "\n") {
		at := fmt.Sprintf("attacks.txt:%d: %s", i+1, line)
		if section, ok := strings.CutPrefix(line, "== "); ok {
			_, spec, _ := strings.Cut(section, " | ")
			box = boxOf(t, spec)
			continue
		}
		inside := strings.HasPrefix(line, "in ")
		if !inside && !strings.HasPrefix(line, "out ") {
			continue
		}
		seen++
		text := strings.TrimSpace(line[4:strings.LastIndex(line, "  # ")])
		metadata := value.OfMap()
		if before, cwd, ok := strings.Cut(text, "} @ "); ok {
			text = before + "}"
			metadata = value.OfMap(value.Pair{Key: "cwd", Value: value.OfString(cwd)})
		}
		args, err := value.Parse([]byte(text))
		require.NoError(t, err, at)
		detail, got, err := box.Check(args, metadata)
		require.NoError(t, err, at)
		require.Equal(t, inside, got, "%s: %s", at, detail)
		require.Equal(t, inside, detail == "", at)
	}
	require.GreaterOrEqual(t, seen, 200)
}

// A text that is made for it takes no longer than one that is not: it is outside, or looked
// at once.
func TestWhatIsLookedAtIsBounded(t *testing.T) {
	box := sandbox.New(sandbox.Spec{Within: []string{"/srv"}, Domains: []string{"x.io"}})
	for _, part := range []string{"=", "%3d=", ":", "http:", "https:x.io,", "https://x.io,", "http:~", "{a,", "{", "..{", "=/srv/", "%2e=", "x.io@", "//x.io ", "/../srv/,"} {
		text := strings.Repeat(part, 200_000/len(part))
		start := time.Now()
		for _, key := range []string{"command", "path", "x"} {
			_, _, err := box.Check(argument(key, text), value.Value{})
			require.NoError(t, err)
		}
		require.Less(t, time.Since(start), 30*time.Second, "%q", part) // it was a minute where it grew with the square
	}
}

// Nor do many hosts behind many blanks, before each of which these would be looked at.
func TestBlanksBeforeHostsAreLookedAtOnce(t *testing.T) {
	box := sandbox.New(sandbox.Spec{Domains: []string{"x.io"}})
	text := strings.Repeat(" ", 200_000) + strings.Repeat("a://x.io ", 200_000/9)
	start := time.Now()
	_, inside, err := box.Check(argument("x", text), value.Value{})
	require.NoError(t, err)
	require.True(t, inside)
	require.Less(t, time.Since(start), 5*time.Second)
}

// What reads is told from what may do more, also where its options are written together,
// cut short or in braces.
func TestClassify(t *testing.T) {
	for command, effect := range map[string]sandbox.SideEffect{
		"": sandbox.Read, "ls -la": sandbox.Read, "tree -a": sandbox.Read, "date -u": sandbox.Read, "date -Iseconds": sandbox.Read, "git log --oneline": sandbox.Read,
		"cat {a": sandbox.Read, "grep '{a,b}' x": sandbox.Read, "find . -name '*.go'": sandbox.Read, "less x": sandbox.Read, "rg --pretty x": sandbox.Read,
		"cat {a,b}": sandbox.Irreversible, "find . -{delete,print}": sandbox.Irreversible, "find . -delete": sandbox.Irreversible,
		"tree -o x": sandbox.Irreversible, "tree -ox": sandbox.Irreversible, "tree -ao x": sandbox.Irreversible, "tree -R -L 1": sandbox.Irreversible,
		"date -s 2030": sandbox.Irreversible, "date -us 2030": sandbox.Irreversible, "date --set=2030": sandbox.Irreversible, "date --s 2030": sandbox.Irreversible, "date --se 2030": sandbox.Irreversible,
		"less -No log x": sandbox.Irreversible, "file -bC": sandbox.Irreversible, "rg --hostname-bin ./x y": sandbox.Irreversible, "rg --pre=./x y": sandbox.Irreversible,
		"git log -p --ext-diff": sandbox.Irreversible, "git log --output=x": sandbox.Irreversible, "git branch -D x": sandbox.Irreversible, "rm x": sandbox.Irreversible,
	} {
		require.Equal(t, effect, sandbox.Classify(command), command)
	}
}

func boxOf(t *testing.T, text string) *sandbox.Box {
	t.Helper()
	var s struct {
		Within     []string `json:"within"`
		NotWithin  []string `json:"not_within"`
		Commands   []string `json:"commands"`
		Domains    []string `json:"domains"`
		NotDomains []string `json:"not_domains"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	return sandbox.New(sandbox.Spec(s))
}
