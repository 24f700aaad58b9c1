package disks

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Tampering is what becomes of the calls of a process to the kernel: which
// ones, and what instead, in the words of strace's inject.
type Tampering string

const (
	// Lying says that everything was flushed, and flushes nothing.
	Lying Tampering = "fsync,fdatasync:retval=0"
	// NoFlush fails to flush.
	NoFlush Tampering = "fsync,fdatasync:error=EIO"
	// NoWrite fails to write at a place of a file, as bolt does, or at its end.
	NoWrite Tampering = "pwrite64:error=EIO"
	// NoRoom has none for what is written.
	NoRoom Tampering = "pwrite64,fallocate,ftruncate:error=ENOSPC"
	// Slow takes 300 ms for each flush.
	Slow Tampering = "fsync,fdatasync:delay_enter=300000"
	// Hanging takes longer for a flush than anybody waits.
	Hanging Tampering = "fsync,fdatasync:delay_enter=600000000"
)

func (t Tampering) options() []string {
	calls, _, _ := strings.Cut(string(t), ":")
	return []string{"-f", "-e", "trace=" + calls, "-e", "signal=none", "-e", "inject=" + string(t), "-o", "/dev/null"}
}

// Command returns the command that starts another one under t from its
// beginning. The process that it starts becomes the other one.
func (t Tampering) Command(args ...string) []string {
	return append(append([]string{"strace", "-D", "-qq", "--seccomp-bpf"}, t.options()...), args...)
}

// A Tamperer stands between a process and the kernel.
type Tamperer struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Attach lets t befall a process that runs, and returns when it does.
func (t Tampering) Attach(pid int) (*Tamperer, error) {
	cmd := exec.Command("strace", append(t.options(), "-p", strconv.Itoa(pid))...)
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	x := &Tamperer{cmd, make(chan struct{})}
	attached := make(chan struct{})
	var said strings.Builder
	go func() {
		defer close(x.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if said.Len() == 0 && strings.Contains(lines.Text(), "attached") {
				close(attached)
			}
			said.WriteString(lines.Text() + "\n")
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	select {
	case <-attached:
		return x, nil
	case <-x.done:
		return nil, fmt.Errorf("disks: strace of %d: %s", pid, said.String())
	case <-time.After(20 * time.Second):
		x.Detach()
		return nil, fmt.Errorf("disks: strace of %d does not begin", pid)
	}
}

// Detach leaves the process alone again, if it still is there. The end of a
// process that was killed is seen by its parent when nobody stands between them
// any more.
func (x *Tamperer) Detach() {
	_ = x.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-x.done:
	case <-time.After(time.Second): // strace waits for one that was stopped or killed
		_ = x.cmd.Process.Kill() // and the kernel lets go of it
		<-x.done
	}
}
