package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/authoring"
	"example.com/govnode/engine/call"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Two policies that decide one call differently differ in something that is
// said. Each pair here is a random tree and the same with one file swapped,
// left out, or taken from elsewhere, or strict.
func TestDiffSaysWhatDecides(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 17))
	differing, equal := 0, 0
	for range 400 {
		a, b := randomTree(rng), randomTree(rng)
		if len(a.files) < 2 || len(b.files) == 0 {
			continue
		}
		files := slices.Clone(a.files)
		at := rng.IntN(len(files))
		var opts []Option
		switch rng.IntN(5) {
		case 0:
			files = slices.Delete(files, at, at+1)
		case 1:
			files[at].Content = b.files[rng.IntN(len(b.files))].Content
		case 2:
			other := (at + 1) % len(files)
			files[at].Content, files[other].Content = files[other].Content, files[at].Content
		case 3:
			opts = append(opts, WithStrict())
		}
		tree, err := source.NewTree(files)
		require.NoError(t, err)
		before := mustCompileFilesWith(t, []Option{WithLogger(discard)}, a.files...)
		after, err := Compile(tree, append(opts, WithLogger(discard))...)
		if err != nil {
			continue // two files ask for different strategies
		}
		if len(DiffPolicies(before, after)) > 0 {
			differing++
			continue
		}
		equal++
		for range 40 {
			ctx := value.OfMap(value.Pair{Key: "role", Value: value.OfString([]string{"admin", "guest"}[rng.IntN(2)])})
			if p := []string{"", "x", "x/y/z/f.go", "w/f.go"}[rng.IntN(4)]; p != "" {
				ctx = ctx.With("path", value.OfString(p))
			}
			in := call.Input{Tool: []string{"a", "b", "c", "d"}[rng.IntN(4)], Context: ctx}
			d, e := before.Evaluate(context.Background(), in), after.Evaluate(context.Background(), in)
			require.Equal(t, d.Action+d.Reason+d.Policy, e.Action+e.Reason+e.Policy, "%s\n=====\n%s", printTree(a.files), printTree(files))
		}
	}
	require.Greater(t, differing, 50)
	require.Greater(t, equal, 25)
}

// Every setting that a tree may have is spoken of.
func TestDiffOfEverySetting(t *testing.T) {
	doc := func(extra string) []source.File {
		return []source.File{file("a.yaml", "name: a\nrules: []\n"+extra), file("limits.yaml", "version: '1'\nmax_tokens: 1\n"), file("x/governance.yaml", "name: x\nrules: []\n")}
	}
	gov := func(extra string) []source.File {
		files := doc("")
		files[1].Content = append(files[1].Content, extra...)
		return files
	}
	for what, files := range map[string][]source.File{
		"mode":                          doc("mode: strict\n"),
		"combining":                     doc("combining: allow_overrides\n"),
		"tie_break":                     doc("combining: allow_overrides\ntie_break: deny\n"),
		"on_backend_error":              doc("on_backend_error: default\n"),
		"inherit":                       doc("inherit: false\n"),
		"scope":                         doc("scope: '*'\n"),
		"level":                         doc("level: agent\n"),
		"allow_cutoff":                  doc("allow_cutoff: true\n"),
		"defaults.action":               doc("defaults: {action: audit}\n"),
		"defaults.max_tokens":           doc("defaults: {max_tokens: 4096}\n"),
		"defaults.max_tool_calls":       doc("defaults: {max_tool_calls: 10}\n"),
		"defaults.confidence_threshold": doc("defaults: {confidence_threshold: 0.8}\n"),
		"deny_all_tools":                gov("deny_all_tools: true\n"),
		"max_attempts":                  gov("max_attempts: 5\n"),
		"max_calls_per_tool":            gov("max_calls_per_tool: {t: 1}\n"),
		"content_hashes":                gov("content_hashes: {}\n"),
		"content_hash_mode":             gov("content_hash_mode: warn\n"),
		"guardrails":                    gov("guardrails: [{name: g, url: 'https://g.example/'}]\n"),
		"approval":                      gov("approval: {}\n"),
		"blocked_patterns":              gov("blocked_patterns: [{pattern: a, type: regex}]\n"),
		"the GovernancePolicy":          {doc("")[0], doc("")[2]},
		"the document":                  doc("")[:2],
	} {
		diff := DiffPolicies(mustCompileFiles(t, doc("")...), mustCompileFiles(t, files...))
		require.True(t, slices.ContainsFunc(diff, func(d authoring.Difference) bool { return d.What == what }), "%s: %v", what, diff)
		require.Empty(t, DiffPolicies(mustCompileFiles(t, files...), mustCompileFiles(t, files...)))
	}
}
