package edictum_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/edictum"
	"example.com/govnode/internal/lobby"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What is asked of the API for a request of an SDK, and what becomes of its answers.

// Each code of the API has its status, of which none is one that an SDK would repeat, and
// its words.
func TestStatusOfEachCode(t *testing.T) {
	for code, want := range map[connect.Code]int{
		connect.CodeNotFound: 404, connect.CodeUnauthenticated: 401, connect.CodePermissionDenied: 403, connect.CodeFailedPrecondition: 409,
		connect.CodeAlreadyExists: 409, connect.CodeAborted: 409, connect.CodeResourceExhausted: 429, connect.CodeInvalidArgument: 400,
		connect.CodeOutOfRange: 400, connect.CodeUnimplemented: 409, connect.CodeInternal: 409, connect.CodeDataLoss: 409,
	} {
		_, ask := before(t, func(string, map[string]any) (string, error) {
			return "", connect.NewError(code, errors.New("in words"))
		})
		for _, x := range [][3]string{
			{"GET", "/v1/sessions/k", ""}, {"PUT", "/v1/sessions/k", `{"value":"v"}`}, {"DELETE", "/v1/sessions/k", ""},
			{"POST", "/v1/sessions/k/increment", "{}"}, {"POST", "/v1/sessions/batch", `{"keys":["k"]}`},
			{"POST", "/v1/approvals", `{"tool_name":"t"}`}, {"GET", "/v1/approvals/A", ""}, {"PUT", "/v1/approvals/A", `{"approved":true}`}, {"GET", "/v1/approvals", ""},
			{"POST", "/v1/events", `{"events":[{"a":1}]}`}, {"GET", "/v1/events?session_id=s", ""},
			{"GET", "/v1/rulesets/r/current", ""}, {"PUT", "/v1/rulesets/r", `{"yaml":"y"}`}, {"PUT", "/v1/agents/bot/ruleset", `{"name":"r"}`},
		} {
			w := ask("operator", x[0], x[1], x[2])
			require.Equal(t, want, w.Code, "%v for %s %s", code, x[0], x[1])
			require.JSONEq(t, `{"detail": "in words"}`, w.Body.String(), "%v for %s %s", code, x[0], x[1])
			require.Equal(t, want == 401, w.Header().Get("WWW-Authenticate") == "Bearer")
		}
	}
}

// What an SDK asks people comes to the API whole, with what it leaves out filled in; and
// what is none is refused by its field.
func TestWhatIsAskedOfPeople(t *testing.T) {
	o, ask := before(t, func(string, map[string]any) (string, error) { return `{"approval": {"id": "A"}}`, nil })
	for _, x := range []struct {
		body, want string // the request, or the field that is wrong
	}{
		{`{"tool_name":"t"}`, `{"agentId":"bot","argumentsJson":"{}","timeout":"300s","tool":"t"}`},
		{`{"tool_name":"t","message":"m","session_id":"s","timeout":60,"timeout_action":"allow","tool_args":{"b":1,"a":2}}`,
			`{"agentId":"bot","argumentsJson":"{\"b\":1,\"a\":2}","message":"m","onTimeout":"ON_TIMEOUT_ALLOW","sessionId":"s","timeout":"60s","tool":"t"}`},
		{`{"tool_name":"t","timeout_effect":"allow","timeout":1,"tool_args":null,"message":null}`, `{"agentId":"bot","argumentsJson":"{}","onTimeout":"ON_TIMEOUT_ALLOW","timeout":"1s","tool":"t"}`},
		{`{"tool_name":"t","timeout_action":"block","timeout_effect":"allow","timeout":86400}`, `{"agentId":"bot","argumentsJson":"{}","timeout":"86400s","tool":"t"}`},
		{`{"tool_name":"t","timeout_action":"deny","timeout":1.5}`, `{"agentId":"bot","argumentsJson":"{}","timeout":"1.500s","tool":"t"}`},
		{`{"tool_name":"t","timeout":0.5}`, "timeout"}, {`{"tool_name":"t","timeout":86401}`, "timeout"}, {`{"tool_name":"t","timeout":"5"}`, "timeout"},
		{`{"tool_name":"t","timeout_action":"maybe"}`, "timeout_action"}, {`{"tool_name":"t","timeout_effect":"maybe"}`, "timeout_action"},
		{`{"tool_name":"t","tool_args":[1]}`, "tool_args"}, {`{}`, "tool_name"}, {`{"tool_name":null}`, "tool_name"}, {`{"tool_name":"t","message":5}`, "message"},
		{`{"tool_name":"t","session_id":5}`, "session_id"}, {`[]`, "body"}, {`{`, "body"},
	} {
		o.asked = map[string][]string{}
		w := ask("agent", "POST", "/v1/approvals", x.body)
		if !strings.HasPrefix(x.want, "{") {
			require.Equal(t, 400, w.Code, x.body)
			require.Contains(t, w.Body.String(), `{"detail":"`+x.want+":", x.body)
			require.Empty(t, o.asked["Request"])
			continue
		}
		require.Equal(t, 201, w.Code, "%s: %s", x.body, w.Body)
		require.Equal(t, []string{x.want}, o.asked["Request"])
	}
	for path, method := range map[string]string{"/v1/approvals/A/b": "GET", "/v1/approvals/A/": "GET", "/v1/events/x": "GET", "/v1/rulesets/r": "POST", "/v1/rulesets/r/old": "GET", "/v1/rulesets/": "PUT", "/v1/agents/a": "PUT", "/v1/agents/a/ruleset/b": "PUT"} {
		w := ask("operator", method, path, "{}")
		require.Contains(t, []int{404, 405}, w.Code, path)
	}
	for _, x := range [][2]string{{"POST", "/v1/approvals/A"}, {"DELETE", "/v1/approvals"}, {"DELETE", "/v1/events"}, {"PATCH", "/v1/sessions/k"}, {"POST", "/v1/stream"}, {"POST", "/v1/rulesets/r/current"}, {"GET", "/v1/agents/a/ruleset"}} {
		require.Equal(t, 405, ask("operator", x[0], x[1], "{}").Code, x)
	}
}

// Each state of an approval has its word, and the last vote is the one that decided.
func TestHowApprovalsAreShown(t *testing.T) {
	const ballots = `"ballots": [{"approver": "amy", "reason": "one"}, {"approver": "bob", "reason": "two"}]`
	for _, x := range []struct{ approval, status, by, why string }{
		{`"state": "APPROVAL_STATE_PENDING", ` + ballots, "pending", "null", "null"},
		{`"state": "APPROVAL_STATE_APPROVED", ` + ballots, "approved", `"bob"`, `"two"`},
		{`"state": "APPROVAL_STATE_USED", ` + ballots, "approved", `"bob"`, `"two"`},
		{`"state": "APPROVAL_STATE_DENIED", ` + ballots, "denied", `"bob"`, `"two"`},
		{`"state": "APPROVAL_STATE_CANCELLED"`, "denied", "null", "null"},
		{`"state": "APPROVAL_STATE_EXPIRED", ` + ballots, "timeout", "null", "null"},
		{`"state": "APPROVAL_STATE_APPROVED", "byTimeout": true, ` + ballots, "timeout", "null", "null"},
		{`"state": "APPROVAL_STATE_DENIED", "byTimeout": true`, "timeout", "null", "null"},
	} {
		_, ask := before(t, func(string, map[string]any) (string, error) {
			return `{"approval": {"id": "A", "agentId": "bot", "tool": "t", "arguments": "{\"a\":1}", "reason": "m", "timeout": "90s", "sessionId": "s", "onTimeout": "ON_TIMEOUT_ALLOW", ` + x.approval + `}}`, nil
		})
		for _, how := range [][3]string{{"GET", "/v1/approvals/A", ""}, {"PUT", "/v1/approvals/A", `{"approved": false, "reason": "r"}`}} {
			w := ask("operator", how[0], how[1], how[2])
			require.Equal(t, 200, w.Code)
			var got map[string]any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
			require.NotEmpty(t, got["created_at"])
			delete(got, "created_at")
			text, err := json.Marshal(got)
			require.NoError(t, err)
			require.JSONEq(t, fmt.Sprintf(`{"id": "A", "status": %q, "agent_id": "bot", "tool_name": "t", "tool_args": {"a": 1}, "message": "m", "timeout": 90,
				"timeout_action": "allow", "session_id": "s", "decided_by": %s, "decision_reason": %s}`, x.status, x.by, x.why), string(text))
		}
	}
	o, ask := before(t, func(string, map[string]any) (string, error) {
		return `{"approval": {"id": "A", "arguments": "{\"a\":…"}}`, nil
	})
	w := ask("operator", "PUT", "/v1/approvals/A", `{"approved": true, "reason": "r"}`)
	require.Contains(t, w.Body.String(), `"tool_args":"{\"a\":…"`, "what was cut is a text")
	require.Contains(t, w.Body.String(), `"session_id":null`)
	require.Contains(t, w.Body.String(), `"timeout_action":"block"`)
	ask("operator", "PUT", "/v1/approvals/B", `{"approved": false}`)
	require.Equal(t, []string{`{"approver":"desk","decision":"VOTE_APPROVE","id":"A","reason":"r"}`, `{"approver":"desk","decision":"VOTE_DENY","id":"B"}`}, o.asked["Decide"])
	require.Equal(t, 400, ask("operator", "PUT", "/v1/approvals/A", `{"approved": "yes"}`).Code)
	require.Equal(t, 403, ask("agent", "PUT", "/v1/approvals/A", `{"approved": true}`).Code)
	require.Len(t, o.asked["Decide"], 2)
}

// A list of approvals has all pages, of the session and in the state that is asked for.
func TestListsOfApprovals(t *testing.T) {
	o, ask := before(t, func(_ string, request map[string]any) (string, error) {
		switch request["pageToken"] {
		case nil:
			return `{"approvals": [{"id": "A", "state": "APPROVAL_STATE_PENDING"}, {"id": "B", "state": "APPROVAL_STATE_DENIED"}], "nextPageToken": "two"}`, nil
		case "two":
			return `{"nextPageToken": "three"}`, nil
		}
		return `{"approvals": [{"id": "C", "state": "APPROVAL_STATE_PENDING"}]}`, nil
	})
	ids := func(query string) (ids []string) {
		w := ask("operator", "GET", "/v1/approvals"+query, "")
		require.Equal(t, 200, w.Code, w.Body)
		var got struct{ Approvals []struct{ ID string } }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		for _, a := range got.Approvals {
			ids = append(ids, a.ID)
		}
		return ids
	}
	require.Equal(t, []string{"A", "B", "C"}, ids(""))
	require.Equal(t, []string{"A", "C"}, ids("?status=pending"))
	require.Equal(t, []string{"B"}, ids("?status=denied"))
	require.Nil(t, ids("?status=timeout"))
	require.Equal(t, []string{`{}`, `{"pageToken":"two"}`, `{"pageToken":"three"}`}, o.asked["List"][:3])
	o.asked = map[string][]string{}
	ids("?session_id=s")
	require.Equal(t, []string{`{"sessionId":"s"}`, `{"pageToken":"two","sessionId":"s"}`, `{"pageToken":"three","sessionId":"s"}`}, o.asked["List"])
	require.Equal(t, 403, ask("agent", "GET", "/v1/approvals", "").Code)
}

// Keys that are read at once are asked for once each, without those of other
// environments, wherever they stand; there are at most 1,000.
func TestKeysThatAreReadAtOnce(t *testing.T) {
	o := &oracle{asked: map[string][]string{}, answer: func(string, map[string]any) (string, error) { return `{"values": {"a": "1", "b": "2"}}`, nil }}
	keys, err := edictum.ParseKeys([]byte(fmt.Sprintf("keys:\n  - {name: a, hash: %q, environment: staging}\n", edictum.HashOf("agent"))))
	require.NoError(t, err)
	h := edictum.New(o, keys, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, h.Close()) }()
	read := func(keys ...string) (int, string) {
		body, err := json.Marshal(map[string]any{"keys": keys})
		require.NoError(t, err)
		return serve(h, "POST", "/v1/sessions/batch", string(body))
	}
	status, body := read("z", "edictum/signature/production/r", "a", "edictum/signature/other/r", "a", "edictum/signature/staging/r", "edictum/signature/stagingly/r", "b")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"values": {"a": "1", "b": "2"}}`, body)
	require.Equal(t, []string{`{"keys":["a","b","edictum/signature/staging/r","z"]}`}, o.asked["BatchGet"])
	status, body = read("edictum/signature/production/r", "edictum/signature/other/r")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"values": {}}`, body)
	require.Len(t, o.asked["BatchGet"], 1)
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint("k", i)
	}
	status, _ = read(many[:1000]...)
	require.Equal(t, 200, status)
	status, body = read(many...)
	require.Equal(t, 400, status)
	require.Contains(t, body, "keys: 1001 are more than 1000")
	status, _ = read(append(many[:1000:1000], many[0])...)
	require.Equal(t, 200, status, "one that is there twice counts once")
	for _, bad := range []string{`{}`, `{"keys":"a"}`, `{"keys":["a",1]}`} {
		status, _ = serve(h, "POST", "/v1/sessions/batch", bad)
		require.Equal(t, 400, status, bad)
	}
	require.Len(t, o.asked["BatchGet"], 3)
	for path, want := range map[string]int{"production/r": 404, "staging/r": 200, "stagingly/r": 404} {
		o.answer = func(string, map[string]any) (string, error) { return `{"found": true, "value": "v"}`, nil }
		status, _ = serve(h, "GET", "/v1/sessions/edictum/signature/"+path, "")
		require.Equal(t, want, status, path)
	}
}

// A body has at most 8 MiB.
func TestBodiesHaveABound(t *testing.T) {
	_, ask := before(t, func(string, map[string]any) (string, error) { return `{}`, nil })
	body := func(size int) string {
		head := `{"value": "v", "more": "`
		return head + strings.Repeat("x", size-len(head)-2) + `"}`
	}
	require.Equal(t, 200, ask("agent", "PUT", "/v1/sessions/k", body(8<<20)).Code)
	w := ask("agent", "PUT", "/v1/sessions/k", body(8<<20+1))
	require.Equal(t, 413, w.Code)
	require.Contains(t, w.Body.String(), "body: it has more than 8388608 bytes")
}

// A signature is shown with the bytes that it is of, and with no others.
func TestSignaturesAreOfTheirBytes(t *testing.T) {
	const hash = "a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa" // of "y"
	kept := map[string]string{}
	_, ask := before(t, func(method string, request map[string]any) (string, error) {
		if method == "GetPolicy" {
			return `{"policy": {"name": "edictum/production/r", "version": 3, "files": [{"path": "other", "content": "x"}, {"path": "ruleset.yaml", "content": "y"}]}}`, nil
		}
		key, _ := request["key"].(string)
		value, found := kept[key]
		text, err := json.Marshal(value)
		return fmt.Sprintf(`{"found": %v, "value": %s}`, found, text), err
	})
	const sound = `{"signature":"s","public_key":"k"}`
	for text, shown := range map[string]string{
		"production/r/" + hash + " " + sound: `"s"`, "production/r/other " + sound: "null", "production/r/" + hash + " none": "null",
		"staging/r/" + hash + " " + sound: "null", "production/q/" + hash + " " + sound: "null",
	} {
		of, value, _ := strings.Cut(text, " ")
		kept = map[string]string{"edictum/signature/" + of: value}
		w := ask("agent", "GET", "/v1/rulesets/r/current", "")
		require.JSONEq(t, `{"name": "r", "version": 3, "env": "production", "yaml": "y", "yaml_bytes": "eQ==", "revision_hash": "`+hash+`", "signature": `+shown+
			`, "public_key": `+strings.ReplaceAll(shown, "s", "k")+`}`, w.Body.String(), text)
	}
}

// A token is for agents of each of its patterns, and for no others.
func TestScopesOfSeveralAgents(t *testing.T) {
	n := guardedNode(t)
	token := n.token("many", []string{"bot-*", "desk", "cli-?"}, v1.Role_ROLE_AGENT)
	for agent, want := range map[string]int{"bot-1": 200, "desk": 200, "cli-x": 200, "": 200, "cli-xy": 403, "desk-1": 403, "bot": 403, "a b": 400, strings.Repeat("a", 129): 400} {
		status, body := n.ask(token, agent, "POST", "/v1/sessions/k/increment", `{}`)
		require.Equal(t, want, status, "%q: %s", agent, body)
	}
}

// Whoever shows what nobody knows is slowed down like others that do.
func TestWrongKeysAreSlowed(t *testing.T) {
	registry := prometheus.NewRegistry()
	hall, err := lobby.New(lobby.Config{Connections: 100, Outside: 100, Registry: registry})
	require.NoError(t, err)
	h := edictum.New(http.NotFoundHandler(), scriptKeys(t), slog.New(slog.DiscardHandler))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &http.Server{Handler: lobby.Handler(h), ConnContext: lobby.Context, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- s.Serve(hall.Over(inner)) }()
	slowed := func() (n float64) {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "gov_connections_slowed_total" && m.GetLabel()[0].GetValue() == "tokens" {
					n += m.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	for i := 0; slowed() == 0; i++ {
		require.Less(t, i, 5000)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inner.Addr().String()+"/v1/sessions/k", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer nobody")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.Equal(t, 401, res.StatusCode)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
	require.NoError(t, h.Close())
}

// What a node has looked up for the streams of one namespace is told to no other, and a
// stream without a name is told of all pages.
func TestStreamsTellOfTheirNamespace(t *testing.T) {
	o := &oracle{asked: map[string][]string{}, answer: func(method string, request map[string]any) (string, error) {
		switch method {
		case "GetPolicy":
			return fmt.Sprintf(`{"policy": {"name": "edictum/production/r", "version": 1, "files": [{"path": "ruleset.yaml", "content": "of %s"}]}}`, request["of"]), nil
		case "ListPolicies":
			if request["pageToken"] == nil {
				return fmt.Sprintf(`{"policies": [{"name": "edictum/production/one-%s", "version": 1, "digest": "a"}, {"name": "other"}, {"name": "edictum/staging/x"}], "nextPageToken": "two"}`, request["of"]), nil
			}
			return fmt.Sprintf(`{"policies": [{"name": "edictum/production/two-%s", "version": 2, "digest": "b"}]}`, request["of"]), nil
		}
		return `{}`, nil
	}}
	h := edictum.New(o, scriptKeys(t), slog.New(slog.DiscardHandler))
	n := httptest.NewServer(h)
	defer func() {
		n.CloseClientConnections()
		n.Close()
		require.NoError(t, h.Close())
	}()
	follow := func(holder, query string, events int) (told []string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.URL+"/v1/stream"+query, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+holder)
		req.Header.Set("X-Edictum-Agent-Id", "bot")
		res, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		lines := bufio.NewScanner(res.Body)
		for len(told) < events && lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var fields map[string]any
				require.NoError(t, json.Unmarshal([]byte(data), &fields))
				told = append(told, fmt.Sprint(fields["name"], " ", fields["version"], " ", fields["yaml"]))
			}
		}
		slices.Sort(told)
		return told
	}
	for holder, ns := range map[string]string{"agent": "default", "elsewhere": "tenant-2"} { // at once, so that what is kept of one is there for the other
		require.Equal(t, []string{"r 1 <nil>", "r 1 of " + ns}, follow(holder, "?bundle_name=r", 2))
		require.Equal(t, []string{"one-" + ns + " 1 <nil>", "two-" + ns + " 2 <nil>"}, follow(holder, "", 2))
	}
}
