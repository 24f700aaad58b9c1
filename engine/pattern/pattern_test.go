package pattern

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/value"
)

func compile(t testing.TB, typ Type, text string) *Compiled {
	t.Helper()
	c, err := Compile(Pattern{Text: text, Type: typ})
	require.NoError(t, err, "%s %q", typ, text)
	return c
}

func TestMatch(t *testing.T) {
	cases := []struct {
		typ     Type
		pattern string
		text    string
		want    bool
	}{
		{"", "DROP table", "x; drop TABLE users", true}, // substring is the default
		{Substring, "a.c", "abc", false},
		{Substring, "straße", "STRAßE", true},
		{Substring, "ẞ", "ß", true},
		{Substring, "ΟΔΟΣ", "οδος", true}, // the sigma at the end too
		{Substring, "i\u0307x", "İX", true},
		{Substring, "kıl", "kil", false}, // another letter in Turkish
		{Substring, "\u212aelvin", "kelvin", true},

		{Regex, `rm\s+-rf`, "RM \t-RF /", true},
		{Regex, `^rm`, "x rm", false},
		{Regex, `end$`, "the end\n", true},
		{Regex, `end$`, "the end\n\n", false},
		{Regex, `end\Z`, "the end\n", false},
		{Regex, `(?m)^a$`, "b\na\nc", true},
		{Regex, `a.b`, "a\nb", false},
		{Regex, `(?s)a.b`, "a\nb", true},
		{Regex, `\d{3}`, "٣٤٥", true},
		{Regex, `^\w+$`, "größe_१", true},
		{Regex, `(?a)^\w+$`, "größe", false},
		{Regex, `(?u)^\w+$`, "größe", true},
		{Regex, `a\sb`, "a\u00a0b", true},
		{Regex, `\u0065\x76\U00000069l`, "EVIL", true},
		{Regex, `(?P<verb>drop|wipe) (?P<what>\w+)`, "Wipe disk", true},
		{Regex, `(?<verb>drop)`, "drop", true},
		{Regex, `it\'s`, "it's", true},
		{Regex, `a{,2}b`, "b", true},
		{Regex, `^a{,2}b`, "aaab", false},
		{Regex, `x{y}`, "x{y}", true},
		{Regex, `a(?# a comment )b`, "ab", true},
		{Regex, "(?x) a b  # spaces do not count\n c\\ d [ ]", "abc d ", true},
		{Regex, `(?-i:DROP)`, "drop", false},
		{Regex, `[[:digit:]]+x`, "12x", true},
		{Regex, `[^\W\d]`, "_", true},
		{Regex, `[^\W\d_]`, "7_", false},
		{Regex, `\p{Greek}`, "λ", true},
		{Regex, `\u200B|\u200c`, "a\u200cb", true},
		{Regex, `(?:\uDB40[\uDC00-\uDC7F]){3}`, "\U000E0041\U000E0042\U000E0043", true},
		{Regex, `\ud83d\ude00`, "😀", true},
		{Regex, `ignore`, "ıgnore", true}, // as Python's IGNORECASE

		{Glob, "*.exe", "a.EXE", true},
		{Glob, "*.exe", "a.exe.txt", false},
		{Glob, "foo*", "barfoo", true}, // anchored at the end only
		{Glob, "foo", "xfoo", true},
		{Glob, "foo", "foox", false},
		{Glob, "a*b", "a\n/b", true},
		{Glob, "[!a]x", "bx", true},
		{Glob, "[!a]x", "ax", false},
		{Glob, "{a,b}", "a", false},
	}
	for _, c := range cases {
		require.Equal(t, c.want, compile(t, c.typ, c.pattern).Match(c.text), "%s %q in %q", c.typ, c.pattern, c.text)
	}
}

func TestCompileRefuses(t *testing.T) {
	cases := []struct {
		pattern Pattern
		reason  string
	}{
		{Pattern{Text: ""}, "empty pattern would match everything"},
		{Pattern{Text: "", Type: Regex}, "empty pattern would match everything"},
		{Pattern{Text: strings.Repeat("a", MaxText+1)}, "513 bytes long, 512 are allowed"},
		{Pattern{Text: "a\xff", Type: Regex}, "not valid UTF-8"},
		{Pattern{Text: "a", Type: "fuzzy"}, "Unknown pattern type: 'fuzzy'"},
		{Pattern{Text: "a", Type: Glob, Backtracking: true}, "engine: backtracking is for patterns of type regex"},
		{Pattern{Text: "a(b", Type: Regex}, "unterminated group"},
		{Pattern{Text: "a)b", Type: Regex}, "unbalanced parenthesis"},
		{Pattern{Text: "[a", Type: Regex}, "unterminated character set"},
		{Pattern{Text: `a\`, Type: Regex}, "bad escape (end of pattern)"},
		{Pattern{Text: `\q`, Type: Regex}, `bad escape \q`},
		{Pattern{Text: `\Qa$\E`, Type: Regex}, `bad escape \Q`},
		{Pattern{Text: `\N{BULLET}`, Type: Regex}, `bad escape \N`},
		{Pattern{Text: `\x1`, Type: Regex}, `incomplete escape \x1`},
		{Pattern{Text: `\u12G4`, Type: Regex}, `incomplete escape \u12G4`},
		{Pattern{Text: `\ud800`, Type: Regex}, "half of a surrogate pair"},
		{Pattern{Text: `\U00110000`, Type: Regex}, "no Unicode character"},
		{Pattern{Text: `[\400]`, Type: Regex}, "octal escape"},
		{Pattern{Text: `[z-a]`, Type: Regex}, "bad character range"},
		{Pattern{Text: `[a-\d]`, Type: Regex}, "bad character range"},
		{Pattern{Text: `[\w-a]`, Type: Regex}, "bad character range"},
		{Pattern{Text: `*a`, Type: Regex}, "missing argument to repetition operator"},
		{Pattern{Text: `a**`, Type: Regex}, "invalid nested repetition operator"},
		{Pattern{Text: `a++`, Type: Regex}, "possessive quantifiers are not supported"},
		{Pattern{Text: `a{2,1}`, Type: Regex}, "min repeat greater than max repeat in {2,1}"},
		{Pattern{Text: `a{99999999999999999999}`, Type: Regex}, "is too large"},
		{Pattern{Text: `a{2}+`, Type: Regex}, "possessive quantifiers are not supported"},
		{Pattern{Text: `(?P<1>a)`, Type: Regex}, "bad character in group name"},
		{Pattern{Text: `(?P<a>a)(?P<a>b)`, Type: Regex}, "redefinition of group name"},
		{Pattern{Text: `(?L)a`, Type: Regex}, "unknown inline flag 'L'"},
		{Pattern{Text: `(?~a)`, Type: Regex}, "unknown inline flag"},
		{Pattern{Text: `(?`, Type: Regex}, "unknown extension"},
		{Pattern{Text: `(?-i)a`, Type: Regex}, "off for a group only"},
		{Pattern{Text: `(?#a`, Type: Regex}, "unterminated comment"},
		{Pattern{Text: `evil(?i)`, Type: Regex}, "global flags not at the start of the expression; write (?i) before everything else, or (?i:...)"},
		{Pattern{Text: `((?i)a)`, Type: Regex}, "global flags not at the start of the expression"},
		{Pattern{Text: ` (?m)a`, Type: Regex, Backtracking: true}, "global flags not at the start of the expression"},
		{Pattern{Text: `|(?s)a`, Type: Regex}, "global flags not at the start of the expression"},
		{Pattern{Text: `(?=a)`, Type: Regex}, "lookahead (?=...) needs a backtracking engine"},
		{Pattern{Text: `(?<!a)b`, Type: Regex}, "lookbehind (?<!...) needs a backtracking engine"},
		{Pattern{Text: `(a)\1`, Type: Regex}, `backreference \1 needs a backtracking engine`},
		{Pattern{Text: `(?P<q>')a(?P=q)`, Type: Regex}, "backreference (?P=q) needs a backtracking engine"},
		{Pattern{Text: `(a)?(?(1)b|c)`, Type: Regex}, "conditional (?(1)...) needs a backtracking engine"},
		{Pattern{Text: `(?>a)`, Type: Regex}, "atomic group (?>...) needs a backtracking engine"},
		{Pattern{Text: `a{20,2000}`, Type: Regex}, "at most 1000) needs a backtracking engine"},
		{Pattern{Text: `((a{1,100}){1,10})b{1,999}`, Type: Regex}, "2000 are allowed"},
		{Pattern{Text: `(a)\2`, Type: Regex, Backtracking: true}, "invalid group reference 2"},
		{Pattern{Text: `(?P=q)`, Type: Regex, Backtracking: true}, "unknown group name"},
		{Pattern{Text: `(?(2)a|b)`, Type: Regex, Backtracking: true}, "unknown group"},
		{Pattern{Text: `a(`, Type: Regex, Backtracking: true}, "unterminated group"},
		{Pattern{Text: `a**`, Type: Regex, Backtracking: true}, "invalid nested repetition operator"},
	}
	for _, c := range cases {
		_, err := Compile(c.pattern)
		require.ErrorContains(t, err, c.reason, "%+v", c.pattern)
		require.NotContains(t, err.Error(), "error parsing regexp")
		require.NotContains(t, err.Error(), "(?-i:", "the rewritten expression is nobody's business")
	}
	_, err := Compile(Pattern{Text: strings.Repeat("a", MaxText)})
	require.NoError(t, err, "the cap itself is allowed")
}

func TestBacktracking(t *testing.T) {
	cases := []struct {
		pattern, text string
		want          bool
	}{
		{`https?://(?!github\.com)`, "HTTP://evil.example", true},
		{`https?://(?!github\.com)`, "https://GitHub.com/x", false},
		{`(?<![a-z])\.env`, "cat .ENV", true},
		{`(?P<q>['"])x(?P=q)`, `"X"`, true},
		{`(?P<q>['"])x(?P=q)`, `"x'`, false},
		{`(a)(?P<n>b)\2\1`, "abba", true},
		{`(<)?a(?(1)>|b)`, "<a>", true},
		{`(?>a+)b`, "aaab", true},
		{`x(?=\d)`, "x٣", true},
		{`(?=\w)ü`, "Ü", true},
		{`a{1500}`, strings.Repeat("A", 1500), true},
		{`(?=.)end$`, "end\n", true},
	}
	for _, c := range cases {
		p, err := Compile(Pattern{Text: c.pattern, Type: Regex, Backtracking: true})
		require.NoError(t, err, c.pattern)
		require.Equal(t, c.want, p.Match(c.text), "%q in %q", c.pattern, c.text)
	}
}

// A search that runs into a limit denies, says so, and does not hang.
func TestBacktrackingLimits(t *testing.T) {
	redos := Pattern{Text: `^(?=a)(a+)+$`, Type: Regex, Backtracking: true}
	harmless := Pattern{Text: `(?<!b)never`, Type: Regex, Backtracking: true}
	set, err := NewSet([]Pattern{harmless, redos, redos, redos, harmless})
	require.NoError(t, err)
	start := time.Now()
	hits, err := set.Hits(context.Background(), FormsOfText(strings.Repeat("a", 40)+"!"))
	require.NoError(t, err)
	require.Less(t, time.Since(start), 5*time.Second)
	require.Len(t, hits, 5, "when the time is used up every other backtracking pattern counts as found too")
	for i, hit := range hits {
		require.Equal(t, Hit{Index: i, Limited: true}, hit)
	}

	hits, err = set.Hits(context.Background(), FormsOfText(strings.Repeat("b", maxBacktrackingText+1)+" not (never) here"))
	require.NoError(t, err)
	require.Contains(t, hits, Hit{Index: 0, Limited: true}, "a text beyond the cap is not searched")

	hits, err = set.Hits(context.Background(), FormsOfText("never"))
	require.NoError(t, err)
	require.Equal(t, []Hit{{Index: 0}, {Index: 4}}, hits)

	// RE2 has no such limits because it has no such problem.
	require.False(t, compile(t, Regex, `^(a+)+$`).Match(strings.Repeat("a", 40)+"!"))
}

func TestDescribe(t *testing.T) {
	cases := []struct {
		pattern                  Pattern
		backtracking, unanchored bool
	}{
		{Pattern{Text: "a"}, false, false},
		{Pattern{Text: `a+`, Type: Regex}, false, false},
		{Pattern{Text: `(?=a)b`, Type: Regex}, true, false},
		{Pattern{Text: `(?=a)b`, Type: Regex, Backtracking: true}, true, false},
		{Pattern{Text: `a+`, Type: Regex, Backtracking: true}, false, false},
		{Pattern{Text: `a{1001}`, Type: Regex}, true, false},
		{Pattern{Text: `a(`, Type: Regex}, false, false},
		{Pattern{Text: "*.exe", Type: Glob}, false, false},
		{Pattern{Text: "foo*", Type: Glob}, false, true},
	}
	for _, c := range cases {
		backtracking, unanchored := Describe(c.pattern)
		require.Equal(t, c.backtracking, backtracking, "%+v", c.pattern)
		require.Equal(t, c.unanchored, unanchored, "%+v", c.pattern)
	}
}

func TestSearch(t *testing.T) {
	cases := []struct {
		expr, text string
		want       bool
	}{
		{`^exec_.*`, "exec_code", true},
		{`^exec_.*`, "EXEC_code", false},
		{`(?i)^exec_`, "EXEC_code", true},
		{`code`, "exec_code", true},
		{``, "anything", true},
		{`i`, "ı", false},
		{`(?i)i`, "ı", true},
		{`\.py$`, "a.py\n", true},
		{`^\['a'\]$`, "['a']", true},
		{`[^\s]\d`, "x٣", true},
	}
	for _, c := range cases {
		s, err := Search(c.expr)
		require.NoError(t, err, c.expr)
		require.Equal(t, c.want, s.Match(c.text), "re.search(%q, %q)", c.expr, c.text)
	}
	for expr, reason := range map[string]string{
		`(?=a)`:                        "lookahead (?=...) cannot be evaluated in bounded time; rewrite the expression without it",
		`(`:                            "missing ), unterminated group",
		`a{1,1000}b{1,1000}c{1,1000}`:  "2000 are allowed",
		strings.Repeat("a", MaxText+1): "513 bytes long",
		"\xff":                         "not valid UTF-8",
	} {
		_, err := Search(expr)
		require.ErrorContains(t, err, reason)
	}
}

func TestFnMatch(t *testing.T) {
	cases := []struct {
		name, glob string
		want       bool
	}{
		{"src/a.py", "src/*", true},
		{"src/a/b.py", "src/*", true},
		{"src/a.py", "src/**/*.py", false},
		{"src/x/a.py", "src/**/*.py", true},
		{"src", "src/**", false},
		{"SRC/a", "src/*", false},
		{".", "*", true},
		{"", "", true},
		{"", "*", true},
		{"", "?", false},
		{"a\nb", "a?b", true},
		{"a]", "a[]]", true},
		{"^", "[^a]", true},
		{"b", "[!a]", true},
		{"[", "[", true},
		{"x", "[z-a]", false},
		{"x", "[!z-a]", true},
		{"é", "[à-ü]", true},
		{"-", "[z-a!-c]", false},
		{"b", "[z-a!-c]", true},
		{"x", "[z-a!]", true},
		{"-", "[a-]", true},
		{"d", "[a-c-e]", false},
		{"-", "[a-c-e]", true},
		{strings.Repeat("a", 5000), strings.Repeat("*a", 500) + "*b", false},
	}
	for _, c := range cases {
		require.Equal(t, c.want, FnMatch(c.name, c.glob), "fnmatch(%.20q, %.20q)", c.name, c.glob)
	}
}

// Folding is sound for every character there is: what counts as the same
// letter has the same folded form, and the loose form merges at least as much.
func TestFoldingOfAllCharacters(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		s := string(r)
		lower := strings.ToLower(s)
		if r == 'İ' {
			lower = "i\u0307"
		}
		if string(appendFolded(nil, s)) != string(appendFolded(nil, lower)) {
			t.Errorf("%U and its lower case are folded apart", r)
		}
		if loose(s) != loose(string(appendFolded(nil, s))) {
			t.Errorf("%U and its folded form have different loose forms", r)
		}
		for _, same := range orbitOf(r) {
			if loose(s) != loose(string(same)) {
				t.Errorf("%U and %U are one letter with two loose forms", r, same)
			}
		}
	}
}

// The loose form makes one of what \s and \d match, and of nothing else.
func TestLooseFormOfSpacesAndDigits(t *testing.T) {
	space, err := Search(`^\s\Z`)
	require.NoError(t, err)
	digit, err := Search(`^\d\Z`)
	require.NoError(t, err)
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		s := string(r)
		if space.Match(s) != (loose(s) == " ") || digit.Match(s) != (loose(s) == "0") {
			t.Errorf("%U has the loose form %q", r, loose(s))
		}
	}
	set, err := NewSet([]Pattern{{Text: `^\d{3}-\d{2}$`, Type: Regex}, {Text: `from\s+now\s*on`, Type: Regex}, {Text: `0x7\d`, Type: Regex}})
	require.NoError(t, err)
	require.Equal(t, []int{0}, set.Match(FormsOfText("٣٤٥-१२")))
	require.Equal(t, []int{1}, set.Match(FormsOfText("From\u2003\n\u00a0nowon")))
	require.Equal(t, []int{2}, set.Match(FormsOfText("0X7٣")))
	require.Empty(t, set.Match(FormsOfText("0x63")), "other digits than those of the literal")
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{`rm\s+-rf`, `(?i)[a-z]{2,}\d$`, `(?x) a # b`, `[^\W_]|(?P<n>a)*?`, `\uDB40[\uDC00-\uDC7F]`, `*.[!e]xe`, `(?=a)\1`, `((a{1,100}){1,10})b`, `[[:alpha:]-]`, `a{,3}`} {
		f.Add(seed, "rm  -RF / a٣İ")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(text) > 1000 {
			text = text[:1000]
		}
		text = strings.ToValidUTF8(text, "")
		for _, typ := range []Type{Substring, Regex, Glob} {
			set, err := NewSet([]Pattern{{Text: pattern, Type: typ}})
			if err != nil {
				if len(err.Error()) > 4*MaxText+256 { // quoting makes four bytes of one at most
					t.Fatalf("an error of %d bytes", len(err.Error()))
				}
				continue
			}
			forms := FormsOf(value.OfMap(value.Pair{Key: "k", Value: value.OfString(text)}))
			if got, want := set.First(forms) == 0, len(everyPattern(set, forms)) > 0; got != want {
				t.Fatalf("%s %q in %q: %v with the filter, %v without", typ, pattern, text, got, want)
			}
		}
		if _, err := Search(pattern); err == nil {
			if _, err := Compile(Pattern{Text: pattern, Type: Regex}); pattern != "" && err != nil && !strings.Contains(err.Error(), "instructions") {
				t.Fatalf("%q is good for matches and bad for a regex: %v", pattern, err)
			}
		}
		Describe(Pattern{Text: pattern, Type: Regex})
		FnMatch(text, pattern)
	})
}
