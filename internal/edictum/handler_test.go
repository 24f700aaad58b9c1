package edictum_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/edictum"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// node is a real node on the memory store, behind the interface of the SDKs.
func node(t *testing.T, keys *edictum.Keys) *httptest.Server {
	t.Helper()
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	h := edictum.New(s.Handler(), keys, slog.New(slog.DiscardHandler))
	listener := httptest.NewServer(h)
	t.Cleanup(func() {
		listener.Close()
		require.NoError(t, h.Close())
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	return listener
}

// The keys of the scripts are their holders' names.
func scriptKeys(t *testing.T) *edictum.Keys {
	t.Helper()
	entry := func(holder, name, namespace, role string) string {
		return fmt.Sprintf("  - {name: %s, hash: %q, namespace: %s, role: %s}\n", name, edictum.HashOf(holder), namespace, role)
	}
	keys, err := edictum.ParseKeys([]byte("keys:\n" + entry("agent", "laptop", "default", "agent") +
		entry("nameless", "other", "default", "agent") + entry("operator", "desk", "default", "operator") +
		entry("writer", "writer", "default", "operator") + entry("elsewhere", "far", "tenant-2", "agent")))
	require.NoError(t, err)
	return keys
}

// The scripts in testdata: each is what it reads like.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			n := node(t, scriptKeys(t))
			f, err := os.Open(file)
			require.NoError(t, err)
			defer func() { _ = f.Close() }()
			lines := bufio.NewScanner(f)
			lines.Buffer(nil, 1<<20)
			var sent, id string
			steps := 0
			for at := 1; lines.Scan(); at++ {
				line := lines.Text()
				switch {
				case strings.HasPrefix(line, ">"):
					sent = line
				case sent != "":
					steps++
					id = step(t, n, fmt.Sprintf("%s:%d", file, at), sent, line, id)
					sent = ""
				}
			}
			require.NoError(t, lines.Err())
			require.Greater(t, steps, 10)
		})
	}
}

// step sends a request and looks at the answer. It returns the id that ID stands for.
func step(t *testing.T, n *httptest.Server, at, sent, want, id string) string {
	t.Helper()
	parts := strings.SplitN(sent, " ", 5)
	body := ""
	if len(parts) == 5 {
		body = parts[4]
	}
	status, answer := ask(t, n, parts[1], parts[2], strings.ReplaceAll(parts[3], "ID", id), body)
	wantStatus, wantBody, _ := strings.Cut(want, " ")
	require.Equal(t, wantStatus, fmt.Sprint(status), "%s: %s", at, answer)
	var got, expected any
	require.NoError(t, json.Unmarshal([]byte(answer), &got), "%s: %s", at, answer)
	if made, ok := got.(map[string]any)["id"].(string); ok && status == http.StatusCreated {
		id = made
	}
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(wantBody, `"ID"`, `"`+id+`"`)), &expected), at)
	require.True(t, like(expected, got), "%s\ngot  %s\nwant %s", at, answer, wantBody)
	return id
}

// like compares, where * in what is expected stands for anything.
func like(expected, got any) bool {
	switch e := expected.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(e) {
			return false
		}
		for k := range e {
			if v, there := g[k]; !there || !like(e[k], v) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(e) {
			return false
		}
		for i := range e {
			if !like(e[i], g[i]) {
				return false
			}
		}
		return true
	case string:
		if prefix, open := strings.CutSuffix(e, "*"); open {
			g, ok := got.(string)
			return e == "*" || ok && strings.HasPrefix(g, prefix)
		}
	}
	return expected == got
}

func ask(t *testing.T, n *httptest.Server, holder, method, path, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, n.URL, strings.NewReader(body))
	require.NoError(t, err)
	// As it stands: Go's own would clean it.
	req.URL.Opaque = "//" + req.URL.Host + path
	if holder != "nobody" {
		req.Header.Set("Authorization", "Bearer "+holder)
	}
	if holder == "agent" || holder == "elsewhere" {
		req.Header.Set("X-Edictum-Agent-Id", "writer")
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	return res.StatusCode, string(b)
}

// A guarded node asks its callers for tokens.
type guarded struct {
	t     *testing.T
	store *storage.Memory
	*httptest.Server
}

func guardedNode(t *testing.T) *guarded {
	t.Helper()
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a", Authentication: true})
	require.NoError(t, err)
	h := edictum.New(s.Handler(), nil, slog.New(slog.DiscardHandler))
	n := httptest.NewServer(h)
	t.Cleanup(func() {
		n.Close()
		require.NoError(t, h.Close())
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	return &guarded{t, store, n}
}

// token puts a token into the state, and returns its text.
func (n *guarded) token(id string, agents []string, roles ...v1.Role) string {
	n.t.Helper()
	return n.tokenOf(id, "staging", agents, roles...)
}

func (n *guarded) tokenOf(id, environment string, agents []string, roles ...v1.Role) string {
	n.t.Helper()
	const secret = "a-secret-of-enough-letters-00000"
	tok := session.Token{ID: id, Hash: sha256.Sum256([]byte(secret)), Agents: agents, Environment: environment}
	for _, r := range roles {
		tok.Roles |= 1 << r
	}
	a := n.store.Apply(n.t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: tok})[0]
	require.NoError(n.t, a.Failure())
	return "gn_team." + id + "." + secret
}

func (n *guarded) ask(token, agent, method, path, body string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequest(method, n.URL+path, strings.NewReader(body))
	require.NoError(n.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("X-Edictum-Agent-Id", agent)
	res, err := http.DefaultClient.Do(req)
	require.NoError(n.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return res.StatusCode, string(raw)
}

// A token of the service is a key: its roles and its scope are those of the API, and it
// ends with it.
func TestTokensAreKeys(t *testing.T) {
	n := guardedNode(t)
	bot := n.token("abot", []string{"bot-*"}, v1.Role_ROLE_AGENT)
	person := n.token("desk", nil, v1.Role_ROLE_APPROVER, v1.Role_ROLE_AGENT)
	reader := n.token("read", nil, v1.Role_ROLE_AUDITOR)

	status, body := n.ask(bot, "bot-1", "POST", "/v1/sessions/k/increment", `{}`)
	require.Equal(t, 200, status, body)
	status, body = n.ask(bot, "other", "POST", "/v1/sessions/k/increment", `{}`)
	require.Equal(t, 403, status, body)
	status, body = n.ask(reader, "x", "POST", "/v1/sessions/k/increment", `{}`)
	require.Equal(t, 403, status, body)
	for _, unknown := range []string{"gn_team.none.a-secret-of-enough-letters-00000", "gn_team.abot.x", "gnk_x", ""} {
		status, body = n.ask(unknown, "x", "GET", "/v1/sessions/k", "")
		require.Equal(t, 401, status, body)
	}
	status, body = n.ask(bot, "bot-1", "POST", "/v1/approvals", `{"agent_id":"bot-1","tool_name":"t","tool_args":{},"message":"may I?","timeout":60}`)
	require.Equal(t, 201, status, body)
	var made struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(body), &made))
	status, body = n.ask(bot, "bot-1", "PUT", "/v1/approvals/"+made.ID, `{"approved":true}`)
	require.Equal(t, 403, status, body)
	status, body = n.ask(person, "desk", "PUT", "/v1/approvals/"+made.ID, `{"approved":true}`)
	require.Equal(t, 200, status, body)
	require.Contains(t, body, "token:desk")
	require.EqualValues(t, 1, n.store.Apply(t.Context(), &session.RevokeToken{NS: "team", By: session.Maker{Client: "t"}, ID: "abot"})[0].Result.Value)
	status, body = n.ask(bot, "bot-1", "POST", "/v1/sessions/k/increment", `{}`)
	require.Equal(t, 401, status, body)
}

// Which ruleset an agent has is not the agent's to say, by no method and by no value; and who
// is bound to some agents assigns to those alone.
func TestAgentsAssignNothing(t *testing.T) {
	n := guardedNode(t)
	bot := n.token("abot", []string{"bot-*"}, v1.Role_ROLE_AGENT)
	bound := n.token("bound", []string{"bot-*"}, v1.Role_ROLE_AGENT, v1.Role_ROLE_APPROVER)
	desk := n.token("desk", nil, v1.Role_ROLE_AGENT, v1.Role_ROLE_APPROVER)
	for what, x := range map[string]struct {
		token, method, path, body string
		status                    int
	}{
		"agent, by the method":          {bot, "PUT", "agents/bot-1/ruleset", `{"name":"lax"}`, 403},
		"agent, by a value":             {bot, "PUT", "sessions/edictum/assignment/bot-1", `{"value":"lax"}`, 403},
		"agent, by a number":            {bot, "POST", "sessions/edictum/assignment/bot-1/increment", `{}`, 403},
		"agent, by removing it":         {bot, "DELETE", "sessions/edictum/assignment/bot-1", "", 403},
		"agent, a signature":            {bot, "PUT", "sessions/edictum/signature/production/r", `{"value":"x"}`, 403},
		"operator, by a value":          {desk, "PUT", "sessions/edictum/assignment/bot-1", `{"value":"lax"}`, 403},
		"bound operator, another agent": {bound, "PUT", "agents/victim/ruleset", `{"name":"lax"}`, 403},
		"bound operator, its agent":     {bound, "PUT", "agents/bot-1/ruleset", `{"name":"lax"}`, 200},
		"operator":                      {desk, "PUT", "agents/victim/ruleset", `{"name":"lax"}`, 200},
		"agent, what it has":            {bot, "GET", "sessions/edictum/assignment/none", "", 404},
	} {
		status, body := n.ask(x.token, "bot-1", x.method, "/v1/"+x.path, x.body)
		require.Equal(t, x.status, status, "%s: %s", what, body)
	}
}

// Whoever has an environment reads and puts its rulesets and those of no other, by no
// method; who has none names the one that he means.
func TestEnvironmentsBind(t *testing.T) {
	n := guardedNode(t)
	roles := []v1.Role{v1.Role_ROLE_AGENT, v1.Role_ROLE_POLICY_AUTHOR, v1.Role_ROLE_APPROVER}
	bound, any := n.tokenOf("bound", "staging", nil, roles...), n.tokenOf("any0", "", nil, roles...)
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	yaml := func(message string) string {
		return "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: r}\ndefaults: {mode: enforce}\nrules:\n" +
			"  - {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: block, message: " + message + "}}\n"
	}
	kept := func(env, message string) string { // where the signature is
		return fmt.Sprintf("edictum/signature/%s/r/%x", env, sha256.Sum256([]byte(yaml(message))))
	}
	put := func(message string) string {
		raw := yaml(message)
		body, err := json.Marshal(map[string]string{
			"yaml": raw, "public_key": hex.EncodeToString(public), "signature": base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(raw))),
		})
		require.NoError(t, err)
		return string(body)
	}
	for _, x := range []struct {
		token, method, path, body string
		status                    int
		says                      string
	}{
		{any, "PUT", "rulesets/r?env=production", put("one"), 200, `"env":"production"`},
		{any, "PUT", "rulesets/r?env=staging", put("two"), 200, `"env":"staging"`},
		{any, "GET", "rulesets/r/current", "", 200, `"env":"production"`},
		{bound, "GET", "rulesets/r/current", "", 200, `"env":"staging"`},
		{bound, "GET", "rulesets/r/current?env=staging", "", 200, `"env":"staging"`},
		{bound, "GET", "rulesets/r/current?env=production", "", 403, "bound to the environment"},
		{bound, "GET", "rulesets/none/current?env=production", "", 403, "bound to the environment"},
		{bound, "GET", "stream?bundle_name=r&env=production", "", 403, "bound to the environment"},
		{bound, "PUT", "rulesets/r?env=production", put("mine"), 403, "bound to the environment"},
		{bound, "PUT", "rulesets/r?env=staging", put("mine"), 200, `"env":"staging"`},
		{any, "GET", "rulesets/r/current?env=production", "", 200, "message: one"},
		{bound, "GET", "sessions/" + kept("production", "one"), "", 404, "no value"},
		{bound, "GET", "sessions/" + kept("staging", "mine"), "", 200, "signature"},
		{bound, "POST", "sessions/batch", `{"keys":["` + kept("production", "one") + `"]}`, 200, `{"values":{}}`},
		{any, "POST", "sessions/batch", `{"keys":["` + kept("production", "one") + `"]}`, 200, "public_key"},
	} {
		status, body := n.ask(x.token, "bot", x.method, "/v1/"+x.path, x.body)
		require.Equal(t, x.status, status, "%s %s: %s", x.method, x.path, body)
		require.Contains(t, body, x.says, "%s %s", x.method, x.path)
	}

	keys, err := edictum.ParseKeys([]byte(fmt.Sprintf("keys:\n  - {name: a, hash: %q, environment: staging}\n", edictum.HashOf("agent"))))
	require.NoError(t, err)
	status, body := ask(t, node(t, keys), "agent", http.MethodGet, "/v1/rulesets/r/current?env=production", "")
	require.Equal(t, 403, status, body)
}

// Streams count as followers of their namespace.
func TestStreamsHaveAQuota(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	h := edictum.New(s.Handler(), scriptKeys(t), slog.New(slog.DiscardHandler))
	h.Enter = s.Follower
	n := httptest.NewServer(h)
	t.Cleanup(func() {
		n.CloseClientConnections()
		n.Close()
		require.NoError(t, h.Close())
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	require.NoError(t, store.Apply(t.Context(), &session.PutQuotas{NS: "default", By: session.Maker{Client: "t"}, Quotas: session.Quotas{Followers: 1}})[0].Failure())
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	open := func(ctx context.Context) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL+"/v1/stream?bundle_name=x", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer agent")
		res, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	require.Equal(t, http.StatusOK, open(ctx).StatusCode)
	full := open(t.Context())
	require.Equal(t, http.StatusTooManyRequests, full.StatusCode)
	text, err := io.ReadAll(full.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "followers")
	hangUp()
	require.Eventually(t, func() bool { return open(t.Context()).StatusCode == http.StatusOK }, 10*time.Second, 20*time.Millisecond)
}

// The stream of a token ends with the token, though others of its namespace keep up to
// date what streams tell.
func TestStreamsOfRevokedTokensEnd(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a", Authentication: true})
	require.NoError(t, err)
	h := edictum.New(s.Handler(), nil, slog.New(slog.DiscardHandler))
	n := httptest.NewServer(h)
	t.Cleanup(func() {
		n.CloseClientConnections()
		n.Close()
		require.NoError(t, h.Close())
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	const secret = "a-secret-of-enough-letters-00000"
	open := func(id, query string) *http.Response {
		tok := session.Token{ID: id, Hash: sha256.Sum256([]byte(secret)), Roles: 1 << v1.Role_ROLE_AGENT}
		require.NoError(t, store.Apply(t.Context(), &session.PutToken{NS: "team", By: session.Maker{Client: "t"}, Token: tok})[0].Failure())
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		t.Cleanup(cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL+"/v1/stream"+query, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer gn_team."+id+"."+secret)
		req.Header.Set("X-Edictum-Agent-Id", "bot")
		res, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	gone := []*http.Response{open("gone", "?bundle_name=x"), open("all0", "")}
	stays := open("stay", "?bundle_name=x")
	for _, id := range []string{"gone", "all0"} {
		require.EqualValues(t, 1, store.Apply(t.Context(), &session.RevokeToken{NS: "team", By: session.Maker{Client: "t"}, ID: id})[0].Result.Value)
	}
	for _, res := range gone {
		_, err := io.ReadAll(res.Body)
		require.Error(t, err, "it breaks off, so that the SDK comes again")
		require.NoError(t, res.Request.Context().Err(), "the node ended it")
	}
	require.NoError(t, stays.Request.Context().Err())
}
