//go:build attack

package vectors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEvasions makes calls that ought not to get past their policy.
func TestEvasions(t *testing.T) {
	s := secure(t, 3, "--strict-namespaces", "firm")
	firm := s.token("firm", "agent,orchestrator,policy-author,auditor")
	t.Run("61", func(t *testing.T) { numbersThatLookAlike(t, s) })
	t.Run("63", func(t *testing.T) { searchesWithoutEnd(t, s) })
	t.Run("64", func(t *testing.T) { asManyPatternsAsMayBe(t, s) })
	t.Run("65", func(t *testing.T) { globsOfStars(t, s) })
	t.Run("70", func(t *testing.T) { overriddenBelow(t, s, firm) })
	t.Run("71", func(t *testing.T) { pathsThatClimbOut(t, s) })
	t.Run("71 folders", func(t *testing.T) { foldersWithLinks(t, s) })
	t.Run("72", func(t *testing.T) { filesThatAreNone(t, s) })
	t.Run("74", func(t *testing.T) { fieldsLeftOut(t, s, firm) })
	t.Run("75", func(t *testing.T) { oddFields(t, s) })
	t.Run("76", func(t *testing.T) { textsForNumbers(t, s, firm) })
	t.Run("77", func(t *testing.T) { claimsOfAgents(t, s) })
	t.Run("78", func(t *testing.T) { claimsOfOthers(t, s) })
	t.Run("79", func(t *testing.T) { policiesThatTakeTooLong(t, s) })
	t.Run("80", func(t *testing.T) { guardrailsThatFail(t, s) })
}

// policy puts one under a name of its own and returns its name.
func (s *secured) policy(t *testing.T, token string, files ...string) string {
	t.Helper()
	name := strings.NewReplacer("/", ".", ",", "", "'", "").Replace(t.Name())
	var tree []object
	for i := 0; i < len(files); i += 2 {
		tree = append(tree, object{"path": files[i], "content": files[i+1]})
	}
	s.must(0, token, "PolicyService/PutPolicy", object{"name": name, "files": tree})
	return name
}

// calls opens a session under a policy. The function that it returns begins a call of it
// at a node, and gives back the outcome and the decision.
func (s *secured) calls(t *testing.T, token, policy string) func(i int, fields object) (string, object) {
	t.Helper()
	made := 0
	s.must(0, token, "SessionService/CreateSession", object{"sessionId": policy, "agentId": "a-1", "policy": object{"name": policy}})
	return func(i int, fields object) (string, object) {
		t.Helper()
		made++
		body := object{"sessionId": policy, "callId": fmt.Sprint("c", made), "tool": "t"}
		for k, v := range fields {
			body[k] = v
		}
		got := s.must(i, token, "CallService/BeginCall", body)
		decision, _ := got["decision"].(object)
		if got["outcome"] == admitted {
			s.must(i, token, "CallService/EndCall", object{"sessionId": policy, "callId": body["callId"], "status": "STATUS_SUCCEEDED"})
		}
		return got["outcome"].(string), decision
	}
}

const (
	admitted = "OUTCOME_ADMITTED"
	denied   = "OUTCOME_DENIED_BY_POLICY"
)

// 2^53 + 1 is not 2^53, and no zero is another.
func numbersThatLookAlike(t *testing.T, s *secured) {
	p := s.policy(t, s.admin, "rules.json", `{"name": "n", "rules": [
		{"name": "large", "action": "deny", "condition": {"field": "arguments.n", "operator": "eq", "value": 9007199254740993}},
		{"name": "zero", "action": "deny", "condition": {"field": "arguments.n", "operator": "eq", "value": -0}}]}`)
	begin := s.calls(t, s.admin, p)
	for text, want := range map[string]string{
		"9007199254740993": denied, "9007199254740992": admitted, "9007199254740994": admitted,
		"0": denied, "-0": denied, "0.0": denied, "-0.0": denied, "1": admitted,
	} {
		outcome, _ := begin(0, object{"argumentsJson": `{"n": ` + text + `}`})
		require.Equal(t, want, outcome, text)
	}
	// What no number can be, and what two readers would read differently.
	s.unchanged(t, func() {
		for _, text := range []string{`{"n": 1e400}`, `{"n": 1, "n": 2}`, `{"n": NaN}`, `{"n": 01}`} {
			for i := range s.Nodes {
				a, err := s.ask(i, s.admin, "CallService/BeginCall", object{"sessionId": p, "callId": "bad", "tool": "t", "argumentsJson": text})
				require.NoError(t, err)
				require.Equal(t, "invalid_argument", a.Code(), "%s: %s", text, a)
			}
		}
	})
}

// bounded does something at each node, and holds what it takes of memory.
func (s *secured) bounded(t *testing.T, do func(i int)) {
	t.Helper()
	for i, n := range s.Nodes {
		pid := n.Pid()
		before, _ := s.memory(i)
		do(i)
		_, peak := s.memory(i)
		require.Less(t, peak-before, most, "%s took that much memory", n.Name)
		require.Equal(t, pid, n.Pid(), "%s has ended", n.Name)
	}
}

// As many of the dearest expressions as a tree may have, over the longest argument: the
// evaluation is given up and denies. A longer argument is not looked at.
func searchesWithoutEnd(t *testing.T, s *secured) {
	p := s.policy(t, s.admin, "rules.yaml", dear(80))
	begin := s.calls(t, s.admin, p)
	s.bounded(t, func(i int) {
		outcome, decision := begin(i, object{"arguments": object{"q": strings.Repeat("a", 60<<10)}})
		require.Equal(t, denied, outcome)
		require.Equal(t, "EVAL_BUDGET", decision["category"], decision)
	})
	s.unchanged(t, func() {
		s.bounded(t, func(i int) {
			a, err := s.ask(i, s.admin, "CallService/BeginCall", object{"sessionId": p, "callId": "long", "tool": "t", "arguments": object{"q": strings.Repeat("a", 100<<10)}})
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", a.Code(), a)
			require.Contains(t, a.Message(), "arguments")
		})
	})
}

// dear is a policy of so many expressions of nearly as many instructions as one may have.
func dear(n int) string {
	var rules strings.Builder
	rules.WriteString("rules:\n")
	for i := range n {
		fmt.Fprintf(&rules, "- {name: r%d, condition: {field: arguments.q, operator: matches, value: '((a{1,90}){1,10})b%d'}, action: deny}\n", i, i)
	}
	return rules.String()
}

// As many patterns as a tree may have are taken, and each of them is heeded.
func asManyPatternsAsMayBe(t *testing.T, s *secured) {
	var patterns strings.Builder
	patterns.WriteString("max_tool_calls: 1000\nblocked_patterns:\n")
	for i := range 1000 {
		fmt.Fprintf(&patterns, "- {type: regex, pattern: 'p%03d[a-z]{1,20}x'}\n", i)
	}
	begin := s.calls(t, s.admin, s.policy(t, s.admin, "policy.yaml", patterns.String()))
	s.bounded(t, func(i int) {
		for text, want := range map[string]string{"p000aax": denied, "p999aax": denied, "p500ax": denied, "p1aax": admitted} {
			outcome, _ := begin(i, object{"arguments": object{"q": strings.Repeat(" p", 10<<10) + text}})
			require.Equal(t, want, outcome, text)
		}
	})
}

// A glob of as many stars as it may have is answered as one of a few.
func globsOfStars(t *testing.T, s *secured) {
	begin := s.calls(t, s.admin, s.policy(t, s.admin, "policy.yaml",
		"max_tool_calls: 1000\nblocked_patterns:\n- {type: glob, pattern: '"+strings.Repeat("**/", 168)+"end'}\n"))
	s.bounded(t, func(i int) {
		for text, want := range map[string]string{
			strings.Repeat("a", 60<<10): admitted, strings.Repeat("a/", 30<<10): admitted, strings.Repeat("a/", 30<<10) + "end": denied,
		} {
			outcome, decision := begin(i, object{"arguments": object{"q": text}})
			if decision["category"] == "EVAL_BUDGET" {
				continue // on a slow machine
			}
			require.Equal(t, want, outcome, "%.10s… %d", text, len(text))
		}
	})
}

// What a folder above denies is denied below, whatever the folder below says.
func overriddenBelow(t *testing.T, s *secured, firm string) {
	const above = "name: root\nrules: [{name: no-delete, condition: {field: tool_name, operator: eq, value: delete}, action: deny, priority: 5}]\ndefaults: {action: deny}\n"
	const allow = "condition: {field: tool_name, operator: eq, value: delete}, action: allow"
	for name, below := range map[string]string{
		"the same name":                   "rules: [{name: no-delete, " + allow + ", priority: 999}]\n",
		"the same name, override":         "rules: [{name: no-delete, " + allow + ", priority: 999, override: true}]\n",
		"another name":                    "rules: [{name: may, " + allow + ", priority: 999}]\n",
		"without inheritance":             "inherit: false\nrules: [{name: may, " + allow + ", priority: 999}]\n",
		"by default":                      "defaults: {action: allow}\nrules: []\n",
		"by default, without inheritance": "inherit: false\ndefaults: {action: allow}\nrules: []\n",
		"a combination of one's own":      "combining: allow_overrides\nrules: [{name: may, " + allow + ", priority: 999}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			begin := s.calls(t, firm, s.policy(t, firm, "governance.yaml", above, "dev/governance.yaml", "name: dev\n"+below))
			for i := range s.Nodes {
				outcome, decision := begin(i, object{"tool": "delete", "context": object{"path": "dev/x"}})
				require.Equal(t, denied, outcome, decision)
				outcome, decision = begin(i, object{"tool": "other", "context": object{"path": "dev/x"}})
				require.Equal(t, denied, outcome, "the default above: %v", decision)
			}
		})
	}
	// By name nobody gets round it in any namespace.
	for _, override := range []string{"false", "true"} {
		t.Run("by name, override "+override, func(t *testing.T) {
			begin := s.calls(t, s.admin, s.policy(t, s.admin, "governance.yaml", above,
				"dev/governance.yaml", "name: dev\nrules: [{name: no-delete, "+allow+", priority: 999, override: "+override+"}]\n"))
			outcome, decision := begin(1, object{"tool": "delete", "context": object{"path": "dev/x"}})
			require.Equal(t, denied, outcome, decision)
		})
	}
}

// A path that leads out of the root turns no policy off.
func pathsThatClimbOut(t *testing.T, s *secured) {
	begin := s.calls(t, s.admin, s.policy(t, s.admin, "governance.yaml", "name: root\nrules: []\n", "prod/governance.yaml", "name: prod\nrules: []\ndefaults: {action: deny}\n"))
	for i, path := range []string{
		"../../etc", "/abs", "a/../../b", "..", "..%2f", "..%2Fx", "%2e%2e/x", "%2E%2E%2Fx", "%252e%252e/x", "%252E%252E%252fx", `..\x`, `a\..\..\b`, `\\host\share`,
		`C:\`, `c:\windows`, "C:x", "%43%3a%5cx", "a\x00b", "a%00b", "%2fetc", "%zz/../%2e%2e", "prod/../../x",
		strings.Repeat("a/", 10_000) + strings.Repeat("../", 10_001) + "x",
	} {
		outcome, decision := begin(i%3, object{"context": object{"path": path}})
		require.Equal(t, denied, outcome, "%.40q: %v", path, decision)
		require.Equal(t, "PATH_ESCAPE", decision["category"], "%.40q: %v", path, decision)
	}
	for i, path := range []string{"prod/x", "./prod/x", "a/../prod/x", "prod//x", "prod", "prod/../prod/x", "prod/" + strings.Repeat("x/", 10_000)} {
		outcome, decision := begin(i%3, object{"context": object{"path": path}})
		require.Equal(t, denied, outcome, "%.40q: %v", path, decision)
		require.Equal(t, "default_action", decision["category"], decision)
	}
	outcome, _ := begin(0, object{"context": object{"path": "a/x"}})
	require.Equal(t, admitted, outcome, "the counterproof")
	s.unchanged(t, func() {
		for i, path := range []string{"../a.yaml", "/a.yaml", "a/../../b.yaml", `a\b.yaml`, `C:\a.yaml`, "a\x00.yaml", "./a.yaml", "a//b.yaml", strings.Repeat("a/", 10_000) + "b.yaml", ""} {
			a, err := s.ask(i%3, s.admin, "PolicyService/PutPolicy", file(path, "name: x\nrules: []\n"))
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", a.Code(), "%.40q: %s", path, a)
		}
	})
}

// put runs policy put on a folder and returns what it printed.
// putFolder also returns the most bytes that the command had in memory.
func (s *secured) putFolder(t *testing.T, folder string) (said string, most int64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], program, "policy", "put", folder, "--name", "folder", "--addr", s.Nodes[0].API, "--tls-ca", s.Secured.Authority())
	report := filepath.Join(t.TempDir(), "most")
	cmd.Env = append(os.Environ(), "GOVNODE_TOKEN="+s.admin, measureVar+"="+report)
	out, err := cmd.CombinedOutput()
	require.NoError(t, ctx.Err(), "it hangs")
	content, readErr := os.ReadFile(report)
	require.NoError(t, readErr)
	most, readErr = strconv.ParseInt(string(content), 10, 64)
	require.NoError(t, readErr)
	return string(out), most, err
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// A link in a folder of policies leads nowhere.
func foldersWithLinks(t *testing.T, s *secured) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "governance.yaml"), "name: outside\nrules: []\n")
	s.unchanged(t, func() {
		for what, link := range map[string]func(folder string) error{
			"to a file outside": func(f string) error {
				return os.Symlink(filepath.Join(outside, "governance.yaml"), filepath.Join(f, "governance.yaml"))
			},
			"to a folder outside": func(f string) error { return os.Symlink(outside, filepath.Join(f, "sub")) },
			"up":                  func(f string) error { return os.Symlink("..", filepath.Join(f, "up")) },
			"to itself":           func(f string) error { return os.Symlink("loop.yaml", filepath.Join(f, "loop.yaml")) },
		} {
			folder := t.TempDir()
			write(t, filepath.Join(folder, "a.yaml"), "name: inside\nrules: []\n")
			require.NoError(t, link(folder))
			said, _, err := s.putFolder(t, folder)
			require.Error(t, err, what)
			require.Contains(t, said, "symbolic link", what)
		}
	})
	folder := t.TempDir()
	write(t, filepath.Join(folder, "a.yaml"), "name: inside\nrules: []\n")
	said, _, err := s.putFolder(t, folder)
	require.NoError(t, err, "the counterproof: %s", said)
}

// What is no regular file is not opened, and of a huge one little is read.
func filesThatAreNone(t *testing.T, s *secured) {
	s.unchanged(t, func() {
		for what, c := range map[string]struct {
			make func(path string) error
			says string
		}{
			"a pipe": {func(p string) error { return syscall.Mkfifo(p, 0o600) }, "symbolic link, pipe or device"},
			"a socket": {func(p string) error {
				l, err := net.Listen("unix", p)
				if err == nil {
					t.Cleanup(func() { _ = l.Close() })
				}
				return err
			}, "symbolic link, pipe or device"},
			"a huge file": {func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 1<<40)) }, "larger than"},
		} {
			folder, err := os.MkdirTemp("", "gov") // short, for the socket's sake
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(folder) })
			write(t, filepath.Join(folder, "a.yaml"), "name: inside\nrules: []\n")
			path := filepath.Join(folder, "governance.yaml")
			require.NoError(t, c.make(path), what)
			for _, target := range []string{folder, path} {
				said, most, err := s.putFolder(t, target)
				require.Error(t, err, what)
				if target == folder {
					require.Contains(t, said, c.says, what)
				}
				require.Less(t, most, int64(128<<20), what)
			}
		}
	})
}

// Who leaves a field out is denied where namespaces are strict.
func fieldsLeftOut(t *testing.T, s *secured, firm string) {
	begin := s.calls(t, firm, s.policy(t, firm, "rules.yaml", "rules: [{name: no-prod, condition: {field: env, operator: eq, value: prod}, action: deny}]\n"))
	for i, c := range []object{{}, {"env": nil}, {"ENV": "dev"}, {"env.": "dev"}, {"Env": "dev"}} {
		outcome, decision := begin(i%3, object{"context": c})
		require.Equal(t, denied, outcome, "%v: %v", c, decision)
	}
	outcome, _ := begin(0, object{"context": object{"env": "dev"}})
	require.Equal(t, admitted, outcome, "the counterproof")
}

// Names that mean something elsewhere mean nothing here, and what is nested too deeply is
// refused.
func oddFields(t *testing.T, s *secured) {
	begin := s.calls(t, s.admin, s.policy(t, s.admin, "rules.yaml", `rules:
- {name: proto, condition: {field: __proto__.admin, operator: eq, value: true}, action: deny}
- {name: dots, condition: {field: a.b.c, operator: eq, value: secret}, action: deny}
`, "limits.yaml", "max_tool_calls: 1000\n"))
	for text, want := range map[string]string{
		`{"__proto__": {"x": 1}, "constructor": {"prototype": {"admin": true}}}`: admitted,
		`{"__proto__": {"admin": true}}`:                                         denied,
		`{"a": {"b": {"c": "secret"}}}`:                                          denied,
		`{"a.b.c": "secret"}`:                                                    denied,
		`{"a.b": {"c": "secret"}}`:                                               admitted, // a key with a dot is one only as a whole
		`{"a": "text"}`:                                                          admitted,
		`{"a": [1, {"b": 2}]}`:                                                   admitted,
		`{"": {"": ""}, ".": 1, "..": 2}`:                                        admitted,
	} {
		for i := range s.Nodes {
			outcome, decision := begin(i, object{"contextJson": text})
			require.Equal(t, want, outcome, "%s: %v", text, decision)
		}
	}
	deep := strings.Repeat(`{"a":`, 1000) + "1" + strings.Repeat("}", 1000)
	s.unchanged(t, func() {
		for _, field := range []string{"contextJson", "argumentsJson"} {
			a, err := s.ask(1, s.admin, "CallService/BeginCall", object{"sessionId": strings.ReplaceAll(t.Name(), "/", "."), "callId": "deep", "tool": "t", field: deep})
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", a.Code(), a)
			require.Contains(t, a.Message(), field)
		}
	})
}

// A text is no number: whoever sends one gets past no rule, one that denies or one that
// allows.
func textsForNumbers(t *testing.T, s *secured, firm string) {
	for _, token := range []string{s.admin, firm} {
		for _, c := range []struct{ name, text, want string }{
			{"deny", "rules: [{name: r, condition: {field: n, operator: gt, value: 9}, action: deny}]\n", admitted},
			{"allow", "rules: [{name: r, condition: {field: n, operator: lt, value: 9}, action: allow}]\ndefaults: {action: deny}\n", admitted},
		} {
			t.Run(c.name+fmt.Sprint(token == firm), func(t *testing.T) {
				begin := s.calls(t, token, s.policy(t, token, "rules.yaml", c.text))
				for i, n := range []any{"10", "5", []any{1}, object{"x": 1}} {
					outcome, decision := begin(i%3, object{"context": object{"n": n}})
					require.Equal(t, denied, outcome, "%v: %v", n, decision)
				}
				outcome, decision := begin(0, object{"context": object{"n": 5}})
				require.Equal(t, c.want, outcome, "the counterproof: %v", decision)
			})
		}
	}
}

// What the service knows by itself no context can tell it.
func claimsOfAgents(t *testing.T, s *secured) {
	begin := s.calls(t, s.admin, s.policy(t, s.admin, "rules.yaml", `rules:
- {name: admins, condition: {field: agent_id, operator: eq, value: admin}, action: allow, priority: 9}
- {name: used-up, condition: {field: call_count, operator: gte, value: 2}, action: deny, priority: 8}
- {name: tools, condition: {field: tool_calls.u, operator: gte, value: 1}, action: deny, priority: 7}
- {name: marked, condition: {field: metadata.env, operator: eq, value: prod}, action: deny, priority: 6}
- {name: exec, condition: {field: tool_name, operator: eq, value: exec}, action: deny, priority: 5}
`, "limits.yaml", "max_tool_calls: 1000\n"))
	lies := object{"agent_id": "admin", "call_count": 0, "attempts": 0, "tool_calls": object{"u": 0}, "tool_calls.u": 0, "metadata": object{"env": "dev"}, "metadata.env": "dev",
		"session_id": "other", "tool_name": "t", "elapsed_seconds": 0}
	is := func(want, rule string, fields object) {
		t.Helper()
		fields["context"] = lies
		outcome, decision := begin(1, fields)
		require.Equal(t, want, outcome, decision)
		require.Equal(t, rule, fmt.Sprint(decision["matchedRule"]))
	}
	is(denied, "exec", object{"tool": "exec"})
	is(denied, "marked", object{"metadata": object{"env": "prod"}})
	outcome, _ := begin(0, object{"tool": "u", "context": lies})
	require.Equal(t, admitted, outcome)
	is(denied, "tools", object{})
	outcome, _ = begin(2, object{"tool": "v", "context": object{"agent_id": "a-1"}})
	require.Equal(t, denied, outcome)
}

// A secret or an id of one session says nothing in another, and nobody believes what a
// context says of signatures.
func claimsOfOthers(t *testing.T, s *secured) {
	p := s.policy(t, s.admin, "rules.yaml", "rules: [{name: may, condition: {field: session_id, operator: eq, value: trusted}, action: allow}]\ndefaults: {action: deny}\n")
	begin := s.calls(t, s.admin, p)
	for i, c := range []object{
		{"session_id": "trusted"}, {"session_id": "trusted", "signature": "AAAA", "claims": object{"session_id": "trusted", "exp": 9999999999}}, {"sessionId": "trusted"},
	} {
		outcome, _ := begin(i%3, object{"context": c})
		require.Equal(t, denied, outcome, c)
	}
}

// lines are what a node has written to its audit, as far as it is complete.
func (s *secured) lines(t *testing.T, i int) (all []object) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Nodes[i].Dir, "audit.jsonl"))
	require.NoError(t, err)
	for line := range bytes.Lines(content) {
		var o object
		if json.Unmarshal(line, &o) == nil {
			all = append(all, o)
		}
	}
	return all
}

// A policy that computes without end is given up, denies, and is an error in the audit.
func policiesThatTakeTooLong(t *testing.T, s *secured) {
	p := s.policy(t, s.admin, "policy.rego", `package agentos
allow if { some i in numbers.range(1, 3000); some j in numbers.range(1, 3000); i + j == -1 }
allow if input.tool_name == "fast"
`)
	begin := s.calls(t, s.admin, p)
	s.bounded(t, func(i int) {
		outcome, decision := begin(i, object{"tool": "slow"})
		require.Equal(t, denied, outcome, decision)
		require.Equal(t, "EVAL_BUDGET", decision["category"], decision)
		require.Eventually(t, func() bool {
			for _, line := range s.lines(t, i) {
				if line["session_id"] == p && line["error"] == true {
					return true
				}
			}
			return false
		}, 10*time.Second, 20*time.Millisecond, "no line of the audit says so")
	})
}

// An endpoint that is down, late, or says anything but a plain answer denies.
func guardrailsThatFail(t *testing.T, s *secured) {
	var answer atomic.Pointer[func(w http.ResponseWriter, r *http.Request)]
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) }))
	end := sync.OnceFunc(func() { close(over); server.Close() })
	defer end()
	begin := s.calls(t, s.admin, s.policy(t, s.admin, "policy.yaml", "max_tool_calls: 1000\nguardrails:\n- {name: g, url: '"+server.URL+"/', timeout_ms: 300}\n"))
	says := func(status int, text string) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for what, c := range map[string]struct {
		do   func(w http.ResponseWriter, r *http.Request)
		want string
	}{
		"the counterproof":       {says(200, `{"decision": "allow"}`), admitted},
		"garbage":                {says(200, "\x00\xff{"), denied},
		"half an answer":         {says(200, `{"decision": "allow"`), denied},
		"another word":           {says(200, `{"decision": "ALLOW"}`), denied},
		"no word":                {says(200, `{"allow": true}`), denied},
		"two words":              {says(200, `{"decision": "deny", "decision": "allow"}`), denied},
		"a failure that allows":  {says(500, `{"decision": "allow"}`), denied},
		"an error that allows":   {says(200, `{"decision": "allow", "error": "the model did not answer"}`), denied},
		"far too long an answer": {says(200, `{"decision": "allow", "reason": "`+strings.Repeat("x", 10<<20)+`"}`), denied},
		"an answer that is late": {func(http.ResponseWriter, *http.Request) { <-over }, denied},
		"elsewhere":              {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, denied},
	} {
		answer.Store(&c.do)
		for i := range s.Nodes {
			outcome, decision := begin(i, object{})
			require.Equal(t, c.want, outcome, "%s: %v", what, decision)
		}
	}
	end()
	outcome, decision := begin(0, object{})
	require.Equal(t, denied, outcome, "down: %v", decision)
}
