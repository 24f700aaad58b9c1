//go:build attack

package vectors

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// most is how much more memory than before a node may take to refuse a policy.
const most = 64 << 20

// yaml and file are a policy of one file, as PutPolicy takes it.
func yaml(text string) object { return object{"name": "x", "yaml": text} }

func file(path, text string) object {
	return object{"name": "x", "files": []object{{"path": path, "content": text}}}
}

// TestPoliciesThatHarm puts what no node should read. Each is refused, nothing is stored,
// all nodes live on, and the one that was asked takes little memory.
func TestPoliciesThatHarm(t *testing.T) {
	s := secure(t, 3, "--strict-namespaces", "firm")
	firm := s.token("firm", "policy-author,auditor")
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	const rule = "rules: [{name: r, condition: {field: x, operator: eq, value: 1}, action: deny}]\n"
	expression := func(text string) string {
		return "name: x\nblocked_patterns: [{type: regex, pattern: '" + text + "'}]\n"
	}
	condition := func(text string) string {
		return "rules: [{name: r, condition: {field: x, operator: matches, value: '" + text + "'}, action: deny}]\n"
	}
	var patterns strings.Builder
	patterns.WriteString("name: x\nblocked_patterns:\n")
	for i := range 10_000 {
		fmt.Fprintf(&patterns, "- p%d\n", i)
	}
	const deep, deeper = 20_000, 100_000
	for _, c := range []struct {
		name  string
		token string
		body  object
		says  string
	}{
		{"51 laughs", s.admin, yaml(laughs), "anchors are not accepted"},
		{"52 a loop", s.admin, yaml("rules: &a [*a]\n"), "anchor"},
		{"52 a loop in a key", s.admin, yaml("&a {*a : 1}: 2\n"), "anchor"},
		{"53 brackets", s.admin, yaml(strings.Repeat("[", deep)), "nesting is deeper than 32 levels"},
		{"53 dashes", s.admin, yaml(strings.Repeat("- ", deep) + "x"), "nesting is deeper than 32 levels"},
		{"53 braces of JSON", s.admin, file("policy.json", strings.Repeat(`{"a":`, deep)), "nesting is deeper than 32 levels"},
		{"53 deeper", s.admin, yaml(strings.Repeat("[", deeper)), "more than 60000 elements"},
		{"54 a key twice", s.admin, yaml("name: x\nmax_tool_calls: 1\nmax_tool_calls: 1000\n"), "twice"},
		{"54 a key of a rule twice", s.admin, yaml(strings.Replace(rule, "action: deny", "action: deny, action: allow", 1)), "twice"},
		{"55 a merge key", s.admin, yaml("a: &a {action: deny}\nrules: [{<<: *a, name: r, condition: {field: x, operator: eq, value: 1}}]\n"), "anchors are not accepted"},
		{"55 a merge key without an alias", s.admin, yaml(strings.Replace(rule, "name: r", "<<: {action: allow}, name: r", 1)), "merge keys are not accepted"},
		{"56 a tag of Python", s.admin, yaml("name: !!python/object/apply:os.system [ls]\nmax_tokens: 1\n"), "tag"},
		{"56 a binary tag", s.admin, yaml("name: !!binary aGVsbG8=\nmax_tokens: 1\n"), "tag"},
		{"56 a tag of its own", s.admin, yaml("name: !own x\nmax_tokens: 1\n"), "tag"},
		{"57 1.1 MiB", s.admin, yaml("name: x\nmax_tokens: 1\n#" + strings.Repeat("x", 11<<20/10)), "larger than 1048576 bytes"},
		{"59 NUL", s.admin, yaml("name: x\nmax_tokens: 1 # \x00\n"), "NUL"},
		{"59 a byte order mark", s.admin, yaml("\ufeffname: x\nmax_tokens: 1\n"), "byte order mark"},
		{"60 a field misspelt", firm, yaml("name: x\nmax_tool_cals: 5\nmax_tokens: 1\n"), "max_tool_cals"},
		{"60 a field of a rule misspelt", firm, yaml(strings.Replace(rule, "action: deny", "action: deny, priorty: 5", 1)), "priorty"},
		{"60 an action misspelt", s.admin, yaml(strings.Replace(rule, "deny", "dney", 1)), "action must be allow, deny, audit"},
		{"60 nothing but a field misspelt", s.admin, yaml("max_tool_cals: 5\n"), "max_tool_cals"},
		{"61 a key of JSON twice", s.admin, file("policy.json", `{"name": "x", "max_tokens": 1, "max_tokens": 2}`), "the key appears twice"},
		{"61 an infinite number", s.admin, file("policy.json", `{"rules": [{"name": "r", "action": "deny", "condition": {"field": "x", "operator": "gt", "value": 1e400}}]}`), "beyond what can be represented"},
		{"61 a count beyond 64 bits", s.admin, file("policy.json", `{"name": "x", "max_tool_calls": 9223372036854775808}`), "max_tool_calls must be"},
		{"61 a count that is a fraction", s.admin, file("policy.json", `{"name": "x", "max_tool_calls": 1.5}`), "max_tool_calls must be"},
		{"62 a look ahead", s.admin, yaml(expression("(?=a)b")), "lookahead (?=...) needs a backtracking engine"},
		{"62 a look behind", s.admin, yaml(expression("(?<!a)b")), "lookbehind (?<!...) needs a backtracking engine"},
		{"62 a reference back", s.admin, yaml(expression(`(a)\1`)), `backreference \1 needs a backtracking engine`},
		{"62 in a condition", s.admin, yaml(condition("(?=a)b")), "lookahead (?=...) cannot be evaluated in bounded time"},
		{"63 repeats of repeats", s.admin, yaml(expression("((a{1,100}){1,10})b")), "2000 are allowed"},
		{"63 in a condition", s.admin, yaml(condition("((a{1,100}){1,10})b")), "2000 are allowed"},
		{"63 a thousand that are nearly as large", s.admin, yaml(dear(1000)), "150000 instructions together"},
		{"63 in a ruleset of Edictum", s.admin, yaml(dearRuleset(2000)), "150000 instructions together"},
		{"64 10,000 patterns", s.admin, yaml(patterns.String()), "1000"},
		{"65 a glob that is too long", s.admin, yaml("name: x\nblocked_patterns: [{type: glob, pattern: '" + strings.Repeat("**/", 200) + "'}]\n"), "512 are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.refused(t, func(i int) answer {
				a, err := s.ask(i, c.token, "PolicyService/PutPolicy", c.body)
				require.NoError(t, err)
				require.Equal(t, "invalid_argument", a.Code(), a)
				require.Contains(t, string(a.Body), `"reason":"INVALID_POLICY"`)
				return a
			}, c.says)
		})
	}

	// What is wrong before anybody reads a policy.
	put := func(body []byte, headers ...string) func(i int) answer {
		return func(i int) answer {
			a, err := s.send(i, s.admin, "PolicyService/PutPolicy", body, append([]string{"Content-Type", "application/json"}, headers...)...)
			require.NoError(t, err)
			return a
		}
	}
	begins := `{"name": "x", "yaml": "name: x\nmax_tokens: 1\n# `
	t.Run("57 1 GiB", func(t *testing.T) {
		s.refused(t, func(i int) answer { return s.pour(t, i, "/govnode.v1.PolicyService/PutPolicy", s.admin, begins, 1<<30) }, "larger than configured max")
	})
	t.Run("58 10 GiB in 10 MiB, 1.2 GiB in 1.2 MiB", func(t *testing.T) {
		one := compressed(t, bytes.Repeat([]byte(" "), 10<<20))
		bomb := append(compressed(t, []byte(begins)), bytes.Repeat(one, 1000)...) // streams in a row are read as one
		for _, body := range [][]byte{bomb, bomb[:120*len(one)]} {
			s.refused(t, func(i int) answer {
				a := put(body, "Content-Encoding", "gzip")(i)
				require.Contains(t, a.Message(), "unable to determine message size", "it was unpacked to its end")
				return a
			}, "larger than configured max")
		}
	})
	// Who asks for health shows no token, so anybody can.
	t.Run("57 and 58 at a door without a token", func(t *testing.T) {
		s.refused(t, func(i int) answer { return s.pour(t, i, health, "", `{"service": "`, 1<<30) }, "larger than configured max")
		one := compressed(t, bytes.Repeat([]byte(" "), 10<<20))
		bomb := append(compressed(t, []byte(`{"service": "`)), bytes.Repeat(one, 20)...)
		s.refused(t, func(i int) answer {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL(s.Nodes[i])+health, bytes.NewReader(bomb))
			require.NoError(t, err)
			req.Header.Set("Content-Encoding", "gzip")
			return s.do(t, req)
		}, "larger than configured max")
	})
	t.Run("59 no UTF-8", func(t *testing.T) {
		s.refused(t, put([]byte(begins+"\xff\"}")), "yaml: is ")
		s.refused(t, put([]byte("\x0a\x01x\x1a\x03x:\xff"), "Content-Type", "application/proto"), "UTF-8")
	})
	t.Run("59 UTF-16", func(t *testing.T) {
		body := []byte{0xff, 0xfe}
		for _, c := range begins + `"}` {
			body = append(body, byte(c), 0)
		}
		s.refused(t, put(body))
	})
	t.Run("61 a key of the request twice", func(t *testing.T) {
		s.refused(t, put([]byte(`{"name": "x", "yaml": "name: x\nmax_tokens: 1\n", "yaml": "name: x\nmax_tokens: 2\n"}`)), "yaml")
	})
	for i := range s.Nodes { // the counterproof: what is good is taken
		s.must(i, s.admin, "PolicyService/PutPolicy", yaml("name: x\nmax_tokens: 1\n"))
	}
}

// dearRuleset is dear for a ruleset of Edictum, whose lists have no end of their own.
func dearRuleset(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("'((a{1,90}){1,10})b%d'", i))
	}
	return "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: x}\ndefaults: {mode: enforce}\nrules:\n" +
		"- {id: r, type: pre, tool: t, when: {args.q: {matches_any: [" + strings.Join(all, ", ") + "]}}, then: {action: block, message: stop}}\n"
}

// refused puts a policy at each node, and wants all to be as before.
func (s *secured) refused(t *testing.T, put func(i int) answer, says ...string) {
	t.Helper()
	s.unchanged(t, func() {
		for i, n := range s.Nodes {
			pid := n.Pid()
			before, _ := s.memory(i)
			a := put(i)
			_, peak := s.memory(i)
			require.Contains(t, []string{"invalid_argument", "resource_exhausted"}, a.Code(), a)
			for _, text := range says {
				require.Contains(t, a.Message(), text)
			}
			require.Less(t, peak-before, most, "%s took that much memory", n.Name)
			require.Equal(t, pid, n.Pid(), "%s has ended", n.Name)
		}
	})
}

const health = "/grpc.health.v1.Health/Check"

// pour sends a body of so many bytes that begins so, for as long as the node reads it.
func (s *secured) pour(t *testing.T, i int, path, token, begins string, size int64) answer {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := &counted{Reader: io.MultiReader(strings.NewReader(begins), io.LimitReader(blanks{}, size))}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(s.Nodes[i])+path, sent)
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	a := s.do(t, req)
	require.Less(t, sent.n.Load(), size/8, "the node read on")
	return a
}

func (s *secured) do(t *testing.T, req *http.Request) answer {
	req.Header.Set("Content-Type", "application/json")
	res, err := s.http.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	content, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return answer{Status: res.StatusCode, Body: content}
}

// blanks are without end.
type blanks struct{}

func (blanks) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// counted counts what is read.
type counted struct {
	io.Reader
	n atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

func compressed(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}
