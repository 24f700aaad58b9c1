package cedar

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/engine/enginetest"
)

func file(path, content string) engine.File {
	return engine.File{Path: path, Content: []byte(content)}
}

func load(t testing.TB, files ...engine.File) engine.Backend {
	t.Helper()
	b, problems := Load(files)
	require.Empty(t, problems)
	require.Equal(t, "cedar", b.Name())
	return b
}

// call is a call of a tool in a context given as JSON.
func call(t testing.TB, tool, context string) engine.BackendInput {
	return engine.BackendInput{AgentID: "a1", ActionType: "tool_call", Tool: tool, Context: enginetest.Value(t, context)}
}

func TestDecisions(t *testing.T) {
	b := load(t,
		file("b.cedar", `
			@id("no-secrets")
			forbid (principal, action, resource) when { context.tool_args.path like "/etc/*" };
			forbid (principal == Agent::"banned", action, resource);`),
		file("a.cedar", `
			permit (principal in Team::"ops", action == Action::"ReadFile", resource == Resource::"default");
			permit (principal, action == Action::"Readurl", resource);
			permit (principal == Agent::"anonymous", action == Action::"Ping", resource);
			permit (principal, action == Action::"Spend", resource)
			when { context.amount <= 10 && context.confidence.greaterThanOrEqual(decimal("0.8")) };
			permit (principal, action == Action::"Pick", resource)
			when { context.tags.contains("safe") && !(context has note) };`),
		file("entities.json", `[
			{"uid": {"type": "Agent", "id": "a1"}, "attrs": {}, "parents": [{"type": "Team", "id": "ops"}]},
			{"uid": {"type": "Team", "id": "ops"}, "attrs": {}, "parents": []}]`))
	args := `{"tool_args": {"path": "/srv/x"}`
	cases := []struct {
		name, agent, tool, context string
		allowed                    bool
		trace                      []string
		reason                     string
	}{
		{"a member of the team", "a1", "read_file", args + "}", true, []string{"a.cedar#0"}, "permitted by Cedar policy a.cedar#0"},
		{"nobody's member", "a2", "read_file", args + "}", false, nil, "no Cedar policy permits it"},
		{"forbid wins over permit", "a1", "read_file", `{"tool_args": {"path": "/etc/passwd"}}`, false, []string{"no-secrets"}, "forbidden by Cedar policy no-secrets"},
		{"two forbids, in the order of the files", "banned", "x", `{"tool_args": {"path": "/etc/passwd"}}`, false, []string{"no-secrets", "b.cedar#1"}, "forbidden by Cedar policy no-secrets, b.cedar#1"},
		{"capitals within a word are lost", "a2", "readURL", args + "}", true, []string{"a.cedar#1"}, "permitted by Cedar policy a.cedar#1"},
		{"no agent", "", "ping", args + "}", true, []string{"a.cedar#2"}, "permitted by Cedar policy a.cedar#2"},
		{"a float is a decimal, an integer a long", "a2", "spend", args + `, "amount": 10, "confidence": 0.80001}`, true, []string{"a.cedar#3"}, "permitted by Cedar policy a.cedar#3"},
		{"a decimal below the bound", "a2", "spend", args + `, "amount": 10, "confidence": 0.7999}`, false, nil, "no Cedar policy permits it"},
		{"a null is left out, in lists too", "a2", "pick", args + `, "tags": [null, "safe"], "note": null}`, true, []string{"a.cedar#4"}, "permitted by Cedar policy a.cedar#4"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := call(t, c.tool, c.context)
			in.AgentID = c.agent
			d, err := b.Evaluate(context.Background(), in)
			require.NoError(t, err)
			require.Equal(t, engine.BackendDecision{Allowed: c.allowed, Reason: c.reason, Trace: c.trace}, d)
		})
	}
}

// A policy that fails decides nothing in Cedar itself; a forbid that fails would
// then let the call through.
func TestErrorsAreNoAnswers(t *testing.T) {
	b := load(t, file("p.cedar", `permit (principal, action, resource);
		@id("guard") forbid (principal, action, resource) when { context.amount > 100 };`))
	for name, ctx := range map[string]string{
		"a missing attribute": `{}`,
		"another type":        `{"amount": "1000"}`,
		"a float for a long":  `{"amount": 1000.5}`,
		"too large a number":  `{"amount": 99999999999999999999}`,
		"too large a float":   `{"amount": 1e300}`,
		"too large, unused":   `{"amount": 1, "other": [{"x": 99999999999999999999}]}`,
	} {
		d, err := b.Evaluate(context.Background(), call(t, "x", ctx))
		require.Error(t, err, name)
		require.Equal(t, engine.BackendDecision{}, d, name)
	}
	_, err := b.Evaluate(context.Background(), call(t, "x", `{}`))
	require.ErrorContains(t, err, "p.cedar:2: policy guard: ")
}

func TestTimeIsUp(t *testing.T) {
	b := load(t, file("p.cedar", `permit (principal, action, resource);`))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d, err := b.Evaluate(ctx, call(t, "x", "{}"))
	require.True(t, errors.Is(err, context.Canceled))
	require.False(t, d.Allowed)
}

func TestLoadRefuses(t *testing.T) {
	good := file("good.cedar", "permit (principal, action, resource);")
	cases := []struct {
		name  string
		files []engine.File
		place string
		text  string
	}{
		{"a syntax error", []engine.File{good, file("x/bad.cedar", "permit (principal, action, resource);\n\npermit (principal, action resource);")}, "x/bad.cedar:3: ", "syntax error at column 35, \")\""},
		{"an unknown function", []engine.File{file("bad.cedar", "permit (principal, action, resource)\nwhen { nope(1) };")}, "bad.cedar:2: ", "`nope` is not a function"},
		{"no policy at all", []engine.File{file("empty.cedar", "// nothing\n")}, "empty.cedar: ", "hold no policy"},
		{"an id given twice", []engine.File{file("a.cedar", "@id(\"p\") permit (principal, action, resource);"), file("b.cedar", "\n@id(\"p\") forbid (principal, action, resource);")}, "b.cedar:2: ", `a second policy has the id "p"`},
		{"deep brackets", []engine.File{file("deep.cedar", "permit (principal, action, resource) when {\n"+strings.Repeat("(", 65)+"true"+strings.Repeat(")", 65)+"};")}, "deep.cedar:2: ", "deeper than 64"},
		{"too much text", []engine.File{good, file("long.cedar", strings.Repeat("// comment\n", 30000))}, "long.cedar: ", "more than 262144 bytes"},
		{"entities that are no JSON", []engine.File{good, file("entities.json", "[\n{]")}, "entities.json:2: ", ""},
		{"entities with a duplicate key", []engine.File{good, file("entities.json", "[\n{\"uid\": 1,\n\"uid\": 2}]")}, "entities.json:3: ", "duplicate key"},
		{"entities that are no list", []engine.File{good, file("entities.json", "{}")}, "entities.json:1: ", "a list of Cedar entities is expected"},
		{"an entity without attrs", []engine.File{good, file("entities.json", `[{"uid": {"type": "A", "id": "1"}, "parents": []}]`)}, "entities.json: [0]: ", `"attrs" is missing`},
		{"an entity given twice", []engine.File{good,
			file("a/entities.json", `[{"uid": {"type": "A", "id": "1"}, "attrs": {}, "parents": []}]`),
			file("entities.json", `[{"uid": {"type": "A", "id": "1"}, "attrs": {}, "parents": []}]`)}, "entities.json: [0].uid: ", `a second entity has the uid A::"1"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b, problems := Load(c.files)
			require.Nil(t, b)
			require.Len(t, problems, 1)
			require.True(t, strings.HasPrefix(problems[0].String(), c.place), problems[0].String())
			require.Contains(t, problems[0].Message, c.text)
			require.NotContains(t, problems[0].Message, "<input>")
		})
	}
}

// Text that makes the library recurse as deeply as the caps allow.
func TestHostileTextIsSurvived(t *testing.T) {
	const head = "permit (principal, action, resource) when { "
	for name, text := range map[string]string{
		"a long chain of ors":        head + "true" + strings.Repeat(" || true", 30000) + " };",
		"a long chain of additions":  head + "1 == 1" + strings.Repeat(" + 1", 60000) + " };",
		"a long chain of attributes": head + "context" + strings.Repeat(".a", 120000) + " };",
		"a long chain of negations":  head + strings.Repeat("!", 200000) + "true };",
		"a long chain of minuses":    head + strings.Repeat("-", 200000) + "1 == 1 };",
		"a long chain of ifs":        head + strings.Repeat("if true then ", 15000) + "true" + strings.Repeat(" else true", 15000) + " };",
		"only opening brackets":      head + strings.Repeat("[", 200000),
		"brackets after a quote":     head + `"` + "\n" + strings.Repeat("[", 200000),
	} {
		t.Run(name, func(t *testing.T) {
			b, problems := Load([]engine.File{file("h.cedar", text)})
			if len(problems) > 0 {
				return
			}
			_, _ = b.Evaluate(context.Background(), call(t, "x", "{}"))
		})
	}
}

func TestConcurrentUse(t *testing.T) {
	b := load(t, file("p.cedar", `permit (principal, action, resource) when { context.n > 1 };`))
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				if d, err := b.Evaluate(context.Background(), call(t, "x", `{"n": 2}`)); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
		})
	}
	wait.Wait()
}
