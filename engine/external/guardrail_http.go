package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/value"
)

// httpGuardrail calls an endpoint.
type httpGuardrail struct {
	governance.GuardrailEndpoint
	client *http.Client
}

// NewHTTPGuardrail calls a valid endpoint. A nil client means one of its own.
func NewHTTPGuardrail(ep governance.GuardrailEndpoint, client *http.Client) *httpGuardrail {
	if client == nil {
		client = &http.Client{}
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &httpGuardrail{GuardrailEndpoint: ep, client: &own}
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
	if said, ok := v.Get("error"); ok && said.Kind() != value.Null {
		return GuardrailResult{}, errors.New("the answer tells of an error")
	}
	res := GuardrailResult{
		Decision: GuardrailDecision(v.TextAt("decision")),
		Reason:   v.TextAt("reason"),
	}
	if args, ok := v.Get("modified_args"); ok && args.Kind() != value.Null {
		res.ModifiedArgs = &args
	}
	res.Metadata, _ = v.Get("metadata")
	return res, nil
}
