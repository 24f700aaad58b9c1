package operate

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// answers is a node that has one answer for each method, whatever it is asked.
type answers map[string]proto.Message

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := a[path.Base(r.URL.Path)]
	if m == nil {
		http.NotFound(w, r)
		return
	}
	b, _ := proto.Marshal(m)
	w.Header().Set("Content-Type", "application/proto")
	_, _ = w.Write(b) // the command says if it got nothing
}

// What a node has done, what it has done in part, and what it has not done at all
// read differently; and whether a command fails does not depend on how it prints.
func TestWhatIsNotDoneIsNotSaidToBe(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // nobody is logged in
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	kill := func(swept bool) *govnodev1.SignalResponse {
		return &govnodev1.SignalResponse{Closed: 2, Released: 1, Signal: &govnodev1.Signal{
			Signal: "KILL", Swept: swept, Target: &govnodev1.Signal_AgentId{AgentId: "a"},
		}}
	}
	vote := func(state govnodev1.ApprovalState) *govnodev1.ApprovalServiceDecideResponse {
		return &govnodev1.ApprovalServiceDecideResponse{Approval: &govnodev1.Approval{Id: "x", State: state, Required: 2}}
	}
	member := &govnodev1.StatusResponse{Peers: []*govnodev1.Peer{{Node: "n1"}}}
	for _, tt := range []struct {
		name    string
		command func() *cobra.Command
		args    []string
		node    answers
		says    string
		lacks   string // of what it would say else
		fails   bool
	}{
		{"a kill that is over", Signal, []string{"kill", "--agent", "a"}, answers{"Signal": kill(true)}, "killed agent a: 2 sessions closed, 1 slots freed\n", "so far", false},
		{"a kill that goes on", Signal, []string{"kill", "--agent", "a"}, answers{"Signal": kill(false)}, "so far; the cluster goes on with the others", "freed\n", false},
		{"a kill that was lifted since", Signal, []string{"kill", "--agent", "a"}, answers{"Signal": &govnodev1.SignalResponse{}}, "nothing stands there", "killed", false},
		{"a token", Token, []string{"revoke", "abcd"}, answers{"RevokeToken": &govnodev1.RevokeTokenResponse{Revoked: true}}, "revoked abcd", "no token", false},
		{"no token", Token, []string{"revoke", "abcd"}, answers{"RevokeToken": &govnodev1.RevokeTokenResponse{}}, "there was no token abcd", "revoked", false},
		{"a token by its text", Token, []string{"revoke", "gn_blue.green.abcd.0123456789abcdefghijkl"}, answers{"RevokeToken": &govnodev1.RevokeTokenResponse{Revoked: true}}, "revoked abcd of blue.green\n", "0123", false},
		{"who was denied", Token, []string{"allow", "cert:a"}, answers{"AllowSubject": &govnodev1.AllowSubjectResponse{Allowed: true}}, "is let into", "not denied", false},
		{"who was not denied", Token, []string{"allow", "cert:a"}, answers{"AllowSubject": &govnodev1.AllowSubjectResponse{}}, "was not denied", "let into", false},
		{"a value", State, []string{"delete", "k"}, answers{"Delete": &govnodev1.DeleteResponse{Found: true}}, "deleted", "none", false},
		{"no value", State, []string{"delete", "k"}, answers{"Delete": &govnodev1.DeleteResponse{}}, "there was none", "deleted", false},
		{"a list", State, []string{"delete", "k", "--list"}, answers{"DeleteList": &govnodev1.DeleteListResponse{Found: true}}, "deleted", "none", false},
		{"no list", State, []string{"delete", "k", "--list"}, answers{"DeleteList": &govnodev1.DeleteListResponse{}}, "there was none", "deleted", false},
		{"a slot", Slot, []string{"release", "p", "s"}, answers{"ForceRelease": &govnodev1.ForceReleaseResponse{Outcome: govnodev1.Outcome_OUTCOME_RELEASED}}, "released", "not", false},
		{"no slot", Slot, []string{"release", "p", "s"}, answers{"ForceRelease": &govnodev1.ForceReleaseResponse{Outcome: govnodev1.Outcome_OUTCOME_NOT_FOUND}}, "not", "released", true},
		{"room at a rate", Rate, []string{"take", "r"}, answers{"TakeRate": &govnodev1.TakeRateResponse{Outcome: govnodev1.Outcome_OUTCOME_ADMITTED}}, "admitted", "room", false},
		{"no room at a rate", Rate, []string{"take", "r"}, answers{"TakeRate": &govnodev1.TakeRateResponse{
			Outcome: govnodev1.Outcome_OUTCOME_RATE_LIMITED, Reason: "full", RetryAfter: durationpb.New(time.Second),
		}}, "there is room in 1s", "admitted", true},
		{"a member", Cluster, []string{"remove", "n1"}, answers{"Status": member, "RemoveNode": &govnodev1.RemoveNodeResponse{}}, "removed n1", "no member", false},
		{"no member", Cluster, []string{"remove", "n9"}, answers{"Status": member, "RemoveNode": &govnodev1.RemoveNodeResponse{}}, "n9 was no member", "removed", false},
		{"the last vote", Approval, []string{"approve", "x", "--approver", "amy"}, answers{"Decide": vote(govnodev1.ApprovalState_APPROVAL_STATE_APPROVED)}, "approved", "pending", false},
		{"a vote of two", Approval, []string{"approve", "x", "--approver", "amy"}, answers{"Decide": vote(govnodev1.ApprovalState_APPROVAL_STATE_PENDING)}, "pending", "approved", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := httptest.NewServer(tt.node)
			defer node.Close()
			run := func(output string) (said string, err error) {
				var out bytes.Buffer
				cmd := tt.command()
				cmd.SilenceErrors, cmd.SilenceUsage = true, true
				cmd.SetOut(&out)
				cmd.SetErr(&out)
				cmd.SetArgs(append(tt.args, "--addr", node.Listener.Addr().String(), "--output", output))
				if err = cmd.Execute(); err != nil {
					return out.String() + err.Error(), err
				}
				return out.String(), nil
			}
			said, err := run("text")
			require.Equal(t, tt.fails, err != nil, said)
			require.Contains(t, said, tt.says)
			require.NotContains(t, said, tt.lacks)
			said, err = run("json")
			require.Equal(t, tt.fails, err != nil, "with JSON: %s", said)
		})
	}
}
