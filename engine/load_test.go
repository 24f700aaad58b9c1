package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/source"
)

// Documents made to cost more than they weigh are refused, without growing the
// heap by 64 MiB and without taking seconds. Each is run with the garbage
// collector told to report what was allocated in all, which bounds what could
// be live.
func TestHostileDocuments(t *testing.T) {
	const mib = 1 << 20
	full := func(s string) string { return strings.Repeat(s, (mib-64)/len(s)) }
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	steps := ""
	for i := range 100 {
		steps += strings.Repeat(" ", i) + "a:\n"
	}
	for name, doc := range map[string]string{
		"billion laughs":        laughs,
		"alias loop":            "rules: &a [*a]\n",
		"anchor loop in key":    "&a {*a : 1}: 2\n",
		"merge key":             "a: &a {x: 1}\nrules: [{<<: *a}]\n",
		"flow depth":            strings.Repeat("[", 100_000),
		"flow depth in maps":    strings.Repeat("{a: ", 100_000),
		"block depth":           strings.Repeat("- ", 100_000) + "x",
		"question marks":        strings.Repeat("? ", 100_000) + "x",
		"indented depth":        steps + strings.Repeat(" ", 100) + "x",
		"just too deep":         "rules: " + strings.Repeat("[", 33) + strings.Repeat("]", 33),
		"a mebibyte of commas":  "[" + full(",") + "]",
		"a mebibyte of items":   "rules: [" + full("a,") + "]",
		"a mebibyte of entries": full("- a\n"),
		"a mebibyte of keys":    full("a: b\n"),
		"a mebibyte of braces":  full("{"),
		"a mebibyte of quotes":  full("'"),
		"a mebibyte of tags":    full("!a "),
		"a mebibyte of anchors": full("&a "),
		"a mebibyte of notes":   "rules: []\n" + full("# x\n") + "{",
		"one byte too many":     strings.Repeat("#", mib+1),
		"NUL":                   "rules: []\x00",
		"invalid UTF-8":         "rules: [\xff]",
		"byte order mark":       "\ufeffrules: []",
		"UTF-16":                "\xff\xfer\x00",
		"binary tag":            "rules: !!binary aGVsbG8=",
		"python tag":            "rules: !!python/object/apply:os.system [ls]",
		"timestamp tag":         "name: !!timestamp 2026-01-01\nrules: []",
		"unclosed":              "rules: [",
		"tab indentation":       "rules:\n\t- x",
	} {
		t.Run(name, func(t *testing.T) { refuseCheaply(t, "policy.yaml", doc) })
	}
	for name, doc := range map[string]string{
		"depth":            strings.Repeat("[", 100_000),
		"depth in objects": strings.Repeat(`{"a":`, 100_000),
		"items":            "[" + full("1,") + "1]",
		"infinite number":  `{"rules": [], "x": 1e400}`,
		"duplicate key":    `{"rules": [], "rules": []}`,
		"trailing value":   `{"rules": []} {}`,
		"comment":          `{"rules": []} // x`,
		"cut short":        `{"rules": [`,
		"bare word":        `{"rules": nope}`,
	} {
		t.Run("json/"+name, func(t *testing.T) { refuseCheaply(t, "policy.json", doc) })
	}
}

func refuseCheaply(t *testing.T, path, doc string) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	n, probs := source.Parse(path, []byte(doc))
	if probs == nil {
		// What parses must still be no policy.
		c := &compiler{policy: &Policy{governance: governance.Default()}}
		c.load(source.File{Path: path, Content: []byte(doc)})
		probs = c.problems
		require.NotNil(t, n)
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	require.NotEmpty(t, probs)
	require.Equal(t, path, probs[0].Path)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "bytes allocated in all")
	require.Less(t, took, 5*time.Second)
}

// The largest honest documents still load.
func TestLargeDocuments(t *testing.T) {
	var b strings.Builder
	b.WriteString("rules:\n")
	for i := range document.MaxRules {
		fmt.Fprintf(&b, "  - name: rule-%d\n    condition:\n      field: tool_name\n      operator: in\n      value: [%s]\n    action: deny\n    message: %q\n",
			i, strings.Repeat(fmt.Sprintf("tool_%d, ", i), 20), strings.Repeat("why ", 50))
	}
	p := mustCompile(t, b.String())
	require.Len(t, p.docs.Rules, document.MaxRules)

	b.WriteString("  - {name: one-more, condition: {field: a, operator: eq, value: 1}, action: deny}\n")
	tree, err := source.SingleFile(b.String())
	require.NoError(t, err)
	_, err = Compile(tree)
	require.ErrorContains(t, err, "1001 rules; the most is 1000")
}

// A document may use CRLF and explicit core tags, and be nested to the cap.
func TestAcceptedDocuments(t *testing.T) {
	for name, doc := range map[string]string{
		"CRLF":       "name: x\r\nrules:\r\n  - {name: r, condition: {field: a, operator: eq, value: b}, action: deny}\r\n",
		"core tags":  "name: !!str 12\nrules: !!seq []\ndefaults: !!map {action: deny}\ninherit: !!bool true\n",
		"depth":      "rules:\n  - {name: r, action: deny, condition: {field: a, operator: eq, value: " + strings.Repeat("[", 27) + strings.Repeat("]", 27) + "}}\n",
		"hex number": "rules: [{name: r, condition: {field: a, operator: eq, value: 0x1F}, action: deny, priority: +3}]\n",
		"quoted key": "\"rules\": []\n",
		"directive":  "%YAML 1.2\n---\nrules: []\n...\n",
	} {
		tree, err := source.SingleFile(doc)
		require.NoError(t, err)
		_, err = Compile(tree)
		require.NoError(t, err, name)
	}
}

// Problems name the file, the line and the field, and all of them are listed.
func TestLoadErrorNamesThePlace(t *testing.T) {
	tree, err := source.NewTree([]source.File{
		file("a.yaml", "rules:\n  - name: r\n    condition: {field: x, operator: is, value: 1}\n    action: deny\n"),
		file("b/governance.yaml", "rules: []\ndefaults:\n  action: maybe\n"),
	})
	require.NoError(t, err)
	_, err = Compile(tree)
	var load *source.LoadError
	require.ErrorAs(t, err, &load)
	require.Equal(t, []source.Problem{
		{Path: "a.yaml", Line: 3, Field: "rules[0].condition.operator", Message: "operator must be one of eq, ne, gt, lt, gte, lte, in, not_in, contains, matches, got 'is'"},
		{Path: "b/governance.yaml", Line: 3, Field: "defaults.action", Message: "action must be allow, deny, audit or block, got 'maybe'"},
	}, load.Problems)
}

func TestLoadErrorIsShort(t *testing.T) {
	var b strings.Builder
	b.WriteString("rules:\n")
	for range 50 {
		b.WriteString("  - {}\n")
	}
	tree, err := source.SingleFile(b.String())
	require.NoError(t, err)
	_, err = Compile(tree)
	require.ErrorContains(t, err, "and 140 more")
}

// What the expressions of all conditions take together is bounded, and equal
// ones are compiled once.
func TestSearchesAreBounded(t *testing.T) {
	rules := func(n int, expression func(int) string) string {
		var b strings.Builder
		b.WriteString("rules:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {name: r%d, condition: {field: x, operator: matches, value: '%s'}, action: deny}\n", i, expression(i))
		}
		return b.String()
	}
	wide := strings.Repeat(`\w`, 200)
	mustCompile(t, rules(document.MaxRules, func(int) string { return wide }))
	tree, err := source.SingleFile(rules(document.MaxRules, func(i int) string { return fmt.Sprint(wide, i) }))
	require.NoError(t, err)
	_, err = Compile(tree)
	require.ErrorContains(t, err, "policy.yaml:15: rules[13].condition.value: invalid regex")
	require.ErrorContains(t, err, "2000000 ranges")

	// Programs are small by themselves, and large together: of conditions, of blocked
	// patterns, and of rulesets in one file or in many.
	dear := func(i int) string { return fmt.Sprintf("((a{1,90}){1,10})b%d", i) }
	const ruleset = "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: r}\ndefaults: {mode: enforce}\nrules:\n" +
		"- {id: %s, type: pre, tool: t, when: {args.x: {matches_any: [%s]}}, then: {action: block, message: stop}}\n"
	list := func(from, to int) string {
		var all []string
		for i := from; i < to; i++ {
			all = append(all, "'"+dear(i)+"'")
		}
		return strings.Join(all, ", ")
	}
	var blocked, many []source.File
	blocked = append(blocked, file("policy.yaml", "blocked_patterns:\n- {type: regex, pattern: "+strings.ReplaceAll(strings.ReplaceAll(list(0, 300), "((a{1,90}){1,10})", "[0-9]{999}[0-9]{900}"), ", ", "}\n- {type: regex, pattern: ")+"}\n"))
	for i := range 10 {
		many = append(many, file(fmt.Sprintf("r%d.yaml", i), fmt.Sprintf(ruleset, fmt.Sprint("r", i), list(30*i, 30*i+30))))
	}
	for name, files := range map[string][]source.File{
		"conditions":    {file("policy.yaml", rules(300, dear))},
		"patterns":      blocked,
		"one ruleset":   {file("r.yaml", fmt.Sprintf(ruleset, "r", list(0, 300)))},
		"many rulesets": many,
	} {
		tree, err := source.NewTree(files)
		require.NoError(t, err, name)
		_, err = Compile(tree)
		require.ErrorContains(t, err, "00 instructions together", name)
	}
	mustCompile(t, rules(document.MaxRules, func(i int) string {
		return fmt.Sprintf(`(?i)\b(drop|delete|truncate)\s+(table|database|schema)\s+t%d\b`, i)
	}))
}
