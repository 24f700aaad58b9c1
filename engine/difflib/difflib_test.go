package difflib

import (
	"math/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/internal/oracle"
)

func TestOracleRatio(t *testing.T) {
	type vector struct {
		A, B  string
		Ratio float64
	}
	for _, c := range oracle.Cases(t, "ratio", func(vector) string { return "" }) {
		ratio, exact := Measure(c.A, c.B)
		require.True(t, exact)
		require.Equal(t, c.Ratio, ratio, "a = %q\nb = %q", c.A, c.B)
		require.Equal(t, c.Ratio, ratioOf(c.A, c.B))
	}
}

func TestRatio(t *testing.T) {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 10)
	cases := []struct {
		name  string
		a, b  string
		ratio float64
	}{
		{"two empty texts are alike", "", "", 1},
		{"nothing in common with an empty text", "abc", "", 0},
		{"nothing in common with an empty baseline", "", "abc", 0},
		{"equal texts", "drift", "drift", 1},
		{"the baseline comes first", "tide", "diet", 0.25},
		{"the other way round is another number", "diet", "tide", 0.5},
		{"code points count, not bytes", "aé", "aè", 0.5},
		{"autojunk: above 200 code points frequent characters start no match", text, strings.ReplaceAll(text, "fox", "cat"), 0.035555555555555556},
		{"equal texts stay equal under autojunk", text, text, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.ratio, ratioOf(c.a, c.b)) })
	}
}

// What cannot be measured in bounded time must look different, never alike.
func TestBeyondTheBounds(t *testing.T) {
	long := strings.Repeat("x", MaxRunes+1)
	ratio, exact := Measure(long, long[1:])
	require.Zero(t, ratio)
	require.False(t, exact, "longer than MaxRunes")

	ratio, exact = Measure(long, long)
	require.Equal(t, 1.0, ratio)
	require.True(t, exact, "equal texts need no measuring")

	_, exact = Measure(strings.Repeat("é", MaxRunes), strings.Repeat("é", MaxRunes-1))
	require.True(t, exact, "MaxRunes are code points and not bytes")
}

// costly returns two texts that take the algorithm as much work as it can: no
// two neighbours of one are neighbours in the other, so that each match is one
// character long and leaves almost everything to be done again, and as many
// characters as autojunk allows are the same.
func costly(n int) (a, b string) {
	var x, y strings.Builder
	for i := range n / 2 {
		letter := rune(0x4e00 + i%60)
		x.WriteString(string(letter) + "y")
		y.WriteString(string(letter) + "z")
	}
	return x.String(), y.String()
}

func TestWorkIsBounded(t *testing.T) {
	a, b := costly(MaxRunes)
	m := newMatcher([]rune(a), []rune(b))
	matched := m.matched()
	// One search may overshoot the bound by what a single search can take.
	perSearch := MaxRunes * (MaxRunes/100 + 2)
	require.LessOrEqual(t, m.steps, maxSteps+perSearch)
	require.Greater(t, m.steps, maxSteps, "the texts are not costly enough to show anything")
	require.Less(t, matched, MaxRunes/4, "what was not compared counts as different")
}

func TestOrdinaryLongTextsAreExact(t *testing.T) {
	a, b := prose(MaxRunes)
	_, exact := Measure(a, b)
	require.True(t, exact)
}

func ratioOf(a, b string) float64 {
	ratio, _ := Measure(a, b)
	return ratio
}

// prose returns two texts of n characters in which every twentieth word differs.
func prose(n int) (string, string) {
	r := rand.New(rand.NewSource(1))
	words := strings.Fields("the report was sent to all members of the board who had asked for it in spring " +
		"and a second copy went with 38 tables, 14 notes (see below) and an index to the archive in Oslo")
	var a, b strings.Builder
	for a.Len() < n || b.Len() < n {
		w := words[r.Intn(len(words))]
		a.WriteString(w + " ")
		if r.Intn(20) == 0 {
			w = words[r.Intn(len(words))]
		}
		b.WriteString(w + " ")
	}
	return a.String()[:n], b.String()[:n]
}

func FuzzRatio(f *testing.F) {
	f.Add("", "")
	f.Add("tide", "diet")
	f.Add("private Thread currentThread;", "private volatile Thread currentThread;")
	f.Add(strings.Repeat("ab", 150), strings.Repeat("ba", 120))
	f.Add("a\xff\xc0b", "\xedb")
	f.Fuzz(func(t *testing.T, a, b string) {
		ratio, exact := Measure(a, b)
		if ratio < 0 || ratio > 1 {
			t.Fatalf("ratio %v is outside [0, 1]", ratio)
		}
		if a == b && (ratio != 1 || !exact) {
			t.Fatalf("equal texts have ratio %v, exact %v", ratio, exact)
		}
	})
}

func BenchmarkRatio(b *testing.B) {
	worstA, worstB := costly(MaxRunes)
	proseA, proseB := prose(MaxRunes)
	r := rand.New(rand.NewSource(1))
	random := func() string {
		var s strings.Builder
		for range MaxRunes {
			s.WriteRune(rune(0x4e00 + r.Intn(200)))
		}
		return s.String()
	}
	for _, c := range []struct{ name, a, b string }{
		{"costly64Ki", worstA, worstB},
		{"random64Ki", random(), random()},
		{"prose64Ki", proseA, proseB},
		{"prose4Ki", proseA[:4096], proseB[:4096]},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				Measure(c.a, c.b)
			}
		})
	}
}
