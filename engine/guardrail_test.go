package engine

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/value"
)

// provider is a guardrail made of a function.
type provider struct {
	name string
	do   func(context.Context, external.GuardrailCall) (external.GuardrailResult, error)
}

func (p provider) Name() string { return p.name }

func (p provider) Evaluate(ctx context.Context, call external.GuardrailCall) (external.GuardrailResult, error) {
	return p.do(ctx, call)
}

func answering(name string, d external.GuardrailDecision, reason string) provider {
	return provider{name, func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
		return external.GuardrailResult{Decision: d, Reason: reason}, nil
	}}
}

func setting(name, key, text string) provider {
	return provider{name, func(_ context.Context, call external.GuardrailCall) (external.GuardrailResult, error) {
		args := call.Args.With(key, value.OfString(text))
		return external.GuardrailResult{Decision: external.GuardrailModify, ModifiedArgs: &args}, nil
	}}
}

const guardedPolicy = "name: guarded\nblocked_patterns: [evil]\nallowed_tools: [t]\n"

func guarded(t *testing.T, providers ...external.GuardrailProvider) Decision {
	t.Helper()
	p := mustCompile(t, guardedPolicy, WithGuardrails(providers...))
	in := call.Input{Tool: "t", AgentID: "a", Arguments: enginetest.Value(t, `{"q":"good"}`)}
	d := p.Evaluate(context.Background(), in)
	require.Equal(t, d.Error != "", p.Audit(in, d, ContextHash{}).Error)
	return d
}

func TestGuardrailChain(t *testing.T) {
	t.Run("allow changes nothing", func(t *testing.T) {
		d := guarded(t, answering("one", external.GuardrailAllow, ""))
		require.True(t, d.Allowed)
		require.Nil(t, d.ModifiedArguments)
	})
	t.Run("any deny ends the chain", func(t *testing.T) {
		d := guarded(t, answering("one", external.GuardrailDeny, "not today"), provider{"two", func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
			t.Error("asked after a deny")
			return external.GuardrailResult{}, nil
		}})
		require.False(t, d.Allowed)
		require.Equal(t, "Tool call denied: not today", d.Reason)
		require.Equal(t, CategoryGuardrail, d.Category)
		require.Equal(t, "guardrail:one", d.Policy)
	})
	t.Run("a deny without a reason", func(t *testing.T) {
		require.Equal(t, "Tool call denied: policy violation", guarded(t, answering("one", external.GuardrailDeny, "")).Reason)
	})
	t.Run("modified arguments reach the next provider and the caller", func(t *testing.T) {
		var seen string
		d := guarded(t, setting("one", "q", "clean"), provider{"two", func(_ context.Context, call external.GuardrailCall) (external.GuardrailResult, error) {
			seen = call.Args.JSON()
			require.Equal(t, "t", call.ToolName)
			require.Equal(t, "a", call.AgentName)
			return external.GuardrailResult{Decision: external.GuardrailAllow}, nil
		}})
		require.True(t, d.Allowed)
		require.Equal(t, `{"q":"clean"}`, seen)
		require.Equal(t, `{"q":"clean"}`, d.ModifiedArguments.JSON())
	})
	t.Run("modify without arguments changes nothing", func(t *testing.T) {
		d := guarded(t, answering("one", external.GuardrailModify, ""))
		require.True(t, d.Allowed)
		require.Nil(t, d.ModifiedArguments)
	})
	t.Run("what was modified is judged again", func(t *testing.T) {
		d := guarded(t, setting("one", "q", "an evil thing"))
		require.False(t, d.Allowed)
		require.Equal(t, CategoryPatternTool, d.Category)
		require.Nil(t, d.ModifiedArguments)
	})
	t.Run("rules see the modified arguments", func(t *testing.T) {
		p := mustCompile(t, "rules:\n  - {name: good, condition: {field: arguments.q, operator: eq, value: good}, action: audit}\n  - {name: evil, condition: {field: arguments.q, operator: eq, value: evil}, action: deny}\n",
			WithGuardrails(provider{"one", func(_ context.Context, call external.GuardrailCall) (external.GuardrailResult, error) {
				wish, _ := call.Args.Get("wish")
				args := call.Args.With("q", wish)
				return external.GuardrailResult{Decision: external.GuardrailModify, ModifiedArgs: &args}, nil
			}}))
		d := p.Evaluate(context.Background(), call.Input{Tool: "t", Arguments: enginetest.Value(t, `{"q":"good","wish":"evil"}`)})
		require.False(t, d.Allowed)
		require.Equal(t, "evil", d.MatchedRule)
		d = p.Evaluate(context.Background(), call.Input{Tool: "t", Arguments: enginetest.Value(t, `{"q":"good","wish":"plain"}`)})
		require.True(t, d.Allowed)
		require.Empty(t, d.MatchedRule, "what matched the first arguments decides nothing")
		require.Equal(t, "allow", d.Action)
	})
	t.Run("earlier providers judge later modifications", func(t *testing.T) {
		d := guarded(t, provider{"one", func(_ context.Context, call external.GuardrailCall) (external.GuardrailResult, error) {
			if strings.Contains(call.Args.JSON(), "late") {
				return external.GuardrailResult{Decision: external.GuardrailDeny, Reason: "too late"}, nil
			}
			return external.GuardrailResult{Decision: external.GuardrailAllow}, nil
		}}, setting("two", "q", "late"))
		require.Equal(t, "Tool call denied: too late", d.Reason)
	})
	t.Run("what a provider adds is added once", func(t *testing.T) {
		adding := func(name, what string, seen *[]string) provider {
			return provider{name, func(_ context.Context, call external.GuardrailCall) (external.GuardrailResult, error) {
				*seen = append(*seen, call.Args.JSON())
				q, _ := call.Args.Get("q")
				s, _ := q.AsString()
				args := call.Args.With("q", value.OfString(s+what))
				return external.GuardrailResult{Decision: external.GuardrailModify, ModifiedArgs: &args}, nil
			}}
		}
		var one, two []string
		d := guarded(t, adding("one", "1", &one), adding("two", "2", &two))
		require.True(t, d.Allowed)
		require.Equal(t, `{"q":"good12"}`, d.ModifiedArguments.JSON())
		require.Equal(t, []string{`{"q":"good"}`, `{"q":"good12"}`}, one)
		require.Equal(t, []string{`{"q":"good1"}`, `{"q":"good12"}`}, two, "the second time all see what will run")
	})
	t.Run("metadata stands in the audit record, redacted and bounded", func(t *testing.T) {
		saying := func(name, meta string, decision external.GuardrailDecision) provider {
			return provider{name, func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
				return external.GuardrailResult{Decision: decision, Metadata: enginetest.Value(t, meta)}, nil
			}}
		}
		long := strings.Repeat("x", 4<<10)
		p := mustCompile(t, guardedPolicy, WithGuardrails(saying("one", `{"score":0.5,"password":"hunter2"}`, external.GuardrailAllow),
			saying("two", `{"text":"`+long+`"}`, external.GuardrailAllow), saying("three", `{}`, external.GuardrailAllow), saying("four", `{"list":"spam"}`, external.GuardrailDeny)))
		in := call.Input{Tool: "t", AgentID: "a", Arguments: enginetest.Value(t, `{"q":"good"}`)}
		r := p.Audit(in, p.Evaluate(context.Background(), in), ContextHash{})
		require.False(t, r.Allowed)
		line := string(r.AppendJSON(nil))
		require.Contains(t, line, `,"guardrail_metadata":{"four":{"list":"spam"},"one":{"score":0.5,"password":"[REDACTED]"},"two":"left out: 4107 bytes"}`)
	})
	t.Run("a provider that fails denies", func(t *testing.T) {
		list := value.OfList()
		for name, do := range map[string]func(context.Context, external.GuardrailCall) (external.GuardrailResult, error){
			"error": func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
				return external.GuardrailResult{}, errors.New("down")
			},
			"panic": func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
				panic("password=hunter2")
			},
			"nonsense": func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
				return external.GuardrailResult{Decision: "maybe"}, nil
			},
			"no mapping": func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
				return external.GuardrailResult{Decision: external.GuardrailModify, ModifiedArgs: &list}, nil
			},
		} {
			d := guarded(t, provider{"one", do})
			require.False(t, d.Allowed, name)
			require.NotEmpty(t, d.Error, name)
			require.True(t, strings.HasPrefix(d.Reason, "Policy evaluation error (fail-closed): guardrail one: "), name)
			require.NotContains(t, d.Reason, "hunter2")
		}
	})
	t.Run("a call that is denied anyway is not sent", func(t *testing.T) {
		p := mustCompile(t, guardedPolicy, WithGuardrails(provider{"one", func(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
			t.Error("asked about a denied call")
			return external.GuardrailResult{}, nil
		}}))
		require.False(t, p.Evaluate(context.Background(), call.Input{Tool: "other"}).Allowed)
	})
}

func TestGuardrailEndpoint(t *testing.T) {
	var mu sync.Mutex // the handler of a request that timed out may still run
	var body, answer string
	status := http.StatusOK
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		mu.Lock()
		body = string(sent)
		status, answer := status, answer
		mu.Unlock()
		if answer == "hang" {
			select {
			case <-r.Context().Done():
			case <-release:
			}
			return
		}
		if status == http.StatusFound {
			w.Header().Set("Location", "http://169.254.169.254/")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	defer close(release)
	p := mustCompile(t, "name: g\nguardrails:\n  - {name: scrubber, url: '"+server.URL+"/check', timeout_ms: 200}\n")
	in := call.Input{Tool: "t", CallID: "c-1", AgentID: "a-1", Arguments: enginetest.Value(t, `{"q":"x"}`)}
	ask := func(code int, text string) Decision {
		mu.Lock()
		status, answer = code, text
		mu.Unlock()
		return p.Evaluate(context.Background(), in)
	}

	require.True(t, ask(200, `{"decision":"allow"}`).Allowed)
	mu.Lock()
	require.Equal(t, `{"tool_name":"t","args":{"q":"x"},"agent_name":"a-1","call_id":"c-1"}`, body)
	mu.Unlock()

	d := ask(200, `{"decision":"deny","reason":"spam from jane@example.org"}`)
	require.False(t, d.Allowed)
	require.Equal(t, "Tool call denied: spam from [REDACTED:email]", d.Reason)

	d = ask(200, `{"decision":"modify","modified_args":{"q":"y"}}`)
	require.True(t, d.Allowed)
	require.Equal(t, `{"q":"y"}`, d.ModifiedArguments.JSON())

	for name, failing := range map[string]struct {
		status int
		text   string
		detail string
	}{
		"status":     {500, `{"decision":"allow"}`, "status 500"},
		"redirect":   {302, "", "status 302"},
		"no JSON":    {200, "allow", "not valid JSON"},
		"no object":  {200, `["allow"]`, "not a JSON object"},
		"no answer":  {200, `{}`, "the decision must be"},
		"an error":   {200, `{"decision":"allow","error":"the model did not answer"}`, "tells of an error"},
		"other case": {200, `{"decision":"Allow"}`, "the decision must be"},
		"too large":  {200, `{"decision":"allow","reason":"` + strings.Repeat("x", 3*64<<10) + `"}`, "larger than"},
		"too slow":   {200, "hang", "no answer within 200ms"},
	} {
		d := ask(failing.status, failing.text)
		require.False(t, d.Allowed, name)
		require.Contains(t, d.Reason, "Policy evaluation error (fail-closed): guardrail scrubber: ", name)
		require.Contains(t, d.Error, failing.detail, name)
	}
	server.Close()
	d = ask(200, "")
	require.False(t, d.Allowed)
	require.Contains(t, d.Error, "could not be reached")
}
