package alone

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Guards are the guardrails of scripts: an endpoint for each name that a script gives one,
// which answers as the script says and knows what it was asked.
type Guards struct {
	URL string // under which the nodes reach them

	mu sync.Mutex
	at map[string]*guard // by path
}

// A guard is one endpoint.
type guard struct {
	answers func(about string) said
	asked   []request
}

// A request is one that a guardrail was sent.
type request struct {
	method, kind string
	body         map[string]any
}

// said is the answer of a guardrail.
type said struct {
	status int // 0 for 200
	to     string
	body   string
	late   time.Duration
}

// ServeHTTP implements http.Handler.
func (g *Guards) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	got := request{method: r.Method, kind: r.Header.Get("Content-Type")}
	if err != nil || json.Unmarshal(text, &got.body) != nil {
		got.body = map[string]any{"unread": string(text)}
	}
	args, _ := json.Marshal(got.body["args"]) // with sorted keys
	g.mu.Lock()
	x := g.at[r.URL.Path]
	var answer said
	if x != nil {
		x.asked = append(x.asked, got)
		answer = x.answers(string(args))
	}
	g.mu.Unlock()
	if x == nil { // its script is over
		http.NotFound(w, r)
		return
	}
	select {
	case <-r.Context().Done():
		return
	case <-time.After(answer.late):
	}
	if answer.to != "" {
		w.Header().Set("Location", answer.to)
	}
	if answer.status != 0 {
		w.WriteHeader(answer.status)
	}
	_, _ = io.WriteString(w, answer.body)
}

// forget drops the guards of a script.
func (g *Guards) forget(own string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for path := range g.at {
		if strings.HasPrefix(path, "/"+own+"/") {
			delete(g.at, path)
		}
	}
}

// guard makes a guardrail answer in a way, from now on, and returns its URL.
func (s *script) guard(name string, answers func(about string) said) string {
	g, path := s.Guards, "/"+s.own+"/"+name
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at == nil {
		g.at = map[string]*guard{}
	}
	if g.at[path] == nil {
		g.at[path] = &guard{}
	}
	g.at[path].answers = answers
	return g.URL + path
}

// heard is what a guardrail was asked about a call.
func (s *script) heard(name, call string) (asked []request) {
	g := s.Guards
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.at["/"+s.own+"/"+name].asked {
		if r.body["call_id"] == call {
			asked = append(asked, r)
		}
	}
	return asked
}

// about are the arguments that a guardrail was asked about, of a call that was sent as
// often as it may have been.
func (s *script) about(name, call string, want ...string) {
	if s.over {
		return
	}
	var got []string
	for _, r := range s.heard(name, call) {
		args, _ := json.Marshal(r.body["args"])
		got = append(got, string(args))
	}
	whole := len(got) >= len(want) && (len(want) > 0 || len(got) == 0)
	for i, a := range got { // once more from the beginning each time
		whole = whole && a == want[i%len(want)]
	}
	s.wrong(!whole && s.tries == 1, "the guardrail %s was asked about %q, want %q", name, got, want)
}

func always(answer said) func(string) said { return func(string) said { return answer } }

// reply is an answer with a decision.
func reply(decision, modified string) said {
	if modified == "" {
		return said{body: `{"decision": "` + decision + `"}`}
	}
	return said{body: `{"decision": "` + decision + `", "modified_args": ` + modified + `}`}
}

// from makes a guardrail of what it makes of arguments: other ones, and those that it does
// not know pass.
func from(made map[string]string) func(string) said {
	return func(about string) said {
		if to, ok := made[about]; ok {
			return reply("modify", to)
		}
		return reply("allow", "")
	}
}

// judged is what a call with arguments comes to, of Evaluate too where that counts nothing.
func (s *script) judged(tool, arguments string) (*v1.BeginCallRequest, *v1.BeginCallResponse, *v1.EvaluateResponse) {
	ask := &v1.EvaluateRequest{SessionId: s.own, Tool: tool, ArgumentsJson: arguments}
	would, ok := done(s, "evaluate "+arguments, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) })
	if !ok {
		return nil, nil, nil
	}
	req := s.call(tool)
	req.ArgumentsJson = arguments
	res := s.begin(req)
	if s.over {
		return nil, nil, nil
	}
	s.wrong(would.Decision.GetAllowed() != (res.Outcome == v1.Outcome_OUTCOME_ADMITTED) || would.Decision.GetCategory() != res.Decision.GetCategory() ||
		would.Decision.GetPolicy() != res.Decision.GetPolicy() || would.Decision.GetMatchedRule() != res.Decision.GetMatchedRule(), "it is %v, and evaluated %v", res, would)
	return req, res, would
}

// runs holds an answer to the arguments with which the tool is called: "" for those with
// which the call came.
func (s *script) runs(got *structpb.Struct, want string) {
	if s.over {
		return
	}
	if want == "" {
		s.wrong(got != nil, "the arguments are changed into %v", got)
		return
	}
	x := &structpb.Struct{}
	if err := x.UnmarshalJSON([]byte(want)); err != nil {
		panic(err)
	}
	if got == nil {
		s.wrong(true, "no arguments are changed, want %v", want)
		return
	}
	s.alike("the changed arguments", got, x)
}

const (
	fails  = "Policy evaluation error (fail-closed): guardrail "
	shades = "Content blocked by governance policy."
)
