//go:build outside

package outside

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// passed is what the demo tells of those who came to a gate.
type passed struct {
	Violations, Admitted, KeptOut int
	How                           string
}

// The demo shows that nothing was exceeded, leaked, lost or doubled, and that nobody
// passed a gate who must not have; and it shows that on something.
func TestDemo(t *testing.T) {
	cmd := exec.Command(program, "demo", "-o", "json")
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	require.NoError(t, err, progress.String())
	var got struct {
		Admitted, MostSlots, SlotLimit, OverLimit, Leaked, LostOrDoubled, WorkersKilled int
		Refused                                                                         map[string]int
		Stop, Rate, Budget, Approval                                                    passed
		LeaderKilled                                                                    string
		OK                                                                              bool
	}
	require.NoError(t, json.Unmarshal(out, &got))
	require.True(t, got.OK)
	require.Zero(t, got.OverLimit)
	require.Zero(t, got.Leaked)
	require.Zero(t, got.LostOrDoubled)
	require.Equal(t, 2, got.WorkersKilled)
	require.NotEmpty(t, got.LeaderKilled)
	require.Equal(t, 5, got.SlotLimit)
	require.Equal(t, 5, got.MostSlots)
	require.Greater(t, got.Admitted, 50)
	require.Positive(t, got.Refused["CALL_LIMIT"])
	for name, gate := range map[string]passed{"STOP": got.Stop, "rate": got.Rate, "budget": got.Budget, "approvals": got.Approval} {
		require.Zero(t, gate.Violations, name)
		require.Positive(t, gate.Admitted, name)
		require.Positive(t, gate.KeptOut, name)
		require.NotEmpty(t, gate.How, name)
	}
	require.GreaterOrEqual(t, got.Rate.Admitted, 15)
	require.Equal(t, []int{4, 2}, []int{got.Approval.Admitted, got.Approval.KeptOut})
	require.Regexp(t, `APPROVAL: .* decides, at node\d \(pid \d+\)`, progress.String())
	require.GreaterOrEqual(t, strings.Count(progress.String(), " leads   slots in use "), 8, "about a line a second")
}

// A demo that is interrupted leaves no process behind, and neither does one
// that is killed.
func TestDemoEndsWithItsProcesses(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := exec.Command(program, "demo")
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			pid := regexp.MustCompile(`\(pid (\d+)\)$`)
			var pids []int
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				if m := pid.FindStringSubmatch(lines.Text()); m != nil {
					n, err := strconv.Atoi(m[1])
					require.NoError(t, err)
					pids = append(pids, n)
				}
				if strings.Contains(lines.Text(), "slots in use") {
					break
				}
			}
			require.Len(t, pids, 3)
			children := childrenOf(t, cmd.Process.Pid)
			require.GreaterOrEqual(t, len(children), 3+8, "nodes and workers")
			require.NoError(t, cmd.Process.Signal(signal))
			ended := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
			for lines.Scan() { // so that it can print
			}
			require.Error(t, cmd.Wait(), "it was interrupted")
			require.True(t, ended.Stop(), "it does not end")
			for _, child := range children {
				gone(t, child)
			}
		})
	}
}

// childrenOf lists the processes that a process has started.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	out, err := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(pid)).Output()
	require.NoError(t, err)
	for _, field := range strings.Fields(string(out)) {
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		if n != pid {
			children = append(children, n)
		}
	}
	return children
}
