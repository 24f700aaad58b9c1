package edictum_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// What a record shows of arguments: what stands under the name of a secret is taken out,
// and what only looks like one is not; texts and records have a length.
func TestWhatRecordsShow(t *testing.T) {
	secret := []string{
		"password", "secret", "token", "api_key", "apikey", "authorization", "auth", "credentials", "private_key", "privatekey", "access_token", "refresh_token",
		"client_secret", "connection_string", "database_url", "db_password", "ssh_key", "passphrase", "api_tokens", "db_passwords", "user_credentials",
		"oauth_secrets", "encryption_keys", "jwt_tokens", "PASSWORD", "x-api-key", "my_token", "tokens", "a-secrets-b", "DB_Credential", "user-passwords",
	}
	open := []string{
		"max_tokens", "num_tokens", "input_tokens", "output_tokens", "total_tokens", "completion_tokens", "prompt_tokens", "cached_tokens", "reasoning_tokens",
		"audio_tokens", "cache_tokens", "sort_keys", "index_keys", "monkey", "tokenizer", "author", "path", "MAX_TOKENS", "keyboard",
	}
	var pairs []value.Pair
	for _, key := range append(append([]string{}, secret...), open...) {
		pairs = append(pairs, value.Pair{Key: key, Value: value.OfInt(1)})
	}
	for _, in := range []value.Value{value.OfMap(pairs...), value.OfMap(value.Pair{Key: "in", Value: value.OfList(value.OfInt(1), value.OfMap(pairs...))})} {
		out := edictum.RedactArgs(in)
		if inner, nested := out.Get("in"); nested {
			require.Equal(t, 2, inner.Len())
			out = inner.Index(1)
		}
		require.Equal(t, len(pairs), out.Len())
		for _, key := range secret {
			v, _ := out.Get(key)
			require.Equal(t, "[REDACTED]", v.Str(), key)
		}
		for _, key := range open {
			v, _ := out.Get(key)
			require.Equal(t, "1", v.Str(), key)
		}
	}
	shown := func(text string) string {
		v, _ := edictum.RedactArgs(value.OfMap(value.Pair{Key: "a", Value: value.OfString(text)})).Get("a")
		return v.Str()
	}
	for in, want := range map[string]string{
		"sk-" + strings.Repeat("a", 20): "[REDACTED]", "sk-" + strings.Repeat("a", 19): "sk-" + strings.Repeat("a", 19),
		"AKIA" + strings.Repeat("A", 16): "[REDACTED]", "ghp_" + strings.Repeat("a", 36): "[REDACTED]", "xoxb-" + strings.Repeat("a", 10): "[REDACTED]",
		"eyJ" + strings.Repeat("a", 20) + ".": "[REDACTED]",
		"export MY_TOKEN=abc and more":        "export MY_TOKEN=[REDACTED] and more", "mysql -p hunter2 -u me": "mysql -p [REDACTED] -u me",
		"run --password=hunter2": "run --password=[REDACTED]", "postgres://me:hunter2@host/db": "postgres://me:[REDACTED]@host/db",
		strings.Repeat("ä", 1000): strings.Repeat("ä", 1000), strings.Repeat("ä", 1001): strings.Repeat("ä", 997) + "...",
	} {
		require.Equal(t, want, shown(in), "%.60s", in)
	}
	var long []value.Pair
	for i := range 40 {
		long = append(long, value.Pair{Key: fmt.Sprint("k", i), Value: value.OfString(strings.Repeat("x", 1000))})
	}
	v, there := edictum.RedactArgs(value.OfMap(long[:30]...)).Get("k0")
	require.True(t, there)
	require.Len(t, v.Str(), 1000)
	_, there = edictum.RedactArgs(value.OfMap(long...)).Get("k0")
	require.False(t, there)
	require.Equal(t, `{"_redacted":"the arguments are too large for a record"}`, strings.ReplaceAll(edictum.RedactArgs(value.OfMap(long...)).JSON(), `": "`, `":"`))
}

// A message has at most 500 characters, and what stands in one of its places 200.
func TestMessagesHaveALength(t *testing.T) {
	say := func(message, arg string) string {
		rs, err := edictum.Compile(fileOf(t, "a", "enforce", "", "{id: a, type: pre, tool: '*', when: {args.x: {exists: true}}, then: {action: block, message: '"+message+"'}}"))
		require.NoError(t, err)
		return rs.Before(&edictum.Call{Tool: "t", Args: value.OfMap(value.Pair{Key: "x", Value: value.OfString(arg)})}).Reason
	}
	require.Equal(t, "of "+strings.Repeat("ä", 200), say("of {args.x}", strings.Repeat("ä", 200)))
	require.Equal(t, "of "+strings.Repeat("ä", 197)+"...", say("of {args.x}", strings.Repeat("ä", 201)))
	require.Equal(t, strings.Repeat("ä", 400)+strings.Repeat("b", 100), say("{args.x}{args.x}"+strings.Repeat("b", 100), strings.Repeat("ä", 200)))
	require.Equal(t, strings.Repeat("ä", 400)+strings.Repeat("b", 97)+"...", say("{args.x}{args.x}"+strings.Repeat("b", 101), strings.Repeat("ä", 200)))
	require.Equal(t, "[REDACTED] and {args.y} and {no.place}", say("{args.x} and {args.y} and {no.place}", "sk-"+strings.Repeat("a", 20)))
}

// What is wrong with a leaf is found wherever in a condition the leaf stands, and the
// arguments that rules read are those of all leaves.
func TestEveryLeafIsLookedAt(t *testing.T) {
	for _, place := range []string{
		"%s", "{not: %s}", "{all: [{args.ok: {exists: true}}, %s]}", "{any: [{args.ok: {exists: true}}, %s]}", "{all: [%s, {args.ok: {exists: true}}]}",
		"{any: [%s, {args.ok: {exists: true}}]}", "{all: [{any: [{args.ok: {exists: true}}, {not: %s}]}]}",
	} {
		rule := func(leaf string) string {
			return "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: a}\ndefaults: {mode: enforce}\nrules:\n- " + blocks("first", "f") +
				"\n- {id: a, type: pre, tool: '*', when: " + fmt.Sprintf(place, leaf) + ", then: {action: block, message: m}}\n"
		}
		for leaf, says := range map[string]string{
			"{args.x: {matches: '('}}":              "Invalid regex pattern '('",
			"{args.x: {matches_any: ['a', '(']}}":   "Invalid regex pattern '('",
			"{output.text: {contains: a}}":          "output.text selector is not available in type: pre rules",
			"{result.a: {equals: 1}}":               "result. selector is not available in type: pre rules",
			"{args.x: {resembles: a}}":              "resembles",
			"{args.x: {gt: '5'}}":                   "gt",
			"{args.x: {in: 5}}":                     "in",
			"{args.x: {contains_any: []}}":          "contains_any",
			"{args.x: {exists: 5}}":                 "exists",
			"{args.x: {starts_with: 5}}":            "starts_with",
			"{args.x: {equals: 1, not_equals: 2}}":  "",
			"{args.x: {exists: true}, args.y: {}}":  "",
			"{args.x: {contains_any: ['a', true]}}": "contains_any",
		} {
			_, err := edictum.Parse("a.yaml", []byte(rule(leaf)))
			require.ErrorContains(t, err, says, rule(leaf))
		}
		d, err := edictum.Parse("a.yaml", []byte(rule("{unknown.x: {exists: true}}")))
		require.NoError(t, err)
		require.Len(t, d.Warnings, 1, place)
		d, err = edictum.Parse("a.yaml", []byte(rule("{args.x.y: {exists: true}}")))
		require.NoError(t, err)
		require.True(t, d.Arguments()["x"] && d.Arguments()["f"], place)
		require.False(t, d.Arguments()["*"])
	}
	_, err := edictum.Parse("a.yaml", []byte("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: a}\ndefaults: {mode: enforce}\nrules:\n- "+blocks("a", "f")+"\n- "+blocks("b", "f")+"\n- "+blocks("a", "g")+"\n"))
	require.ErrorContains(t, err, "Duplicate rule id: 'a'")
}

// A sandbox that forbids a part of nothing is refused.
func TestSandboxesForbidAPartOfSomething(t *testing.T) {
	box := func(more string) error {
		_, err := edictum.Parse("a.yaml", []byte("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: a}\ndefaults: {mode: enforce}\nrules:\n- "+blocks("first", "f")+
			"\n- {id: b, type: sandbox, tool: t, outside: block, message: m, "+more+"}\n"))
		return err
	}
	require.NoError(t, box("within: [/a], not_within: [/a/b]"))
	require.NoError(t, box("allows: {domains: ['*']}, not_allows: {domains: [a]}"))
	require.ErrorContains(t, box("not_within: [/a/b], allows: {commands: [ls]}"), "not_within requires within")
	require.ErrorContains(t, box("within: [/a], not_allows: {domains: [a]}"), "not_allows requires allows")
	require.ErrorContains(t, box("allows: {commands: [ls]}, not_allows: {domains: [a]}"), "not_allows.domains requires allows.domains")
}

// An output that one rule could not judge is said to be so whatever the rules behind it
// say, and a redaction of what is suppressed changes nothing.
func TestOutputsOfSeveralRules(t *testing.T) {
	rs, err := edictum.Compile(fileOf(t, "a", "enforce", "tools: {t: {side_effect: read}}\n",
		"{id: n, type: post, tool: t, when: {result.n: {gt: 5}}, then: {action: warn, message: many.}}",
		"{id: w, type: post, tool: t, when: {result.w: {exists: true}}, then: {action: warn, message: w.}}",
		"{id: s, type: post, tool: t, when: {result.s: {exists: true}}, then: {action: block, message: gone.}}",
		"{id: r, type: post, tool: t, when: {result.s: {matches: 'a+'}}, then: {action: redact, message: key.}}"))
	require.NoError(t, err)
	after := func(pairs ...value.Pair) edictum.Result {
		return rs.After(&edictum.Call{Tool: "t"}, edictum.Output{Value: value.OfMap(pairs...)})
	}
	got := after(value.Pair{Key: "n", Value: value.OfString("six")}, value.Pair{Key: "w", Value: value.OfInt(1)})
	require.True(t, got.PolicyError)
	require.Len(t, got.Findings, 2)
	require.False(t, got.Changed)
	require.False(t, after(value.Pair{Key: "n", Value: value.OfInt(6)}, value.Pair{Key: "w", Value: value.OfInt(1)}).PolicyError)
	got = after(value.Pair{Key: "s", Value: value.OfString("aaa")})
	require.Equal(t, "[OUTPUT SUPPRESSED] gone.", got.Output.Str())
	require.True(t, got.Suppressed && got.Changed)
	require.Len(t, got.Findings, 2)

	// What is said in its place is no output, and nothing is taken out of it.
	rs, err = edictum.Compile(fileOf(t, "a", "enforce", "",
		"{id: s, type: post, tool: t, when: {output.text: {contains: gone}}, then: {action: block, message: gone.}}",
		"{id: r, type: post, tool: t, when: {output.text: {matches: 'go+ne'}}, then: {action: redact, message: key.}}"))
	require.NoError(t, err)
	got = rs.After(&edictum.Call{Tool: "t"}, edictum.Output{Value: value.OfString("it is gone")})
	require.Equal(t, "[OUTPUT SUPPRESSED] gone.", got.Output.Str())
}
