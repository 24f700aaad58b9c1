package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"example.com/govnode/engine/value"
)

// A GuardrailEndpoint is a provider that a tree names: a URL that is sent the
// call as JSON and answers with a decision.
//
//	POST {"tool_name": ..., "args": {...}, "agent_name": ..., "call_id": ...}
//	200  {"decision": "allow|deny|modify", "reason": ..., "modified_args": {...}, "metadata": {...}}
//
// It must be https, or http to the loopback interface. Redirects are not
// followed: a tree names every host that sees arguments.
type GuardrailEndpoint struct {
	Name    string
	URL     string
	Timeout time.Duration // of one request, response included
}

// Bounds and default of an endpoint's timeout.
const (
	DefaultGuardrailTimeout = time.Second
	MaxGuardrailTimeout     = 10 * time.Second
	maxGuardrails           = 8
)

// httpGuardrail calls an endpoint.
type httpGuardrail struct {
	GuardrailEndpoint
	client *http.Client
}

// validate checks an endpoint that stands in field.
func (ep GuardrailEndpoint) validate(field string) *FieldError {
	for _, f := range [...][2]string{{"name", ep.Name}, {"url", ep.URL}} {
		if f[1] == "" {
			return fieldErrorf(field+"."+f[0], "%s.%s must be a non-empty string", field, f[0])
		}
	}
	if ep.Timeout < time.Millisecond || ep.Timeout > MaxGuardrailTimeout {
		return fieldErrorf(field+".timeout_ms", "%s.timeout_ms must be between 1 and %d, got %d", field, MaxGuardrailTimeout.Milliseconds(), ep.Timeout.Milliseconds())
	}
	field += ".url"
	u, err := url.Parse(ep.URL)
	switch {
	case err != nil || u.Host == "":
		return fieldErrorf(field, "%s must be an absolute https URL, got %s", field, pyString(clip(ep.URL, 100)))
	case u.User != nil:
		return fieldErrorf(field, "%s must not carry a user or password", field)
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return fieldErrorf(field, "%s must be https, or http to a loopback address, got %s", field, pyString(clip(ep.URL, 100)))
}

// newHTTPGuardrail calls a valid endpoint. A nil client means one of its own.
func newHTTPGuardrail(ep GuardrailEndpoint, client *http.Client) *httpGuardrail {
	if client == nil {
		client = &http.Client{}
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &httpGuardrail{GuardrailEndpoint: ep, client: &own}
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Name is the name in the tree.
func (g *httpGuardrail) Name() string { return g.GuardrailEndpoint.Name }

// Evaluate sends the call and reads the decision. Errors name what failed and
// never the address, which is the operator's business.
func (g *httpGuardrail) Evaluate(ctx context.Context, call GuardrailCall) (GuardrailResult, error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	body := value.OfMap(
		value.Pair{Key: "tool_name", Value: value.OfString(call.ToolName)},
		value.Pair{Key: "args", Value: call.Args},
		value.Pair{Key: "agent_name", Value: value.OfString(call.AgentName)},
		value.Pair{Key: "call_id", Value: value.OfString(call.CallID)},
	).AppendJSON(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL, bytes.NewReader(body))
	if err != nil {
		return GuardrailResult{}, errors.New("the request could not be built")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := g.client.Do(req)
	if err != nil {
		return GuardrailResult{}, g.failure(ctx)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return GuardrailResult{}, fmt.Errorf("the endpoint answered with status %d", resp.StatusCode)
	}
	const most = 2*maxModifiedBytes + 1<<10
	text, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return GuardrailResult{}, g.failure(ctx)
	case len(text) > most:
		return GuardrailResult{}, fmt.Errorf("the answer is larger than %d bytes", most)
	}
	return parseGuardrailResult(text)
}

func (g *httpGuardrail) failure(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", g.Timeout)
	}
	return errors.New("the endpoint could not be reached")
}

func parseGuardrailResult(text []byte) (GuardrailResult, error) {
	v, err := value.Parse(text)
	if err != nil {
		return GuardrailResult{}, fmt.Errorf("the answer is not valid JSON: %w", err)
	}
	if v.Kind() != value.Map {
		return GuardrailResult{}, errors.New("the answer is not a JSON object")
	}
	res := GuardrailResult{
		Decision: GuardrailDecision(contextString(v, "decision")),
		Reason:   contextString(v, "reason"),
	}
	if args, ok := v.Get("modified_args"); ok && args.Kind() != value.Null {
		res.ModifiedArgs = &args
	}
	res.Metadata, _ = v.Get("metadata")
	return res, nil
}
