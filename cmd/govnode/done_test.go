package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// answers is a node that has one answer for each method, whatever it is asked.
type answers map[string]proto.Message

// A scripted is such a node, which may have something else to say of one method.
type scripted struct {
	answers answers
	method  string
	says    error // instead of its answer; http.ErrAbortHandler for nothing at all

	mu    sync.Mutex
	asked int // for the method
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a request that is not whole is not there
	called := path.Base(r.URL.Path)
	if called == s.method {
		s.mu.Lock()
		s.asked++
		s.mu.Unlock()
		if errors.Is(s.says, http.ErrAbortHandler) {
			panic(http.ErrAbortHandler)
		}
		if s.says != nil {
			_ = connect.NewErrorWriter().Write(w, r, s.says) // the command says if it got nothing
			return
		}
	}
	m := s.answers[called]
	if m == nil {
		http.NotFound(w, r)
		return
	}
	b, _ := proto.Marshal(m)
	if kind := r.Header.Get("Content-Type"); kind == "application/connect+proto" { // a stream: a message, and its end
		w.Header().Set("Content-Type", kind)
		head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b)))
		_, _ = w.Write(append(append(head, b...), 2, 0, 0, 0, 2, '{', '}'))
		return
	}
	w.Header().Set("Content-Type", "application/proto")
	_, _ = w.Write(b)
}

// saying is the error of a node, with its reason.
func saying(code connect.Code, reason, text string) error {
	err := connect.NewError(code, errors.New(text))
	if d, failed := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: reason}); failed == nil {
		err.AddDetail(d)
	}
	return err
}

// A deed is a command that changes something, and what it makes of an answer.
type deed struct {
	name   string
	line   string // with files in DIR
	method string // that changes it; empty where it is changed here
	node   answers
	says   string
	lacks  string // of what it would say else
	code   int
}

// deeds are all commands that change something: each at least once, and once for each
// thing that may have come of it.
func deeds() []deed {
	kill := func(swept bool) *govnodev1.SignalResponse {
		return &govnodev1.SignalResponse{Closed: 2, Released: 1, Signal: &govnodev1.Signal{
			Signal: "KILL", Swept: swept, Target: &govnodev1.Signal_AgentId{AgentId: "a"},
		}}
	}
	vote := func(state govnodev1.ApprovalState) answers {
		return answers{"Decide": &govnodev1.ApprovalServiceDecideResponse{Approval: &govnodev1.Approval{Id: "x", State: state, Required: 2}}}
	}
	took := func(outcome govnodev1.Outcome, reason string, retry time.Duration) answers {
		return answers{"TakeRate": &govnodev1.TakeRateResponse{Outcome: outcome, Reason: reason, RetryAfter: durationpb.New(retry)}}
	}
	member := &govnodev1.StatusResponse{Peers: []*govnodev1.Peer{{Node: "n1"}}}
	flow := answers{
		"GetSession": &govnodev1.GetSessionResponse{Session: &govnodev1.Session{SessionId: "s", PolicyDigest: "sha256:0"}},
		"GetPolicy": &govnodev1.GetPolicyResponse{Policy: &govnodev1.Policy{Files: []*govnodev1.TextFile{{Path: "flow.yaml", Content: `apiVersion: edictum/v1
kind: Workflow
metadata: {name: flow}
stages: [{id: a, tools: [Read]}, {id: b}]
`}}}},
		"Get": &govnodev1.GetResponse{Version: "0"}, "Set": &govnodev1.SetResponse{Version: "1"},
	}
	put := &govnodev1.PutPolicyResponse{Name: "p", Version: 3, Digest: "sha256:0"}
	const since = "done; it was deleted since\n"
	return []deed{
		{"a kill that is over", "signal kill --agent a", "Signal", answers{"Signal": kill(true)}, "killed agent a: 2 sessions closed, 1 leases ended\n", "so far", 0},
		{"a kill that goes on", "signal kill --agent a", "Signal", answers{"Signal": kill(false)}, "so far; the cluster goes on with the others", "freed\n", 0},
		{"a kill that was lifted since", "signal kill --agent a", "Signal", answers{"Signal": &govnodev1.SignalResponse{}}, "nothing stands there", "killed", 0},
		{"a stop", "signal stop --everything", "Signal", answers{"Signal": &govnodev1.SignalResponse{Signal: &govnodev1.Signal{Signal: "STOP"}}}, "stopped everything\n", "nothing", 0},
		{"what goes on", "signal continue --session s", "Signal", answers{"Signal": &govnodev1.SignalResponse{}}, "nothing stands there", "stopped", 0},
		{"a session", "session close s", "CloseSession", answers{"CloseSession": &govnodev1.CloseSessionResponse{Session: &govnodev1.Session{SessionId: "s"}, Released: 2}}, "closed s, 2 leases ended\n", "not", 0},

		{"a token is made", "token create --role agent", "CreateToken", answers{"CreateToken": &govnodev1.CreateTokenResponse{}}, "gn_default.", "gnj_", 0},
		{"a join token", "token create --join", "CreateToken", answers{"CreateToken": &govnodev1.CreateTokenResponse{}}, "gnj_", "gn_", 0},
		{"a token", "token revoke abcd", "RevokeToken", answers{"RevokeToken": &govnodev1.RevokeTokenResponse{Revoked: true}}, "revoked abcd", "no token", 0},
		{"no token", "token revoke abcd", "RevokeToken", answers{"RevokeToken": &govnodev1.RevokeTokenResponse{}}, "there was no token abcd", "revoked", 0},
		{"a token by its text", "token revoke gn_blue.green.abcd.0123456789abcdefghijkl", "RevokeToken", answers{"RevokeToken": &govnodev1.RevokeTokenResponse{Revoked: true}}, "revoked abcd of blue.green\n", "0123", 0},
		{"who is denied", "token deny cert:a", "DenySubject", answers{"DenySubject": &govnodev1.DenySubjectResponse{}}, "cert:a is kept out of default\n", "not", 0},
		{"who was denied", "token allow cert:a", "AllowSubject", answers{"AllowSubject": &govnodev1.AllowSubjectResponse{Allowed: true}}, "is let into", "not denied", 0},
		{"who was not denied", "token allow cert:a", "AllowSubject", answers{"AllowSubject": &govnodev1.AllowSubjectResponse{}}, "was not denied", "let into", 0},
		{"quotas", "quota put team --sessions 3", "PutQuotas", answers{"PutQuotas": &govnodev1.PutQuotasResponse{Quotas: &govnodev1.Quotas{Sessions: 3}}}, "sessions    3\n", "USED", 0},
		{"a login", "login --token gn_default.abcd.secret", "", answers{"WhoAmI": &govnodev1.WhoAmIResponse{Principal: "token:abcd", Namespace: "default"}}, "token:abcd of default", "no token", 0},
		{"nobody who is logged in", "logout", "", nil, "no token was kept for ", "kept no more", 0},

		{"a value", "state set k v", "Set", answers{"Set": &govnodev1.SetResponse{Version: "v1"}}, "set: version v1\n", "not", 0},
		{"a value goes", "state delete k", "Delete", answers{"Delete": &govnodev1.DeleteResponse{Found: true}}, "deleted", "none", 0},
		{"no value", "state delete k", "Delete", answers{"Delete": &govnodev1.DeleteResponse{}}, "there was none", "deleted", 0},
		{"items", "state append k a b --ttl 1h", "Append", answers{"Append": &govnodev1.AppendResponse{Length: 7}}, "appended: length 7\n", "not", 0},
		{"a list goes", "state delete k --list", "DeleteList", answers{"DeleteList": &govnodev1.DeleteListResponse{Found: true}}, "deleted", "none", 0},
		{"no list", "state delete k --list", "DeleteList", answers{"DeleteList": &govnodev1.DeleteListResponse{}}, "there was none", "deleted", 0},

		{"a pool", "pool put gpu --slots 3", "PutPool", answers{"PutPool": &govnodev1.PutPoolResponse{Pool: &govnodev1.Pool{Pool: "gpu"}}}, "gpu ", "deleted", 0},
		{"a pool that was deleted since", "pool put gpu --slots 3", "PutPool", answers{"PutPool": &govnodev1.PutPoolResponse{}}, since, "POOL", 0},
		{"a pool goes", "pool delete gpu", "DeletePool", answers{"DeletePool": &govnodev1.DeletePoolResponse{}}, "deleted gpu\n", "not", 0},
		{"a slot", "slot release p s", "ForceRelease", answers{"ForceRelease": &govnodev1.ForceReleaseResponse{Outcome: govnodev1.Outcome_OUTCOME_RELEASED}}, "released", "not", 0},
		{"no slot", "slot release p s", "ForceRelease", answers{"ForceRelease": &govnodev1.ForceReleaseResponse{Outcome: govnodev1.Outcome_OUTCOME_NOT_FOUND}}, "not", "released", 1},

		{"a rate", "rate put r --limit 3 --per 1m", "PutRate", answers{"PutRate": &govnodev1.PutRateResponse{Rate: &govnodev1.Rate{Rate: "r"}}}, "r ", "deleted", 0},
		{"a rate that was deleted since", "rate put r --limit 3 --per 1m", "PutRate", answers{"PutRate": &govnodev1.PutRateResponse{}}, since, "RATE", 0},
		{"a rate goes", "rate delete r", "DeleteRate", answers{"DeleteRate": &govnodev1.DeleteRateResponse{}}, "deleted r\n", "not", 0},
		{"room at a rate", "rate take r", "TakeRate", took(govnodev1.Outcome_OUTCOME_ADMITTED, "", 0), "admitted", "room", 0},
		{"no room at a rate", "rate take r", "TakeRate", took(govnodev1.Outcome_OUTCOME_RATE_LIMITED, "full", time.Second), "r: full; there is room in 1s", "admitted", 1},
		{"no place at a rate", "rate take r --wait 1s", "TakeRate", took(govnodev1.Outcome_OUTCOME_QUEUE_FULL, "too many wait", 0), "r: too many wait\n", "admitted", 1},
		{"no room in time", "rate take r --wait 1s", "TakeRate", took(govnodev1.Outcome_OUTCOME_WAIT_TIMEOUT, "waited in vain", 0), "r: waited in vain\n", "admitted", 1},

		{"a budget", "budget put b --amount 9", "PutBudget", answers{"PutBudget": &govnodev1.PutBudgetResponse{Budget: &govnodev1.Budget{Budget: "b"}}}, "b ", "deleted", 0},
		{"a budget that was deleted since", "budget put b --amount 9", "PutBudget", answers{"PutBudget": &govnodev1.PutBudgetResponse{}}, since, "BUDGET", 0},
		{"a charge", "budget adjust b --by 2", "AdjustBudget", answers{"AdjustBudget": &govnodev1.AdjustBudgetResponse{Budget: &govnodev1.Budget{Budget: "b", Used: "2"}}}, "b ", "deleted", 0},
		{"a charge of what was deleted since", "budget adjust b --by 2", "AdjustBudget", answers{"AdjustBudget": &govnodev1.AdjustBudgetResponse{}}, since, "BUDGET", 0},
		{"a budget goes", "budget delete b", "DeleteBudget", answers{"DeleteBudget": &govnodev1.DeleteBudgetResponse{}}, "deleted b\n", "not", 0},

		{"the last vote", "approval approve x --approver amy", "Decide", vote(govnodev1.ApprovalState_APPROVAL_STATE_APPROVED), "approved", "pending", 0},
		{"a vote of two", "approval approve x --approver amy", "Decide", vote(govnodev1.ApprovalState_APPROVAL_STATE_PENDING), "pending", "approved", 0},
		{"a vote against", "approval deny x --approver amy", "Decide", vote(govnodev1.ApprovalState_APPROVAL_STATE_DENIED), "denied", "approved", 0},
		{"a vote on what was dropped since", "approval deny x --approver amy", "Decide", answers{"Decide": &govnodev1.ApprovalServiceDecideResponse{}}, "it was dropped since\n", "denied", 0},
		{"what is asked no more", "approval cancel x", "Cancel", answers{"Cancel": &govnodev1.ApprovalServiceCancelResponse{}}, "cancelled x\n", "not", 0},
		{"what stands", "approval stand t --agent a --for 1h", "PutStanding", answers{"PutStanding": &govnodev1.PutStandingResponse{Standing: &govnodev1.Standing{Id: "id", Tool: "t"}}}, "id ", "deleted", 0},
		{"what is used up", "approval stand t --agent a --for 1h", "PutStanding", answers{"PutStanding": &govnodev1.PutStandingResponse{}}, "done; it was used up or taken back since\n", "STANDING", 0},
		{"what stands no more", "approval unstand id", "DeleteStanding", answers{"DeleteStanding": &govnodev1.DeleteStandingResponse{}}, "taken back id\n", "not", 0},

		{"ids", "repair", "RepairIDs", answers{"RepairIDs": &govnodev1.RepairIDsResponse{Lowered: true}}, "repaired: ", "nothing", 0},
		{"ids that were taken", "repair", "RepairIDs", answers{"RepairIDs": &govnodev1.RepairIDsResponse{}}, "nothing was closed: ", "repaired", 0},
		{"a member comes", "cluster add n4 127.0.0.1:7", "AddNode", answers{"AddNode": &govnodev1.AddNodeResponse{}}, "added n4\n", "not", 0},
		{"a member", "cluster remove n1", "RemoveNode", answers{"Status": member, "RemoveNode": &govnodev1.RemoveNodeResponse{}}, "removed n1", "no member", 0},
		{"no member", "cluster remove n9", "RemoveNode", answers{"Status": member, "RemoveNode": &govnodev1.RemoveNodeResponse{}}, "n9 was no member", "removed", 0},
		{"a leader", "cluster transfer n2", "TransferLeadership", answers{"TransferLeadership": &govnodev1.TransferLeadershipResponse{Leader: "n2"}}, "n2 leads\n", "another", 0},
		{"some leader", "cluster transfer", "TransferLeadership", answers{"TransferLeadership": &govnodev1.TransferLeadershipResponse{}}, "another node leads\n", "n2", 0},
		{"a state", "snapshot restore DIR/state.snap", "Restore", answers{"Restore": &govnodev1.RestoreResponse{Index: 9}}, "restored ", "not", 0},

		{"a policy", "policy put DIR/p.yaml", "PutPolicy", answers{"PutPolicy": put}, "p version 3 sha256:0\n", "not", 0},
		{"a policy goes", "policy delete p", "DeletePolicy", answers{"DeletePolicy": &govnodev1.DeletePolicyResponse{}}, "deleted p\n", "not", 0},
		{"a stage", "edictum workflow set s b", "Set", flow, "STAGE      b\n", "not", 0},
		{"a stage again", "edictum workflow reset s a", "Set", flow, "STAGE      a\n", "not", 0},
	}
}

// doingNothing are the commands that leave everything as it is but for files and
// processes of their own. Those that are ended by a slash are groups of such.
var doingNothing = []string{
	"dev", "serve", "demo/", "bench/", "tls/", "config/", "completion/", "help", "version", "audit/",
	"policy validate", "policy lint", "policy eval", "policy scan", "policy test", "policy diff", "policy list", "policy get",
	"explain", "events", "whoami", "session list", "session get", "signal list", "approval list", "approval show", "approval watch", "approval standing",
	"slot list", "pool list", "rate get", "rate list", "budget get", "budget list", "state get", "state range", "token list", "quota get",
	"cluster status", "snapshot save", "snapshot inspect",
	"edictum validate", "edictum check", "edictum diff", "edictum replay", "edictum test", "edictum key", "edictum workflow show",
}

// What a node has done, what it has done in part, and what it has not done at all
// read differently, and so does what nobody knows; and whether a command fails, and with
// which code, does not depend on how it prints.
func TestWhatIsNotDoneIsNotSaidToBe(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	dir := t.TempDir()
	var snapshot bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&snapshot, session.New().Snapshot()))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "state.snap"), snapshot.Bytes(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p.yaml"), []byte("name: p\nmax_tool_calls: 1\n"), 0o600))
	run := func(d *deed, node *scripted, output string) (code int, printed, said string) {
		server := httptest.NewServer(node)
		defer server.Close()
		var stdout, stderr bytes.Buffer
		line := strings.Fields(strings.ReplaceAll(d.line, "DIR", dir))
		code = execute(append(line, "--addr", server.Listener.Addr().String(), "--output", output), &stdout, &stderr)
		return code, stdout.String(), stderr.String()
	}
	for _, d := range deeds() {
		t.Run(d.name, func(t *testing.T) {
			for _, output := range []string{"text", "json"} {
				code, printed, said := run(&d, &scripted{answers: d.node}, output)
				require.Equal(t, d.code, code, "%s: %s%s", output, printed, said)
				require.Equal(t, d.code == terminal.ExitYes, said == "", "%s: %s", output, said)
				if output == "json" {
					require.True(t, json.Valid([]byte(printed)), printed)
					continue
				}
				require.Contains(t, printed+said, d.says)
				require.NotContains(t, printed+said, d.lacks)
			}
			if d.method == "" {
				return
			}
			for _, no := range []struct {
				name        string
				says        error
				text, lacks string
			}{
				{"refused", saying(connect.CodeFailedPrecondition, "POOL_IN_USE", "somebody is against it"), "somebody is against it (failed_precondition, POOL_IN_USE)", "not known"},
				{"not applied", saying(connect.CodeUnavailable, "NOT_APPLIED", "nothing was applied; send it again with the same id, here or at another node: no leader"), "nothing was applied; ask again, here or at another node: no leader", "not known"},
				{"nobody knows", saying(connect.CodeUnavailable, "OUTCOME_UNKNOWN", "it is not known whether this was applied; send it again with the same id: lost the leader"), "lost the leader (unavailable, OUTCOME_UNKNOWN); it is not known whether a change was made: ", "same id"},
				{"the answer is lost", http.ErrAbortHandler, "it is not known whether a change was made: ", "same id"},
			} {
				for _, output := range []string{"text", "json"} {
					node := &scripted{answers: d.node, method: d.method, says: no.says}
					code, printed, said := run(&d, node, output)
					require.Equal(t, terminal.ExitNo, code, "%s, %s: %s", no.name, output, said)
					require.Empty(t, printed, "%s, %s", no.name, output)
					require.Contains(t, said, no.text, "%s, %s", no.name, output)
					require.NotContains(t, said, no.lacks, "%s, %s", no.name, output)
					require.Equal(t, 1, strings.Count(said, "\n"), said)
					require.Equal(t, 1, node.asked, "%s, %s", no.name, output)
				}
			}
		})
	}
}

// Every command is in the table, or is said to change nothing.
func TestEveryCommandThatChangesSomethingIsLookedAt(t *testing.T) {
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			look(c)
		}
		name := strings.TrimPrefix(cmd.CommandPath(), "govnode ")
		if !cmd.Runnable() || cmd.HasSubCommands() && cmd.Name() != "bench" {
			return
		}
		known := false
		for _, n := range doingNothing {
			group, isGroup := strings.CutSuffix(n, "/")
			known = known || name == n || isGroup && (name == group || strings.HasPrefix(name, group+" "))
		}
		for _, d := range deeds() {
			known = known || strings.HasPrefix(d.line+" ", name+" ")
		}
		if !known {
			t.Errorf("%s: is it a deed?", name)
		}
	}
	root := rootCommand()
	root.InitDefaultCompletionCmd()
	look(root)
}
