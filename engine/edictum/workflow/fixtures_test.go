package workflow_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/edictum/workflow"
	"example.com/govnode/engine/value"
)

// The public cases of Edictum's workflows: EDICTUM_FIXTURES names their folder.

type suite struct {
	Workflows map[string]yaml.Node `yaml:"workflows"`
	Fixtures  []struct {
		ID       string         `yaml:"id"`
		Workflow string         `yaml:"workflow"`
		Lineage  map[string]any `yaml:"lineage"`
		Initial  map[string]any `yaml:"initial_state"`
		Steps    []step         `yaml:"steps"`
	} `yaml:"fixtures"`
}

type step struct {
	ID   string `yaml:"id"`
	Call *struct {
		Tool string         `yaml:"tool"`
		Args map[string]any `yaml:"args"`
	} `yaml:"call"`
	Execution string         `yaml:"execution"`
	Result    map[string]any `yaml:"mcp_result"`
	Approvals []string       `yaml:"approval_outcomes"`
	ResetTo   string         `yaml:"reset_to"`
	SetTo     string         `yaml:"set_stage_to"`
	Expect    map[string]any `yaml:"expect"`
}

func fixtures(t *testing.T) (all []string) {
	t.Helper()
	root := os.Getenv("EDICTUM_FIXTURES")
	if root == "" {
		root = "../../../../shared/fixtures/edictum"
	}
	all, err := filepath.Glob(filepath.Join(root, "workflow*", "*.yaml"))
	require.NoError(t, err)
	if len(all) == 0 {
		t.Skip("Edictum's public cases are not here: name their folder with EDICTUM_FIXTURES")
	}
	return all
}

func TestWorkflowFixtures(t *testing.T) {
	ran := 0
	for _, file := range fixtures(t) {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var s suite
		require.NoError(t, yaml.Unmarshal(raw, &s), file)
		if len(s.Workflows) == 0 {
			continue // of rulesets
		}
		for _, c := range s.Fixtures {
			ran++
			t.Run(c.ID, func(t *testing.T) {
				node := s.Workflows[c.Workflow]
				text, err := yaml.Marshal(&node)
				require.NoError(t, err)
				d, err := workflow.Parse(text)
				require.NoError(t, err)
				state, err := d.Decode("s", jsonOf(t, c.Initial))
				require.NoError(t, err)
				for _, step := range c.Steps {
					r := &run{t: t, d: d, s: state, step: &step}
					r.take()
					state = r.s
				}
			})
		}
	}
	require.GreaterOrEqual(t, ran, 37)
}

// A run is one step of a case, as one who keeps States takes it.
type run struct {
	t      *testing.T
	d      *workflow.Definition
	s      *workflow.State
	step   *step
	events []string
}

func (r *run) take() {
	t, want := r.t, r.step.Expect
	switch {
	case r.step.ResetTo != "":
		require.NoError(t, r.d.Reset(r.s, r.step.ResetTo))
		r.events = append(r.events, "workflow_state_updated")
	case r.step.SetTo != "":
		require.NoError(t, r.d.SetStage(r.s, r.step.SetTo))
		r.events = append(r.events, "workflow_state_updated")
	default:
		r.call()
	}
	// What is kept is what comes back.
	again, err := r.d.Decode(r.s.Session, r.s.Encode())
	require.NoError(t, err)
	require.Equal(t, r.s.Encode(), again.Encode())
	r.s = again

	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.s.Encode()), &got))
	for _, name := range []string{"active_stage", "completed_stages", "approvals", "blocked_reason", "pending_approval"} {
		if w, ok := want[name]; ok {
			require.JSONEq(t, jsonOf(t, w), jsonOf(t, got[name]), "%s: %s", r.step.ID, name)
		}
	}
	evidence := want["evidence"].(map[string]any)
	for name, w := range evidence {
		if name == "stage_calls" { // a text that reads as a map is the text
			w = plain(w)
		}
		require.JSONEq(t, jsonOf(t, w), jsonOf(t, got["evidence"].(map[string]any)[name]), "%s: %s", r.step.ID, name)
	}
	if events, ok := want["audit_events"].([]any); ok {
		var actions []string
		for _, e := range events {
			actions = append(actions, e.(map[string]any)["action"].(string))
		}
		require.Equal(t, actions, r.events, r.step.ID)
	}
}

func (r *run) call() {
	t, want := r.t, r.step.Expect
	c := workflow.CallOf(r.step.Call.Tool, valueOf(t, r.step.Call.Args))
	outcomes := r.step.Approvals
	var asked string
	var v workflow.Verdict
	for {
		var err error
		v, err = r.d.Judge(r.s, c)
		require.NoError(t, err)
		r.s.Note(v, c, "now")
		for range v.Left {
			r.events = append(r.events, "workflow_stage_advanced")
		}
		if v.Action != edictum.Ask {
			break
		}
		asked = v.Stage
		r.events = append(r.events, "call_asked")
		if len(outcomes) == 0 {
			break
		}
		if outcomes[0] != "approved" {
			r.events = append(r.events, "call_approval_blocked")
			break
		}
		r.events = append(r.events, "call_approval_granted")
		outcomes = outcomes[1:]
		r.s.Approve(v.Stage)
	}
	decision := map[edictum.Action]string{edictum.Allow: "allow", edictum.Block: "deny", edictum.Ask: "pause"}[v.Action]
	wanted := want["decision"].(string)
	if wanted == "block" {
		wanted = "deny"
	}
	if len(r.step.Approvals) > 0 && r.step.Approvals[len(r.step.Approvals)-1] != "approved" {
		decision = "deny"
	}
	require.Equal(t, wanted, decision, "%s: %+v", r.step.ID, v)
	if text, ok := want["message_contains"].(string); ok {
		require.Contains(t, v.Reason, text, r.step.ID)
	}
	if stage, ok := want["approval_requested_for"].(string); ok {
		require.Equal(t, stage, asked)
	}
	switch v.Action {
	case edictum.Block:
		r.events = append(r.events, "call_blocked")
	case edictum.Allow:
		r.events = append(r.events, "call_allowed")
	}
	switch r.step.Execution {
	case "success":
		result := value.Value{}
		if r.step.Result != nil {
			result = valueOf(t, r.step.Result)
		}
		r.d.Executed(r.s, v.Stage, c, result, "now")
		r.events = append(r.events, "call_executed")
	case "error":
		r.events = append(r.events, "call_failed")
	}
}

func plain(calls any) any {
	out := map[string]any{}
	for stage, list := range calls.(map[string]any) {
		var texts []string
		for _, c := range list.([]any) {
			if m, ok := c.(map[string]any); ok {
				for k, v := range m {
					c = k + ": " + v.(string)
				}
			}
			texts = append(texts, c.(string))
		}
		out[stage] = texts
	}
	return out
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return strings.TrimSpace(string(raw))
}

func valueOf(t *testing.T, v any) value.Value {
	t.Helper()
	out, err := value.Parse([]byte(jsonOf(t, v)))
	require.NoError(t, err)
	return out
}
