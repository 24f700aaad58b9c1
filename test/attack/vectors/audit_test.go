//go:build attack

package vectors

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/processes"
)

// TestAudit attacks the audit of a node that takes no decision without it.
func TestAudit(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a disk that can be full takes root")
	}
	disk := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	said := &printed{}
	s := start(t, 1, true, func(c *processes.Cluster) {
		require.NoError(t, c.AuditTo(disk))
		c.Nodes[0].Prints = said
	}, "--audit-mode", "required", "--log-level", "debug")
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 1000\n"})
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "s", "agentId": "a", "policy": object{"name": "p"}})
	t.Run("lines", func(t *testing.T) { forgedLines(t, s, said) })
	t.Run("disk", func(t *testing.T) { fullDisk(t, s, disk) })
}

// verify holds the audit of the nodes to the state.
func (s *secured) verify(more ...string) (string, error) {
	args := []string{"audit", "verify"}
	for _, n := range s.Nodes {
		args = append(args, n.Audit)
	}
	out, err := exec.Command(program, append(args, more...)...).CombinedOutput()
	return string(out), err
}

// at are flags by which a command asks a node.
func (s *secured) at(i int, token string) []string {
	return []string{"--addr", s.URL(s.Nodes[i]), "--tls-ca", s.Secured.Authority(), "--token", token}
}

// Texts that would end a line, a field or the patience of a terminal stay in the field
// that they were sent in.
func forgedLines(t *testing.T, s *secured, said *printed) {
	forged := []string{
		"x\n" + `{"event_type":"change","principal":"forged"}`, "x\r\n" + `{"event_type":"forged"}` + "\n", `x","principal":"forged","y":"`,
		`x\","principal":"forged`, "x\x1b[2K\x1b[1A\x1b]0;forged\a", "x\u2028forged\u2029\u0085", "x\u202eforged", "x\x00forged", "x\x9b2Jforged", "\ufeffforged",
	}
	for i, text := range forged {
		asked := map[string]object{
			"CallService/BeginCall":        {"sessionId": "s", "callId": fmt.Sprint("c", i), "tool": text, "context": object{text: text}, "metadata": object{text: text}},
			"PolicyService/Evaluate":       {"sessionId": "s", "tool": text, "context": object{text: text}, "agentId": text},
			"SessionService/Signal":        {"sessionId": "s", "signal": "HELLO", "reason": text, "requestId": text},
			"SessionService/CreateSession": {"sessionId": text, "agentId": text, "policy": object{"name": text}},
			"CounterService/Set":           {"key": text, "value": text, "client": text},
			"PolicyService/PutHash":        {"tool": text, "hash": strings.Repeat("ab", 32)},
			"PolicyService/PutPolicy":      {"name": text, "yaml": text},
			"SlotService/PutPool":          {"pool": text, "slots": 1},
			"ApprovalService/Request":      {"agentId": "a", "tool": text, "message": text},
			"AccessService/DenySubject":    {"subject": "jwt:" + text, "reason": text},
		}
		for method, body := range asked {
			_, err := s.ask(0, s.admin, method, body, "User-Agent", "x")
			require.NoError(t, err)
		}
		_, err := s.ask(0, s.Secured.Operator(), "ClusterService/AddNode", object{"node": text, "address": text})
		require.NoError(t, err)
	}
	seen, lines := 0, strings.Split(strings.TrimSuffix(string(read(t, s.Nodes[0].Audit)), "\n"), "\n")
	for _, line := range lines {
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &fields), "%q", line)
		require.NotEqual(t, "forged", fields["event_type"], line)
		require.NotEqual(t, "forged", fields["principal"], line)
		require.NotContains(t, line, `"principal":"forged"`, line)
		for _, c := range line {
			require.False(t, c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0, "%q", line)
		}
		if strings.Contains(line, "forged") {
			seen++
		}
	}
	require.Greater(t, seen, len(forged), "of what was sent hardly anything is there")
	out, err := s.verify(append(s.at(0, s.admin), "--state")...)
	require.NoError(t, err, out)
	for line := range strings.Lines(said.text()) {
		require.True(t, strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "node n1 "), "%q", line)
		require.NotContains(t, line, "\x1b")
	}
}

// Nothing is decided while the disk of the audit is full, and behind it nothing is
// missing.
func fullDisk(t *testing.T, s *secured, disk string) {
	begin := func(id string) answer {
		a, err := s.ask(0, s.admin, "CallService/BeginCall", object{"sessionId": "s", "callId": id, "tool": "t"})
		require.NoError(t, err)
		return a
	}
	require.Equal(t, "OUTCOME_ADMITTED", begin("before").Object()["outcome"])
	ballast, block := filepath.Join(disk, "ballast"), make([]byte, 512)
	f, err := os.Create(ballast)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	s.until("the disk is full for the audit", func() bool {
		a := begin("late") // what was decided as it filled is not told
		return a.Code() == "unavailable"
	})
	s.unchanged(t, func() {
		for method, body := range map[string]object{
			"CallService/BeginCall":  {"sessionId": "s", "callId": "none", "tool": "t"},
			"PolicyService/Evaluate": {"sessionId": "s", "tool": "t"},
			"PolicyService/PutHash":  {"tool": "t", "hash": strings.Repeat("cd", 32)},
		} {
			a, err := s.ask(0, s.admin, method, body)
			require.NoError(t, err)
			require.Equal(t, "unavailable", a.Code(), "%s: %s", method, a)
		}
		a := s.get(0, "", "/readyz")
		require.Equal(t, http.StatusServiceUnavailable, a.Status, a)
	})
	require.NoError(t, os.Remove(ballast))
	s.until("the audit can be written", func() bool { return begin("late").Object()["outcome"] == "OUTCOME_ADMITTED" })
	out, _ := s.verify(append(s.at(0, s.admin), "--state")...)
	for line := range strings.Lines(out) { // the line that the disk had no room for is there again, behind what there is of it
		require.False(t, strings.Contains(line, ".jsonl:") && !strings.Contains(line, "this is no whole line of the log"), out)
	}
	require.Regexp(t, `lines, \d+ changes of \d+ chains, [01] problems`, out)
	lines := strings.Split(string(read(t, s.Nodes[0].Audit)), "\n")
	for _, id := range []string{"before", "late"} {
		require.True(t, slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, fmt.Sprintf(`"call_id":%q`, id)) }), id)
	}
	require.False(t, slices.ContainsFunc(lines, func(l string) bool {
		return strings.Contains(l, `"call_id":"none"`) && strings.Contains(l, `"outcome":"admitted"`)
	}))
}
