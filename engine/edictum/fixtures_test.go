package edictum_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// The public cases of Edictum. They are not ours to ship: EDICTUM_FIXTURES names the
// folder, of which any of the same form will do.
func fixtures(t *testing.T, folders ...string) (files []string) {
	t.Helper()
	root := os.Getenv("EDICTUM_FIXTURES")
	if root == "" {
		root = "../../../shared/fixtures/edictum"
	}
	for _, f := range folders {
		found, err := filepath.Glob(filepath.Join(root, f))
		require.NoError(t, err)
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Skip("Edictum's public cases are not here: name their folder with EDICTUM_FIXTURES")
	}
	return files
}

// impossible are cases that contradict themselves.
var impossible = map[string]string{
	"adv-inject-002": "it wants contains to be more than literal, and says that it is literal",
}

type evaluation struct {
	ID       string    `yaml:"id"`
	Contract yaml.Node `yaml:"contract"`
	Envelope struct {
		Tool      string         `yaml:"tool_name"`
		Arguments map[string]any `yaml:"arguments"`
	} `yaml:"envelope"`
	Session          map[string]any    `yaml:"session"`
	Environment      map[string]string `yaml:"environment"`
	Principal        map[string]any    `yaml:"principal"`
	CallMetadata     map[string]any    `yaml:"call_metadata"`
	Result           any               `yaml:"result"`
	ApprovalPending  bool              `yaml:"approval_pending"`
	TimeoutExpired   bool              `yaml:"timeout_expired"`
	ApprovalDecision string            `yaml:"approval_decision"`
	Expected         struct {
		Verdict string   `yaml:"verdict"`
		Message string   `yaml:"message_contains"`
		Audit   string   `yaml:"audit_action"`
		Tags    []string `yaml:"tags"`
	} `yaml:"expected"`
}

// Every evaluation case, whole: the stages that count are put between those of the
// ruleset, as the one who counts does it.
func TestEvaluationFixtures(t *testing.T) {
	ran := 0
	for _, file := range fixtures(t, "behavioral/*.yaml", "adversarial/*.yaml") {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var suite struct {
			Fixtures []evaluation `yaml:"fixtures"`
		}
		require.NoError(t, yaml.Unmarshal(raw, &suite), file)
		for _, c := range suite.Fixtures {
			ran++
			t.Run(c.ID, func(t *testing.T) {
				if why := impossible[c.ID]; why != "" {
					t.Skip(why)
				}
				judgeCase(t, &c)
			})
		}
	}
	require.NotZero(t, ran)
}

// seen is what a case is compared with.
type seen struct {
	verdict string
	texts   []string
	records []edictum.Record
}

func judgeCase(t *testing.T, c *evaluation) {
	raw, err := yaml.Marshal(&c.Contract)
	require.NoError(t, err)
	doc, err := edictum.Parse(c.ID, raw)
	require.NoError(t, err)
	rs, err := edictum.Compile(doc)
	require.NoError(t, err)
	call := &edictum.Call{
		Tool: c.Envelope.Tool, Args: valueOf(t, c.Envelope.Arguments), Principal: principalOf(t, c.Principal),
		Metadata: valueOf(t, c.CallMetadata), Explain: true,
		Env: func(name string) (value.Value, bool) {
			text, ok := c.Environment[name]
			return edictum.Coerce(text), ok
		},
	}
	s := pipeline(rs, call, c)
	if s.verdict == "allowed" && c.Result != nil {
		after := rs.After(call, edictum.Output{Value: valueOf(t, c.Result)})
		s.texts = append(s.texts, after.Warnings...)
		s.records = append(s.records, after.Records...)
		switch {
		case after.Suppressed:
			s.verdict = "denied"
		case after.Changed:
			s.verdict = "redacted"
		case !after.Passed:
			s.verdict = "warned"
		}
	}
	for _, r := range s.records {
		if !r.Passed {
			s.texts = append(s.texts, r.Message)
		}
	}
	same := map[string]string{"blocked": "denied", "block": "denied", "warn": "warned", "redact": "redacted"}
	want := c.Expected.Verdict
	if s2, ok := same[want]; ok {
		want = s2
	}
	require.Equal(t, want, s.verdict, "%+v", s)
	if c.Expected.Message != "" {
		require.Contains(t, strings.ToLower(strings.Join(s.texts, "\n")), strings.ToLower(c.Expected.Message))
	}
	if c.Expected.Audit == "observed" {
		require.True(t, func() bool {
			for _, r := range s.records {
				if r.Observed {
					return true
				}
			}
			return false
		}(), "%+v", s.records)
	}
	for _, tag := range c.Expected.Tags {
		require.True(t, func() bool {
			for _, r := range s.records {
				for _, has := range r.Tags {
					if has == tag && !r.Passed {
						return true
					}
				}
			}
			return false
		}(), tag)
	}
}

// pipeline is the order of the stages.
func pipeline(rs *edictum.Ruleset, call *edictum.Call, c *evaluation) seen {
	counts := func(name string) int64 {
		n, _ := c.Session[name].(int)
		return int64(n)
	}
	limits := rs.Limits()
	execs, attempts := counts("execs")+counts("tool_calls"), counts("attempts")+1
	tools := map[string]int64{}
	for k, v := range c.Session {
		if name, ok := strings.CutPrefix(k, "tool:"); ok {
			tools[name] = int64(v.(int))
		}
	}
	if m, ok := c.Session["per_tool"].(map[string]any); ok {
		for name, n := range m {
			tools[name] = int64(n.(int))
		}
	}
	if attempts > limits.Attempts.N {
		return seen{verdict: "denied", texts: []string{
			fmt.Sprintf("Attempt limit reached (%d). Agent may be stuck in a retry loop. Stop and reassess.", limits.Attempts.N), limits.Attempts.Message}}
	}
	v := rs.Before(call)
	s := seen{verdict: "allowed", records: append(v.Records, v.Candidates...), texts: []string{v.Reason}}
	if v.Action == edictum.Block {
		s.verdict = "denied"
		return s
	}
	for _, o := range limits.Observed {
		if o.ToolCalls.N > 0 && execs >= o.ToolCalls.N {
			s.records = append(s.records, edictum.Record{Rule: o.ToolCalls.Rule, Message: o.ToolCalls.Message, Observed: true})
		}
	}
	if execs >= limits.ToolCalls.N {
		text := limits.ToolCalls.Message
		if text == "" {
			text = fmt.Sprintf("Execution limit reached (%d calls). Summarize progress and stop.", limits.ToolCalls.N)
		}
		return seen{verdict: "denied", texts: []string{text}}
	}
	if l, ok := limits.PerTool[call.Tool]; ok && tools[call.Tool] >= l.N {
		return seen{verdict: "denied", texts: []string{fmt.Sprintf("Per-tool limit: %s called %d times (limit: %d).", call.Tool, tools[call.Tool], l.N), l.Message}}
	}
	if v.Action != edictum.Ask {
		return s
	}
	switch {
	case c.ApprovalPending, c.TimeoutExpired && !v.AllowOnTimeout, c.ApprovalDecision == "rejected":
		s.verdict = "denied"
	}
	return s
}

// principalOf is that of a case, whose id is the user's.
func principalOf(t *testing.T, m map[string]any) value.Value {
	if m == nil {
		return value.Value{}
	}
	if id, ok := m["id"]; ok && m["user_id"] == nil {
		m["user_id"] = id
	}
	return valueOf(t, m)
}

func valueOf(t *testing.T, v any) value.Value {
	t.Helper()
	switch x := v.(type) {
	case nil:
		return value.Value{}
	case map[string]any:
		if x == nil {
			return value.OfMap()
		}
		var pairs []value.Pair
		for k, item := range x {
			pairs = append(pairs, value.Pair{Key: k, Value: valueOf(t, item)})
		}
		return value.OfMap(pairs...)
	case []any:
		var items []value.Value
		for _, item := range x {
			items = append(items, valueOf(t, item))
		}
		return value.OfList(items...)
	case string:
		return value.OfString(x)
	case bool:
		return value.OfBool(x)
	case int:
		return value.OfInt(int64(x))
	case float64:
		return value.OfFloat(x)
	}
	t.Fatalf("a value of type %T", v)
	return value.Value{}
}

// Every rejection names its field.
func TestRejectionFixtures(t *testing.T) {
	ran := 0
	for _, file := range fixtures(t, "rejection/*.yaml") {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var suite struct {
			Fixtures []struct {
				ID       string    `yaml:"id"`
				Bundle   yaml.Node `yaml:"bundle"`
				Expected struct {
					Error string `yaml:"error_contains"`
				} `yaml:"expected"`
			} `yaml:"fixtures"`
		}
		require.NoError(t, yaml.Unmarshal(raw, &suite))
		for _, c := range suite.Fixtures {
			ran++
			t.Run(c.ID, func(t *testing.T) {
				text, err := yaml.Marshal(&c.Bundle)
				require.NoError(t, err)
				_, err = edictum.Parse(c.ID, text)
				require.Error(t, err)
				require.Contains(t, err.Error(), c.Expected.Error)
			})
		}
	}
	require.NotZero(t, ran)
}

// Rulesets that extend others.
func TestExtendsFixtures(t *testing.T) {
	ran := 0
	for _, file := range fixtures(t, "workflow-v0.18/extends-*.yaml") {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var suite struct {
			Rulesets map[string]yaml.Node `yaml:"rulesets"`
			Fixtures []evaluation         `yaml:"fixtures"`
		}
		require.NoError(t, yaml.Unmarshal(raw, &suite))
		docs := map[string]*edictum.Document{}
		for name, node := range suite.Rulesets {
			text, err := yaml.Marshal(&node)
			require.NoError(t, err)
			docs[name], err = edictum.Parse(name, text)
			require.NoError(t, err)
		}
		for _, c := range suite.Fixtures {
			ran++
			t.Run(c.ID, func(t *testing.T) {
				whole, err := edictum.Extend(docs[c.Contract.Value], func(name string) *edictum.Document { return docs[name] })
				require.NoError(t, err)
				rs, err := edictum.Compile(whole)
				require.NoError(t, err)
				v := rs.Before(&edictum.Call{Tool: c.Envelope.Tool, Args: valueOf(t, c.Envelope.Arguments)})
				require.Equal(t, c.Expected.Verdict, map[edictum.Action]string{edictum.Allow: "allowed", edictum.Block: "denied"}[v.Action])
				require.Contains(t, v.Reason, c.Expected.Message)
			})
		}
	}
	require.NotZero(t, ran)
}
