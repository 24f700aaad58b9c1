package edictum

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

const twoStages = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: flow}
stages:
  - {id: a, tools: [Read]}
  - {id: b}
`

// Where a session stands is printed as JSON where that is asked for.
func TestWorkflowsArePrintedAsAsked(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // nobody is logged in
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	answers := map[string]proto.Message{
		"GetSession": &govnodev1.GetSessionResponse{Session: &govnodev1.Session{SessionId: "s", PolicyDigest: "sha256:0"}},
		"GetPolicy":  &govnodev1.GetPolicyResponse{Policy: &govnodev1.Policy{Files: []*govnodev1.TextFile{{Path: "flow.yaml", Content: twoStages}}}},
		"Get":        &govnodev1.GetResponse{Version: "0"},
		"Set":        &govnodev1.SetResponse{Version: "1"},
	}
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := proto.Marshal(answers[path.Base(r.URL.Path)])
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write(b) // the command says if it got nothing
	}))
	defer node.Close()
	for _, args := range [][]string{{"show", "s"}, {"set", "s", "b"}, {"reset", "s", "a"}} {
		for _, output := range []string{"text", "json"} {
			var out bytes.Buffer
			cmd := workflowCommand()
			cmd.SetOut(&out)
			cmd.SetArgs(append(args, "--addr", node.Listener.Addr().String(), "--output", output))
			require.NoError(t, cmd.Execute())
			require.Equal(t, output == "json", json.Valid(out.Bytes()), "%s %s: %s", args, output, out.String())
			require.Contains(t, out.String(), "flow")
		}
	}
}
