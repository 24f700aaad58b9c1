package pattern

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/internal/oracle"
)

func TestOracleFnmatch(t *testing.T) {
	type vector struct {
		Glob, Name    string
		Match, Search bool
	}
	for _, c := range oracle.Cases(t, "fnmatch", func(c vector) string { return c.Glob + c.Name }) {
		require.Equal(t, c.Match, FnMatch(c.Name, c.Glob), "fnmatchcase(%q, %q)", c.Name, c.Glob)
		whole, err := regexp.Compile(`\A(?s:` + parseGlob(c.Glob).expression() + `)\z`)
		require.NoError(t, err, "translate(%q)", c.Glob)
		require.Equal(t, c.Match, whole.MatchString(c.Name), "translate(%q) on %q", c.Glob, c.Name)
		if c.Glob == "" {
			continue
		}
		found, err := Compile(Pattern{Text: c.Glob, Type: Glob})
		require.NoError(t, err, "%q", c.Glob)
		require.Equal(t, c.Search, found.Match(c.Name), "glob %q in %q", c.Glob, c.Name)
	}
}

func TestOracleSearch(t *testing.T) {
	type vector struct {
		Expr, Text   string
		Exact, Loose bool
		Sub          string
		Contains     bool
	}
	for _, c := range oracle.Cases(t, "search", func(c vector) string { return c.Expr + c.Text + c.Sub }) {
		exact, err := Search(c.Expr)
		require.NoError(t, err, "%q", c.Expr)
		require.Equal(t, c.Exact, exact.Match(c.Text), "re.search(%q, %q)", c.Expr, c.Text)

		loose, err := Compile(Pattern{Text: c.Expr, Type: Regex})
		require.NoError(t, err, "%q", c.Expr)
		require.Equal(t, c.Loose, loose.Match(c.Text), "re.search(%q, %q, re.IGNORECASE)", c.Expr, c.Text)

		slow, err := Compile(Pattern{Text: c.Expr, Type: Regex, Backtracking: true})
		require.NoError(t, err, "%q", c.Expr)
		require.Equal(t, c.Loose, slow.Match(c.Text), "backtracking %q in %q", c.Expr, c.Text)

		sub, err := Compile(Pattern{Text: c.Sub})
		require.NoError(t, err)
		if c.Contains {
			require.True(t, sub.Match(c.Text), "%q in %q", c.Sub, c.Text)
		} else if isASCII(c.Sub) && isASCII(c.Text) {
			require.False(t, sub.Match(c.Text), "%q in %q", c.Sub, c.Text)
		}
	}
}
