package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// A strictTree is a random tree of folders and flat documents, and the
// documents of it by the folder they lie in; "" holds the flat ones.
type strictTree struct {
	files []source.File
	texts map[string][]string
	scope map[string]string // of the document of a folder; empty for none
}

func randomTree(rng *rand.Rand) strictTree {
	t := strictTree{texts: map[string][]string{}, scope: map[string]string{}}
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	rules := func() string {
		var b strings.Builder
		for i := range rng.IntN(4) {
			condition := "field: tool_name, operator: eq, value: " + pick("a", "b", "c")
			switch rng.IntN(4) {
			case 0:
				condition = "field: tool_name, operator: matches, value: '.'"
			case 1:
				condition = "field: role, operator: eq, value: " + pick("admin", "guest")
			}
			// Names clash across documents, so that they override and drop each other.
			fmt.Fprintf(&b, "  - {name: r%d, condition: {%s}, action: %s, priority: %d, override: %t}\n",
				i+rng.IntN(2)*10, condition, pick("allow", "audit", "deny", "block", "ask"), rng.IntN(4)*100, rng.IntN(2) == 0)
		}
		if b.Len() == 0 {
			return "rules: []\n"
		}
		return "rules:\n" + b.String()
	}
	add := func(dir, name, extra string) {
		text := rules() + fmt.Sprintf("name: %s\n", strings.ReplaceAll(name, "/", "-")) + extra
		if rng.IntN(3) == 0 {
			text += "defaults: {action: " + pick("allow", "deny", "audit") + "}\n"
		}
		t.files = append(t.files, file(name, text))
		t.texts[dir] = append(t.texts[dir], text)
	}
	for _, dir := range []string{".", "x", "x/y", "x/y/z", "w"} {
		if rng.IntN(3) == 0 {
			continue
		}
		extra := fmt.Sprintf("inherit: %t\nallow_cutoff: %t\n", rng.IntN(3) > 0, rng.IntN(2) == 0)
		if rng.IntN(4) == 0 {
			t.scope[dir] = pick("*.go", "x/*", "*")
			extra += "scope: '" + t.scope[dir] + "'\n"
		}
		add(dir, path.Join(dir, "governance.yaml"), extra)
	}
	for i := range rng.IntN(3) {
		add("", fmt.Sprintf("flat%d.yaml", i), "")
	}
	if combining := pick("", "", "allow_overrides", "deny_overrides", "priority_first_match", "most_specific_wins"); combining != "" && len(t.files) > 0 {
		t.files[0].Content = append(t.files[0].Content, "combining: "+combining+"\n"...)
	}
	return t
}

// In strict mode nothing is allowed that one document, judged alone, denies: not
// one on the way to the path, not one of the flat list, and not any of the tree
// where no path is given. Nor is anything that would be denied without strict
// mode. Neither priorities nor overrides, inherit: false, dropped rules or a
// conflict strategy change that, whoever asks for strict mode. And nothing is
// allowed that one of them asks about, and nobody is asked about what is denied.
func TestStrictDeniesWhatAnyDocumentDenies(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	alone := func(text string, in call.Input) Decision {
		text = strings.NewReplacer("inherit: false\n", "", "inherit: true\n", "").Replace(text)
		return mustCompile(t, text, WithStrict(), WithLogger(discard)).Evaluate(context.Background(), in)
	}
	denied, asked, allowed := 0, 0, 0
	for range 700 {
		tree := randomTree(rng)
		if len(tree.files) == 0 {
			continue
		}
		standard := mustCompileFilesWith(t, []Option{WithLogger(discard)}, tree.files...)
		strict := mustCompileFilesWith(t, []Option{WithStrict(), WithLogger(discard)}, tree.files...)
		for range 12 {
			at := []string{"", ".", "x", "x/y", "x/y/z", "x/y/z/f.go", "x/f.md", "w/f.go", "v"}[rng.IntN(9)]
			ctx := value.OfMap(value.Pair{Key: "role", Value: value.OfString([]string{"admin", "guest", "other"}[rng.IntN(3)])})
			if at != "" {
				ctx = ctx.With("path", value.OfString(at))
			}
			in := call.Input{Tool: []string{"a", "b", "c", "d"}[rng.IntN(4)], Context: ctx, Explain: rng.IntN(2) == 0}
			d := strict.Evaluate(context.Background(), in)
			about := fmt.Sprintf("%s at %q, %s by %q of %q\n%s", in.Tool, at, d.Action, d.MatchedRule, d.Policy, ctx.JSON())
			usual := standard.Evaluate(context.Background(), in)
			switch {
			case d.Ask != nil:
				asked++
				require.True(t, usual.Allowed || usual.Ask != nil, "strict mode asks about what standard mode denies: %s\n%s", about, printTree(tree.files))
			case !d.Allowed:
				denied++
				continue
			default:
				allowed++
				require.True(t, usual.Allowed, "strict mode allows what standard mode does not: %s\n%s", about, printTree(tree.files))
			}
			for dir, texts := range tree.texts {
				switch {
				case at == "" || dir == "":
				case dir != "." && at != dir && !strings.HasPrefix(at, dir+"/"):
					continue
				case tree.scope[dir] == "*.go" && !strings.HasSuffix(at, ".go"), tree.scope[dir] == "x/*" && !strings.HasPrefix(at, "x/"):
					continue
				}
				for _, text := range texts {
					said := alone(text, in)
					require.True(t, said.Allowed || said.Rule == ruleDefault || said.Ask != nil && d.Ask != nil, "%s\n%s\n---\n%s", about, text, printTree(tree.files))
				}
			}
		}
	}
	require.Greater(t, denied, 1500)
	require.Greater(t, asked, 500)
	require.Greater(t, allowed, 500)
}

func printTree(files []source.File) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "-- %s --\n%s", f.Path, f.Content)
	}
	return b.String()
}

// A call without a path may concern any folder, and so the folder of a document at the
// root that is for some paths alone.
func TestWithoutAPathTheDefaultOfAScopeHolds(t *testing.T) {
	p := mustCompileFiles(t, file("g.yaml", "name: g\nmax_tool_calls: 5\n"),
		file("governance.yaml", "name: root\nmode: strict\nscope: 'src/*'\ndefaults: {action: deny, confidence_threshold: 0.9}\n"))
	d := p.Evaluate(context.Background(), call.Input{Tool: "x"})
	require.Equal(t, CategoryDefault, d.Category)
	d = p.Evaluate(context.Background(), call.Input{Tool: "x", Context: value.OfMap(value.Pair{Key: "path", Value: value.OfString("docs/a")})})
	require.True(t, d.Allowed, "with a path it is known not to be one of them")
}
