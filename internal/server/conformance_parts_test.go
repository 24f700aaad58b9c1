package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// scriptedGuardrails answer for the endpoints of a tree, by the last part of
// their URLs, as guardrails.json of an archive says.
type scriptedGuardrails struct {
	mu      sync.Mutex
	answers value.Value
	asked   []string
}

func (g *scriptedGuardrails) RoundTrip(req *http.Request) (*http.Response, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := path.Base(req.URL.Path)
	g.asked = append(g.asked, name)
	answer, ok := g.answers.Get(name)
	if _, fails := answer.Get("fails"); fails || !ok {
		return nil, errors.New("nobody listens")
	}
	if set, ok := answer.Get("set"); ok {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		call, err := value.Parse(body)
		if err != nil {
			return nil, err
		}
		args, _ := call.Get("args")
		for key, v := range set.All() {
			args = args.With(key, v)
		}
		answer = value.OfMap(value.Pair{Key: "decision", Value: value.OfString("modify")}, value.Pair{Key: "modified_args", Value: args})
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer.JSON()))}, nil
}

// scriptedBackend stands for an external language whose file says what to
// answer, and a reason.
type scriptedBackend struct{ name, verb, reason string }

func loadScripted(name string) engine.BackendLoader {
	return func(files []engine.File) (engine.Backend, []engine.Problem) {
		verb, reason, _ := strings.Cut(strings.TrimSpace(string(files[0].Content)), " ")
		if verb == "broken" {
			return nil, []engine.Problem{{Path: files[0].Path, Line: 1, Message: "it does not parse"}}
		}
		return &scriptedBackend{name: name, verb: verb, reason: reason}, nil
	}
}

func (b *scriptedBackend) Name() string { return b.name }

func (b *scriptedBackend) Evaluate(ctx context.Context, in engine.BackendInput) (engine.BackendDecision, error) {
	switch b.verb {
	case "allow":
		return engine.BackendDecision{Allowed: true, Reason: b.reason}, nil
	case "audit":
		return engine.BackendDecision{Allowed: true, Action: engine.Audit, Reason: b.reason}, nil
	case "deny":
		return engine.BackendDecision{Reason: b.reason}, nil
	case "echo":
		return engine.BackendDecision{Allowed: true, Reason: in.Context.JSON()}, nil
	case "nonsense":
		return engine.BackendDecision{Allowed: true, Action: engine.Deny}, nil
	case "panic":
		panic(b.reason)
	case "hang":
		<-ctx.Done()
		return engine.BackendDecision{}, ctx.Err()
	}
	return engine.BackendDecision{}, errors.New(b.reason)
}

func orNull(s string) value.Value {
	if s == "" {
		return value.Value{}
	}
	return value.OfString(s)
}

func listOfTexts(list []string) value.Value {
	items := make([]value.Value, len(list))
	for i, s := range list {
		items[i] = value.OfString(s)
	}
	return value.OfList(items...)
}

func structValue(t *testing.T, s *structpb.Struct) value.Value {
	t.Helper()
	if s == nil {
		return value.Value{}
	}
	return anyValue(t, s.AsMap())
}

func anyValue(t *testing.T, v any) value.Value {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	out, err := value.Parse(text)
	require.NoError(t, err)
	return out
}
