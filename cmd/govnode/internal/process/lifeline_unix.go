//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// tieToParent keeps the process out of the parent's process group: a Ctrl-C
// reaches the parent alone, which then ends its children in good order. Should
// the parent die, the pipe on standard input tells.
func tieToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
