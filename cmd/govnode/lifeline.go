package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
)

// childFlag marks a node that must not outlive the process that started it.
const childFlag = "end-with-stdin"

// endWithParent ends this process when its standard input does, which is a pipe
// whose other end the parent holds: the kernel closes it however the parent
// died. On Linux the kernel kills the child by itself, see tieToParent.
func endWithParent(stdin io.Reader) {
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		os.Exit(exitNo)
	}()
}

// A spawner starts processes from one thread that lives as long as it does.
// Linux kills a child when the thread that started it ends, not the process,
// and the Go runtime may end any thread but one that is held.
type spawner struct{ jobs chan func() }

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// start starts a process that ends with this one.
func (s *spawner) start(cmd *exec.Cmd) error {
	tieToParent(cmd)
	result := make(chan error)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

// close ends the thread, and with it what is still running.
func (s *spawner) close() { close(s.jobs) }
