package process

import (
	"os/exec"
	"syscall"
)

// tieToParent has the kernel kill the process with its parent, and keeps it
// out of the parent's process group: a Ctrl-C reaches the parent alone, which
// then ends its children in good order.
func tieToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
