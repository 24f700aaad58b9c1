package pattern

import (
	"errors"
	"fmt"
	"math/rand"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/value"
)

// Of the 1,789 expressions RE2 itself can run all but 26, which need another
// engine; all of those run there.
func TestCorpusCoverage(t *testing.T) {
	needy := 0
	for _, text := range corpusTexts(t) {
		rewritten, _, err := rewrite(text, dialectRE2, true)
		if err == nil {
			_, err = syntax.Parse(rewritten, syntax.Perl)
			err = plainErrorOf(err)
		}
		if err == nil {
			continue
		}
		var needs needsBacktracking
		require.True(t, errors.As(err, &needs), "%s\n%v", text, err)
		needy++
		_, err = compileBacktracking(text)
		require.NoError(t, err, "%s", text)
	}
	require.Equal(t, 26, needy)
}

func plainErrorOf(err error) error {
	if err == nil {
		return nil
	}
	return plainError(err)
}

// The filter may change how long a search takes and nothing else.
func TestFilterFindsAll(t *testing.T) {
	patterns := mixed(t)
	set, err := NewSet(patterns)
	require.NoError(t, err)
	r := rand.New(rand.NewSource(1))
	hits := 0
	for range 20 {
		f := FormsOf(fragments(r, patterns))
		want := everyPattern(set, f)
		hits += len(want)
		require.Equal(t, want, set.Match(f), "%s", f.value.JSON())
		first := -1
		if len(want) > 0 {
			first = want[0]
		}
		require.Equal(t, first, set.First(f))
	}
	require.Greater(t, hits, 100, "too few hits to show anything")
}

// mixed returns 250 patterns of all types.
func mixed(t *testing.T) []Pattern {
	all := corpus(t)
	r := rand.New(rand.NewSource(2))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	patterns := all[:150]
	for i := range 50 {
		words := strings.Fields(all[150+i].Text)
		patterns = append(patterns,
			Pattern{Text: "*" + words[0] + "*", Type: Glob},
			Pattern{Text: words[len(words)-1][:1] + "İſ", Type: Substring})
	}
	return patterns
}

// fragments returns arguments made of pieces of the patterns, with what stands
// for expressions replaced by words and digits, so that many patterns match.
func fragments(r *rand.Rand, patterns []Pattern) value.Value {
	plain := strings.NewReplacer(`\s+`, " ", `\s*`, "", `\b`, "", `(?i)`, "", `(?:`, "", "(", "", ")?", "", ")", "", "?", "",
		`\d`, "7", `\w+`, "word", `\.`, ".", "|", " ", `\`, "", "+", "", "*", "", "[", "", "]", "", "^", "", "$", "")
	var pairs []value.Pair
	for i := range 1 + r.Intn(2) {
		var text strings.Builder
		for range 1 + r.Intn(2) {
			s := plain.Replace(patterns[r.Intn(len(patterns))].Text)
			switch r.Intn(6) {
			case 0:
				s = strings.ToUpper(s)
			case 1:
				s = strings.ReplaceAll(s, " ", "\u00a0\n")
			case 2:
				s = strings.NewReplacer("s", "ſ", "i", "ı", "k", "\u212a", "0", "٣").Replace(s)
			case 3:
				s = strings.Join(strings.Split(s, ""), "\u200b")
			}
			text.WriteString(s + string(" \n'\"7"[r.Intn(5)]))
		}
		pairs = append(pairs, value.Pair{Key: fmt.Sprint("k", i), Value: value.OfList(value.OfString(text.String()), value.OfInt(r.Int63()))})
	}
	return value.OfMap(pairs...)
}

// everyPattern runs all patterns on all pieces, without the filter.
func everyPattern(s *Set, f *Forms) []int {
	var hits []int
	for i, c := range s.patterns {
		for k := range f.all() {
			if hit, _ := c.run(&f.pieces[k]); hit {
				hits = append(hits, i)
				break
			}
		}
	}
	return hits
}

// The filter rests on this: whatever one expression can match has a loose form
// that holds the loose form of what it requires.
func TestFilterNamesItsOwnPattern(t *testing.T) {
	patterns := mixed(t)
	for i := range patterns {
		set, err := NewSet(patterns[i : i+1])
		require.NoError(t, err)
		text := []rune(patterns[i].Text)
		for _, s := range []string{string(text), strings.ToUpper(string(text)), "x" + string(text) + "y"} {
			f := FormsOfText(s)
			require.Equal(t, everyPattern(set, f), set.Match(f), "%s in %s", patterns[i].Text, s)
		}
	}
}

// What a set costs is known in advance: few patterns are run on a text that has
// nothing to do with them.
func TestFewPatternsAreRun(t *testing.T) {
	all := corpus(t)
	runs, texts := 0, 0
	for from := 0; from+800 < len(all); from += 800 {
		set, err := NewSet(all[from : from+800])
		require.NoError(t, err)
		f := FormsOf(harmless(t))
		memory := set.filter.newScan()
		for k := range f.all() {
			runs += len(set.filter.candidates(memory, f.pieces[k].text))
		}
		texts = len(f.pieces)
	}
	require.Less(t, runs, 2*texts, "runs of 1,600 patterns on %d texts", texts)
}
