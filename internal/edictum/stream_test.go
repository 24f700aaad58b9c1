package edictum_test

import (
	"bufio"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/edictum"
	"example.com/govnode/internal/server"
	"example.com/govnode/storage"
)

func shells(message string) string {
	return "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: shells}\ndefaults: {mode: enforce}\n" +
		"rules:\n  - {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: block, message: '" + message + "'}}\n"
}

func putShells(t *testing.T, n *httptest.Server, message string) {
	t.Helper()
	body, err := json.Marshal(map[string]string{"yaml": shells(message)})
	require.NoError(t, err)
	status, answer := ask(t, n, "operator", http.MethodPut, "/v1/rulesets/shells", string(body))
	require.Equal(t, http.StatusOK, status, answer)
}

// follow opens a stream and returns what reads its next event.
func follow(t *testing.T, n *httptest.Server, query string) (next func() (name string, data map[string]any, err error)) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.URL+"/v1/stream?"+query, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer agent")
	req.Header.Set("X-Edictum-Agent-Id", "writer")
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	lines := bufio.NewScanner(res.Body)
	return func() (name string, data map[string]any, err error) {
		for lines.Scan() {
			line := lines.Text()
			if rest, ok := strings.CutPrefix(line, "event: "); ok {
				name = rest
			}
			if rest, ok := strings.CutPrefix(line, "data: "); ok {
				return name, data, json.Unmarshal([]byte(rest), &data)
			}
		}
		if lines.Err() == nil {
			return "", nil, io.EOF
		}
		return "", nil, lines.Err()
	}
}

// A follower has what is current at once, unless it has it already, and each change.
func TestStream(t *testing.T) {
	n := node(t, scriptKeys(t))
	putShells(t, n, "one")
	next := follow(t, n, "bundle_name=shells")
	name, first, err := next()
	require.NoError(t, err)
	require.Equal(t, "contract_update", name)
	require.Contains(t, first["yaml"], "one")
	name, told, err := next()
	require.NoError(t, err)
	require.Equal(t, "ruleset_updated", name)
	require.Equal(t, map[string]any{"name": "shells", "version": 1.0}, told)
	has := follow(t, n, fmt.Sprintf("bundle_name=shells&policy_version=%s", first["revision_hash"]))
	putShells(t, n, "two")
	for _, f := range []func() (string, map[string]any, error){next, has} {
		name, second, err := f()
		require.NoError(t, err)
		require.Equal(t, "contract_update", name)
		require.Contains(t, second["yaml"], "two", "what it has is not told again")
	}
}

// The SDK for TypeScript names no ruleset: it is told of all of its environment, and
// finds its own among them. Two of which names and environments run together are two.
func TestStreamOfAnEnvironment(t *testing.T) {
	n := node(t, scriptKeys(t))
	put := func(path, message string) {
		body, err := json.Marshal(map[string]string{"yaml": shells(message)})
		require.NoError(t, err)
		status, answer := ask(t, n, "operator", http.MethodPut, "/v1/rulesets/"+path, string(body))
		require.Equal(t, http.StatusOK, status, answer)
	}
	put("b.c?env=a", "one")
	put("c?env=a.b", "two")
	next := follow(t, n, "env=a")
	told := func() (string, any) {
		name, data, err := next()
		require.NoError(t, err)
		require.Equal(t, "ruleset_updated", name)
		return data["name"].(string), data["version"]
	}
	name, version := told()
	require.Equal(t, []any{"b.c", 1.0}, []any{name, version})
	put("c?env=a.b", "three")
	put("d?env=a", "four")
	name, version = told()
	require.Equal(t, []any{"d", 1.0}, []any{name, version})
	put("b.c?env=a", "five")
	name, version = told()
	require.Equal(t, []any{"b.c", 2.0}, []any{name, version})
	status, answer := ask(t, n, "agent", http.MethodGet, "/v1/rulesets/b.c/current?env=a", "")
	require.Equal(t, 200, status)
	require.Contains(t, answer, "five")
}

// A stream never ends well: SDKs would open it again at once, in a loop.
func TestStreamBreaks(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	h := edictum.New(s.Handler(), scriptKeys(t), slog.New(slog.DiscardHandler))
	n := httptest.NewServer(h)
	defer n.Close()
	next := follow(t, n, "bundle_name=shells")
	h.Drain()
	_, _, err = next()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, h.Close())
	require.NoError(t, s.Close())
	require.NoError(t, store.Close())
}

// Nor does a stream hold the end of a node up while what it looks for has no answer.
func TestStreamBreaksWhileItLooks(t *testing.T) {
	asked := make(chan struct{}, 1)
	h := edictum.New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	}), scriptKeys(t), slog.New(slog.DiscardHandler))
	n := httptest.NewServer(h)
	defer n.Close()
	next := follow(t, n, "bundle_name=shells")
	<-asked
	told := time.Now()
	h.Drain()
	_, _, err := next()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, time.Since(told), 10*time.Second, "the SDKs wait for longer")
	require.NoError(t, h.Close())
}

// What a stream cannot follow is refused before it begins.
func TestStreamIsRefused(t *testing.T) {
	n := node(t, scriptKeys(t))
	for _, c := range []struct {
		holder, query string
		status        int
	}{
		{"nobody", "bundle_name=shells", 401},
		{"agent", "bundle_name=no%20name", 400},
		{"agent", "env=no%20name", 400},
		{"nameless", "", 400},
	} {
		status, answer := ask(t, n, c.holder, http.MethodGet, "/v1/stream?"+c.query, "")
		require.Equal(t, c.status, status, answer)
	}
}

// A signature is that of the bytes, or the ruleset is refused.
func TestSignatures(t *testing.T) {
	n := node(t, scriptKeys(t))
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	put := func(yaml, signed string, key string) (int, map[string]any) {
		sig := base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(signed)))
		body, err := json.Marshal(map[string]string{"yaml": yaml, "signature": sig, "public_key": key})
		require.NoError(t, err)
		status, text := ask(t, n, "operator", http.MethodPut, "/v1/rulesets/shells", string(body))
		var answer map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		return status, answer
	}
	status, answer := put(shells("one"), shells("two"), hex.EncodeToString(public))
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, answer["detail"], "it is not that of this ruleset")
	status, _ = ask(t, n, "agent", http.MethodGet, "/v1/rulesets/shells/current", "")
	require.Equal(t, http.StatusNotFound, status)
	for _, key := range []string{hex.EncodeToString(public), base64.StdEncoding.EncodeToString(public)} {
		status, answer = put(shells("one"), shells("one"), key)
		require.Equal(t, http.StatusOK, status, answer)
		require.Equal(t, key, answer["public_key"])
		sig, err := base64.StdEncoding.DecodeString(answer["signature"].(string))
		require.NoError(t, err)
		raw, err := base64.StdEncoding.DecodeString(answer["yaml_bytes"].(string))
		require.NoError(t, err)
		require.True(t, ed25519.Verify(public, raw, sig))
	}
	putShells(t, n, "unsigned")
	_, text := ask(t, n, "agent", http.MethodGet, "/v1/rulesets/shells/current", "")
	require.Contains(t, text, `"signature":null`, "one of other bytes is not shown")
}

// A ruleset that is refused leaves that which is current as it is, with its signature.
func TestRefusedRulesetsLeaveSignatures(t *testing.T) {
	n := node(t, scriptKeys(t))
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	put := func(yaml string) int {
		sig := base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(yaml)))
		body, err := json.Marshal(map[string]string{"yaml": yaml, "signature": sig, "public_key": hex.EncodeToString(public)})
		require.NoError(t, err)
		status, _ := ask(t, n, "operator", http.MethodPut, "/v1/rulesets/shells", string(body))
		return status
	}
	require.Equal(t, http.StatusOK, put(shells("one")))
	_, before := ask(t, n, "agent", http.MethodGet, "/v1/rulesets/shells/current", "")
	require.NotContains(t, before, `"signature":null`)
	require.Equal(t, http.StatusUnprocessableEntity, put("kind: Ruleset"))
	_, after := ask(t, n, "agent", http.MethodGet, "/v1/rulesets/shells/current", "")
	require.Equal(t, before, after)
}
