//go:build attack

package vectors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStoredPolicies attacks policies that are stored, and that sessions rest on.
func TestStoredPolicies(t *testing.T) {
	s := secure(t, 3)
	t.Run("66", func(t *testing.T) { otherBytesUnderADigest(t, s) })
	t.Run("67", func(t *testing.T) { replacedWhileASessionRuns(t, s) })
	t.Run("68", func(t *testing.T) { deletedWhilePinned(t, s) })
	t.Run("69", func(t *testing.T) { changedOnDisk(t, s) })
}

// digestOf is what a policy of one file is addressed by: the SHA-256 of its files.
func digestOf(path, content string) string {
	b := []byte("govnode-tree/1\n")
	for _, part := range []string{path, content} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A digest is no word of who puts a policy: it is made from the bytes.
func otherBytesUnderADigest(t *testing.T, s *secured) {
	const strict, loose = "max_tool_calls: 3\n", "max_tool_calls: 3000\n"
	put := s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "d", "yaml": strict})
	require.Equal(t, digestOf("policy.yaml", strict), put["digest"])
	digest := put["digest"].(string)
	field := func(number byte, text string) string { return string([]byte{number<<3 | 2, byte(len(text))}) + text }
	s.unchanged(t, func() {
		a, err := s.ask(1, s.admin, "PolicyService/PutPolicy", object{"name": "d", "yaml": loose, "digest": digest})
		require.NoError(t, err)
		require.Equal(t, "invalid_argument", a.Code(), a)
		// The same in protobuf: name, yaml, and the digest under a number of its own.
		a, err = s.send(1, s.admin, "PolicyService/PutPolicy", []byte(field(1, "d")+field(3, loose)+field(9, digest)), "Content-Type", "application/proto")
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
	})
	again := s.must(1, s.admin, "PolicyService/PutPolicy", object{"name": "d", "yaml": loose})
	require.Equal(t, digestOf("policy.yaml", loose), again["digest"])
	for i := range s.Nodes {
		for want, text := range map[string]string{digest: strict, digestOf("policy.yaml", loose): loose} {
			got := s.must(i, s.admin, "PolicyService/GetPolicy", object{"digest": want})["policy"].(object)
			require.Equal(t, []any{object{"path": "policy.yaml", "content": text}}, got["files"])
		}
	}
}

// A session decides by what it was created under, at every node, whatever the name
// points to later.
func replacedWhileASessionRuns(t *testing.T, s *secured) {
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "r", "yaml": "allowed_tools: [read]\n"})
	session := s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "old", "agentId": "a", "policy": object{"name": "r"}})["session"].(object)
	s.must(1, s.admin, "PolicyService/PutPolicy", object{"name": "r", "yaml": "allowed_tools: [read, exec]\nmax_tool_calls: 1000\n"})
	s.must(1, s.admin, "SessionService/CreateSession", object{"sessionId": "new", "agentId": "a", "policy": object{"name": "r"}})
	for i := range s.Nodes {
		for tool, want := range map[string]string{"read": "OUTCOME_ADMITTED", "exec": "OUTCOME_DENIED_BY_POLICY"} {
			got := s.must(i, s.admin, "CallService/BeginCall", object{"sessionId": "old", "callId": fmt.Sprint(tool, i), "tool": tool})
			require.Equal(t, want, got["outcome"], "%s at %s", tool, s.Nodes[i].Name)
			require.Equal(t, session["policyDigest"], got["decision"].(object)["policyDigest"])
		}
	}
	got := s.must(2, s.admin, "CallService/BeginCall", object{"sessionId": "new", "callId": "c", "tool": "exec"})
	require.Equal(t, "OUTCOME_ADMITTED", got["outcome"], "the counterproof: a new session has the new one")
}

// What a live session pins cannot be deleted, by name or by digest.
func deletedWhilePinned(t *testing.T, s *secured) {
	put := s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "pinned", "yaml": "allowed_tools: [read]\nmax_tool_calls: 7\n"})
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "pins", "agentId": "a", "policy": object{"name": "pinned"}})
	s.unchanged(t, func() {
		for i, ref := range []object{{"name": "pinned"}, {"digest": put["digest"]}} {
			ref["requestId"] = fmt.Sprint("delete", i)
			a, err := s.ask(i, s.admin, "PolicyService/DeletePolicy", ref)
			require.NoError(t, err)
			require.Equal(t, "failed_precondition", a.Code(), a)
			require.Contains(t, string(a.Body), "POLICY_PINNED")
		}
	})
	got := s.must(2, s.admin, "CallService/BeginCall", object{"sessionId": "pins", "callId": "c", "tool": "exec"})
	require.Equal(t, "OUTCOME_DENIED_BY_POLICY", got["outcome"])
	s.must(0, s.admin, "SessionService/CloseSession", object{"sessionId": "pins"})
}

// Where a stored policy was changed on the disk of a node, that node decides nothing by
// it: it does not come up, and says what is damaged. The others go on.
func changedOnDisk(t *testing.T, s *secured) {
	const mark = "only-what-nobody-changed"
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "disk", "yaml": "allowed_tools: [" + mark + "]\n"})
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "disk", "agentId": "a", "policy": object{"name": "disk"}})
	victim := s.Nodes[2]
	begin := func(i int, call, tool string) (string, error) {
		a, err := s.ask(i, s.admin, "CallService/BeginCall", object{"sessionId": "disk", "callId": call, "tool": tool})
		outcome, _ := a.Object()["outcome"].(string)
		return outcome, err
	}
	outcome, err := begin(2, "before", mark)
	require.NoError(t, err)
	require.Equal(t, "OUTCOME_ADMITTED", outcome)
	victim.Kill()

	other := strings.Replace(mark, "o", "x", 1)
	changed := 0
	require.NoError(t, filepath.WalkDir(victim.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasPrefix(d.Name(), "audit") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(content, []byte(mark)) {
			return err
		}
		changed++
		return os.WriteFile(path, bytes.ReplaceAll(content, []byte(mark), []byte(other)), 0o600)
	}))
	require.NotZero(t, changed, "the policy is in no file")
	require.NoError(t, s.Start(victim))
	require.Eventually(t, func() bool {
		outcome, err := begin(2, "after", other)
		require.NotEqual(t, "OUTCOME_ADMITTED", outcome, "it decides by what was changed")
		return err != nil && !victim.Runs()
	}, 20*time.Second, 20*time.Millisecond, "it serves")
	failed := fmt.Sprint(victim.Forgive())
	require.Contains(t, failed, "damaged")
	require.Contains(t, failed, "--replace")
	for i := range 2 {
		outcome, err := begin(i, fmt.Sprint("other", i), other)
		require.NoError(t, err)
		require.Equal(t, "OUTCOME_DENIED_BY_POLICY", outcome)
	}
}
