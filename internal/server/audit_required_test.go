package server_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
)

// fullDisk is an audit log that cannot be written to while it is full.
type fullDisk struct {
	lines
	mu   sync.Mutex
	full bool
}

func (d *fullDisk) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return 0, errors.New("no space left on device")
	}
	return d.lines.Write(b)
}

func (d *fullDisk) fill(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

func startAudited(t *testing.T, required bool) (*node, *fullDisk) {
	t.Helper()
	disk := &fullDisk{}
	n := start(t, func(c *server.Config) { c.Audit, c.AuditRequired = disk, required })
	n.putPolicy(policy("log_all_calls: true")...)
	n.session("s")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "before").Outcome)
	return n, disk
}

// Where the audit log is required nothing is decided that it does not have: what
// was decided when it broke is not told and not called undone, what comes after is
// refused, and what gives back goes on. When it can be written again it has all,
// and the same ids get their first answers.
func TestARequiredAuditLog(t *testing.T) {
	frame := func() *v1.Operation { return beginFrame(1, "s", "c") }
	for name, begin := range map[string]func(*node) string{
		"unary": func(n *node) string {
			_, err := n.calls.BeginCall(n.ctx(), frame().GetBegin())
			return saidOf(n.t, err)
		},
		"batch": func(n *node) string {
			res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{frame()}})
			require.NoError(n.t, err)
			return saidOfResult(n.t, res.Results[0])
		},
		"exchange": func(n *node) string {
			l := n.exchange()
			l.send(frame())
			return saidOfResult(n.t, l.one())
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, disk := startAudited(t, true)
			disk.fill(true)
			require.Equal(t, "unavailable OUTCOME_UNKNOWN", begin(n))
			require.EqualValues(t, 2, n.getSession("s").Attempts)
			require.Equal(t, "unavailable NOT_APPLIED", begin(n), "it is known to be broken by now")
			for _, err := range decisions(n) {
				requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "no space left on device")
			}
			require.EqualValues(t, 2, n.getSession("s").Attempts)
			code, text := n.get("/readyz")
			require.Equal(t, http.StatusServiceUnavailable, code)
			require.Contains(t, text, "audit: the log cannot be written")
			_, metrics := n.get("/metrics")
			require.Contains(t, metrics, "\ngov_audit_failing 1\n")
			require.Equal(t, v1.Outcome_OUTCOME_ENDED, n.end("s", "before").Outcome, "what ends is not refused")

			disk.fill(false)
			eventually(t, "the node is ready again", func() bool { code, _ := n.get("/readyz"); return code == http.StatusOK })
			require.Empty(t, begin(n), "it was admitted the first time")
			require.EqualValues(t, 2, n.getSession("s").Attempts)
			var of []any
			for _, line := range disk.all(t) {
				if line["call_id"] == "c" {
					of = append(of, line["repeat"])
				}
			}
			require.Equal(t, []any{false, true}, of, "the first decision is there, and its repeat")
			_, metrics = n.get("/metrics")
			require.Contains(t, metrics, "\ngov_audit_failing 0\n")
		})
	}
}

// Where lines are chained each change has one. What ends something or gives it back is
// done all the same; its answer is not known, and a repeat, which changes nothing, tells it.
func TestARequiredAuditLogOfChains(t *testing.T) {
	disk := &fullDisk{}
	n := start(t, func(c *server.Config) {
		c.Audit, c.AuditRequired, c.AuditChain = disk, true, &audit.Tail{Node: "n1"}
	})
	n.putPolicy(policy()...)
	n.session("s")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c").Outcome)
	n.putPool("gpu", 1)
	slot := n.acquire("gpu", "1")
	disk.fill(true)

	end := &v1.EndCallRequest{SessionId: "s", CallId: "c", Status: v1.Status_STATUS_SUCCEEDED}
	_, err := n.calls.EndCall(n.ctx(), end)
	require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOf(t, err))
	ended, err := n.calls.EndCall(n.ctx(), end)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, ended.Outcome)

	release := &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: "1", Client: "w", Token: slot.Token}
	_, err = n.slots.ReleaseSlot(n.ctx(), release)
	require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOf(t, err))
	released, err := n.slots.ReleaseSlot(n.ctx(), release)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_RELEASED, released.Outcome)

	closing := &v1.CloseSessionRequest{SessionId: "s"}
	_, err = n.sessions.CloseSession(n.ctx(), closing)
	require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOf(t, err))
	_, err = n.sessions.CloseSession(n.ctx(), closing)
	require.NoError(t, err)
}

// decisions are the requests whose record is in the audit log whatever becomes of
// them.
func decisions(n *node) map[string]error {
	errs := map[string]error{}
	_, errs["Evaluate"] = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	_, errs["PutPolicy"] = n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_concurrent: 1\n"})
	_, errs["PutHash"] = n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: hashOfATool})
	_, errs["DeleteHash"] = n.policies.DeleteHash(n.ctx(), &v1.DeleteHashRequest{Tool: "t"})
	_, errs["ForceRelease"] = n.slots.ForceRelease(n.ctx(), &v1.ForceReleaseRequest{SessionId: "s", SlotId: "before"})
	return errs
}

// Where it is not required everything goes on, and is said to go on without.
func TestAnAuditLogAtBestEffort(t *testing.T) {
	n, disk := startAudited(t, false)
	disk.fill(true)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c").Outcome)
	for what, err := range decisions(n) {
		require.NoError(t, err, what)
	}
	code, _ := n.get("/readyz")
	require.Equal(t, http.StatusOK, code)
	_, metrics := n.get("/metrics")
	require.Contains(t, metrics, "\ngov_audit_failing 1\n")
}

// A decision that changes nothing and cannot be written was not applied.
func TestWhatChangesNothingIsNotUnknown(t *testing.T) {
	n, disk := startAudited(t, true)
	disk.fill(true)
	_, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	require.Equal(t, "unavailable NOT_APPLIED", saidOf(t, err))
}
