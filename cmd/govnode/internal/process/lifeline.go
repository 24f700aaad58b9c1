package process

import (
	"io"
	"os"
	"os/exec"
	"runtime"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// How processes are started that must not outlive the one that started them.

// ChildFlag marks a node that must not outlive the process that started it.
const ChildFlag = "end-with-stdin"

// EndWithParent ends this process when its standard input does, which is a pipe
// whose other end the parent holds: the kernel closes it however the parent
// died. On Linux the kernel kills the child by itself, see tieToParent.
func EndWithParent(stdin io.Reader) {
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		os.Exit(terminal.ExitNo)
	}()
}

// A Spawner starts processes from one thread that lives as long as it does.
// Linux kills a child when the thread that started it ends, not the process,
// and the Go runtime may end any thread but one that is held.
type Spawner struct{ jobs chan func() }

// NewSpawner holds a thread until Close.
func NewSpawner() *Spawner {
	s := &Spawner{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// Start starts a process that ends with this one.
func (s *Spawner) Start(cmd *exec.Cmd) error {
	tieToParent(cmd)
	result := make(chan error)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

// Close ends the thread, and with it what is still running.
func (s *Spawner) Close() { close(s.jobs) }
