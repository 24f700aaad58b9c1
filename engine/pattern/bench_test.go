package pattern

import (
	"encoding/json"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/value"
)

// corpusTexts returns the regular expressions of testdata/regex-corpus.json.
func corpusTexts(tb testing.TB) []string {
	tb.Helper()
	text, err := os.ReadFile("testdata/regex-corpus.json")
	require.NoError(tb, err)
	var entries [][2]string // the expression and the file it stands in
	require.NoError(tb, json.Unmarshal(text, &entries))
	texts := make([]string, len(entries))
	for i, e := range entries {
		texts[i] = e[0]
	}
	return texts
}

// corpus returns those of them that Compile accepts.
func corpus(tb testing.TB) []Pattern {
	tb.Helper()
	corpusOnce.Do(func() { corpusPatterns = acceptedCorpus(tb) })
	return slices.Clone(corpusPatterns)
}

var (
	corpusOnce     sync.Once
	corpusPatterns []Pattern
)

func acceptedCorpus(tb testing.TB) []Pattern {
	var patterns []Pattern
	for _, text := range corpusTexts(tb) {
		p := Pattern{Text: text, Type: Regex}
		if _, err := Compile(p); err == nil {
			patterns = append(patterns, p)
		}
	}
	return patterns
}

// harmless are 1 KiB of arguments as an agent sends them.
func harmless(tb testing.TB) value.Value {
	tb.Helper()
	text, err := os.ReadFile("testdata/harmless.json")
	require.NoError(tb, err)
	v, err := value.Parse(text)
	require.NoError(tb, err)
	return v
}

func BenchmarkThousandRegexes(b *testing.B) {
	all := corpus(b)
	set, err := NewSet(all[:1000])
	require.NoError(b, err)
	args := harmless(b)
	require.Empty(b, set.Match(FormsOf(args)))
	b.ReportAllocs()
	for b.Loop() {
		set.Match(FormsOf(args))
	}
}
func BenchmarkCompileThousand(b *testing.B) {
	all := corpus(b)[:1000]
	for b.Loop() {
		if _, err := NewSet(all); err != nil {
			b.Fatal(err)
		}
	}
}
