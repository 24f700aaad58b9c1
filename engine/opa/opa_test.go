//go:build !noopa

package opa

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/value"
)

func file(path, content string) engine.File {
	return engine.File{Path: path, Content: []byte(content)}
}

func load(t testing.TB, files ...engine.File) engine.Backend {
	t.Helper()
	b, problems := Load(files)
	require.Empty(t, problems)
	require.Equal(t, "opa", b.Name())
	return b
}

func call(t testing.TB, context string) engine.BackendInput {
	return engine.BackendInput{Context: enginetest.Value(t, context)}
}

func TestDecisions(t *testing.T) {
	v1 := file("a.rego", `package agentos
		import data.lists
		default allow := false
		allow if input.tool_name in lists.safe
		allow if input.n == 12345678901234567890
		allow if { input.nested.list[_] == "x"; not input.flag }
		allow if data.sub.limits.max > input.amount`)
	b := load(t, v1,
		file("data.json", `{"lists": {"safe": ["read_file"]}}`),
		file("sub/limits/data.json", `{"max": 10.5}`))
	undefined := load(t, file("u.rego", "package agentos\nallow if input.ok\n"))
	v0 := load(t, file("old.rego", "package agentos\ndefault allow = false\nallow { input.tool_name == \"x\" }\n"), file("new.rego", "package helper\nok if true\n"))
	cases := []struct {
		name    string
		backend engine.Backend
		context string
		allowed bool
		reason  string
	}{
		{"a list of data.json", b, `{"tool_name": "read_file"}`, true, "data.agentos.allow is true"},
		{"none of the rules", b, `{"tool_name": "rm"}`, false, "data.agentos.allow is false"},
		{"large integers are exact", b, `{"n": 12345678901234567890}`, true, "data.agentos.allow is true"},
		{"large integers are exact, the next one", b, `{"n": 12345678901234567891}`, false, "data.agentos.allow is false"},
		{"nested values and null", b, `{"nested": {"list": [null, 1.5, "x"]}, "flag": false}`, true, "data.agentos.allow is true"},
		{"data below a folder", b, `{"amount": 10.25}`, true, "data.agentos.allow is true"},
		{"undefined denies", undefined, `{}`, false, "data.agentos.allow is undefined"},
		{"undefined no more", undefined, `{"ok": true}`, true, "data.agentos.allow is true"},
		{"the old syntax", v0, `{"tool_name": "x"}`, true, "data.agentos.allow is true"},
		{"the old syntax, denied", v0, `{"tool_name": "y"}`, false, "data.agentos.allow is false"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d, err := c.backend.Evaluate(context.Background(), call(t, c.context))
			require.NoError(t, err)
			require.Equal(t, engine.BackendDecision{Allowed: c.allowed, Reason: c.reason}, d)
		})
	}
}

func TestErrorsAreNoAnswers(t *testing.T) {
	cases := []struct{ name, module, context, text string }{
		{"a truthy string is not true", "allow := \"yes\"", "{}", "neither true nor false but yes"},
		{"a number is not true", "allow := 1", "{}", "neither true nor false"},
		{"rules that contradict each other", "allow := true\nallow := false if input.x", `{"x": 1}`, "eval_conflict_error"},
		{"a built-in that fails", "allow if to_number(input.x) < 5", `{"x": "five"}`, "eval_builtin_error"},
		{"a division by zero", "allow if 1 / input.x < 5", `{"x": 0}`, "divide by zero"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := load(t, file("a.rego", "package agentos\n"+c.module))
			d, err := b.Evaluate(context.Background(), call(t, c.context))
			require.ErrorContains(t, err, c.text)
			require.Equal(t, engine.BackendDecision{}, d)
		})
	}
	nan := value.OfMap(value.Pair{Key: "x", Value: value.OfList(value.OfFloat(0), value.OfFloat(infinity()))})
	_, err := load(t, file("a.rego", "package agentos\nallow := true")).Evaluate(context.Background(), engine.BackendInput{Context: nan})
	require.ErrorContains(t, err, "the context holds inf")
}

func infinity() float64 {
	huge := 1e308
	return huge * 10
}

// Time is the only bound on what a policy computes, so it must end one.
func TestTimeIsUp(t *testing.T) {
	b := load(t, file("a.rego", `package agentos
		allow if { some i in numbers.range(1, 3000); some j in numbers.range(1, 3000); i + j == -1 }`))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	start := time.Now()
	d, err := b.Evaluate(ctx, call(t, "{}"))
	require.Error(t, err)
	require.False(t, d.Allowed)
	require.Less(t, time.Since(start), 5*time.Second)
}

func TestLoadRefuses(t *testing.T) {
	good := file("good.rego", "package agentos\nallow := true")
	cases := []struct {
		name  string
		files []engine.File
		place string
		text  string
	}{
		{"a syntax error", []engine.File{good, file("x/bad.rego", "package agentos\n\nallow if {")}, "x/bad.rego:3: ", ""},
		{"an empty file", []engine.File{good, file("bad.rego", "")}, "bad.rego", "empty module"},
		{"an unknown function", []engine.File{file("bad.rego", "package agentos\nallow if nope(1)")}, "bad.rego:2: ", "undefined function nope"},
		{"the network: http", []engine.File{file("bad.rego", "package agentos\nallow if http.send({\"method\": \"get\", \"url\": \"x\"})")}, "bad.rego:2: ", "undefined function http.send"},
		{"the network: names", []engine.File{file("bad.rego", "package agentos\nallow if net.lookup_ip_addr(\"x\")")}, "bad.rego:2: ", "undefined function net.lookup_ip_addr"},
		{"the process", []engine.File{file("bad.rego", "package agentos\nallow if opa.runtime().env.HOME")}, "bad.rego:2: ", "undefined function opa.runtime"},
		{"another package", []engine.File{file("other.rego", "package other\nallow := true")}, "other.rego: ", "no module defines allow in package agentos"},
		{"recursion", []engine.File{file("rec.rego", "package agentos\nallow if allow")}, "rec.rego:2: ", "recursive"},
		{"too much text", []engine.File{good, file("long.rego", strings.Repeat("# comment\n", 7000))}, "long.rego: ", "more than 65536 bytes"},
		{"deep expressions", []engine.File{good, file("deep.rego", "package agentos\n\nallow if 1"+strings.Repeat(" + 1", 300)+" == 2")}, "deep.rego:3: ", "deeper than 400 levels"},
		{"data that are no JSON", []engine.File{good, file("data.json", "{\n\"a\": 1,\n}")}, "data.json:", ""},
		{"data with a duplicate key", []engine.File{good, file("data.json", "{\n\"a\": 1,\n\"a\": 2}")}, "data.json:3: ", "duplicate key"},
		{"data that are no object", []engine.File{good, file("data.json", "[]")}, "data.json:1: ", "an object is expected, not a list"},
		{"data in the place of a rule", []engine.File{good, file("data.json", `{"agentos": {"allow": true}}`)}, "good.rego:2: ", "conflict"},
		{"data given twice", []engine.File{good, file("a/data.json", `{"x": 1}`), file("data.json", `{"a": {"x": 2}}`)}, "data.json: ", `another data.json holds "a" already`},
		{"data below a number", []engine.File{good, file("a/data.json", `{"b": 1}`), file("a/b/data.json", `{"x": 2}`)}, "a/data.json: ", `another data.json holds "b" already`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b, problems := Load(c.files)
			require.Nil(t, b)
			require.NotEmpty(t, problems)
			require.True(t, strings.HasPrefix(problems[0].String(), c.place), problems[0].String())
			require.Contains(t, problems[0].Message, c.text)
		})
	}
}

func TestHostileTextIsSurvived(t *testing.T) {
	const head = "package agentos\nallow if "
	for name, text := range map[string]string{
		"deep brackets":       head + strings.Repeat("[", 30000),
		"deep parentheses":    head + strings.Repeat("(", 30000) + "1" + strings.Repeat(")", 30000),
		"a long sum":          head + "1" + strings.Repeat(" + 1", 15000) + " == 2",
		"a long reference":    head + "input" + strings.Repeat(".a", 30000),
		"many negations":      head + strings.Repeat("not ", 15000) + "true",
		"deep comprehensions": head + strings.Repeat("[x | x := ", 6000),
	} {
		t.Run(name, func(t *testing.T) {
			b, problems := Load([]engine.File{file("h.rego", text)})
			if len(problems) > 0 {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			_, _ = b.Evaluate(ctx, call(t, "{}"))
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	b := load(t, file("a.rego", "package agentos\nallow if input.n > 1"))
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				if d, err := b.Evaluate(context.Background(), call(t, `{"n": 2}`)); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
		})
	}
	wait.Wait()
}
