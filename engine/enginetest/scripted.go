package enginetest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Guardrails and backends that answer what a test tells them to.

// Guardrails answer for the endpoints of a tree, by the last part of their URLs:
// with an object that is the answer, by setting keys of the arguments, or not at
// all. It is the transport of their client.
type Guardrails struct {
	Answers value.Value

	mu    sync.Mutex
	Asked []string // who was asked; read when nobody is
}

// RoundTrip answers a guardrail's request.
func (g *Guardrails) RoundTrip(req *http.Request) (*http.Response, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := path.Base(req.URL.Path)
	g.Asked = append(g.Asked, name)
	answer, ok := g.Answers.Get(name)
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

// scripted stands for an external language whose file says what to answer:
// allow, deny, audit, ask, echo, error, panic, hang, or nonsense, and a reason.
type scripted struct{ name, verb, reason string }

// LoadScripted loads backends of a name that answer what their file says; one
// that says broken does not load.
func LoadScripted(name string) external.BackendLoader {
	return func(files []source.File) (external.Backend, []source.Problem) {
		verb, reason, _ := strings.Cut(strings.TrimSpace(string(files[0].Content)), " ")
		if verb == "broken" {
			return nil, []source.Problem{{Path: files[0].Path, Line: 1, Message: "it does not parse"}}
		}
		return &scripted{name: name, verb: verb, reason: reason}, nil
	}
}

// Name is the name of the language.
func (b *scripted) Name() string { return b.name }

// Evaluate does what the file says.
func (b *scripted) Evaluate(ctx context.Context, in external.BackendInput) (external.BackendDecision, error) {
	switch b.verb {
	case "allow":
		return external.BackendDecision{Allowed: true, Reason: b.reason}, nil
	case "audit":
		return external.BackendDecision{Allowed: true, Action: document.Audit, Reason: b.reason}, nil
	case "ask":
		return external.BackendDecision{Action: document.Ask, Reason: b.reason}, nil
	case "deny":
		return external.BackendDecision{Reason: b.reason}, nil
	case "echo":
		return external.BackendDecision{Allowed: true, Reason: in.Context.JSON()}, nil
	case "nonsense":
		return external.BackendDecision{Allowed: true, Action: document.Deny}, nil
	case "panic":
		panic(b.reason)
	case "hang":
		<-ctx.Done()
		return external.BackendDecision{}, ctx.Err()
	}
	return external.BackendDecision{}, errors.New(b.reason)
}
