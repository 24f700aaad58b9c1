package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process is govnode, running, and what it has printed.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}
	err   error // valid when ended is closed

	mu  sync.Mutex
	out bytes.Buffer
}

// startProcess runs govnode in a folder.
func startProcess(folder string, args ...string) (*process, error) {
	return startProcessTo(nil, folder, args...)
}

// startProcessTo is startProcess of one whose standard error is a file, if it is not nil.
func startProcessTo(stderr *os.File, folder string, args ...string) (*process, error) {
	program, err := exec.LookPath("govnode")
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = folder, p, p
	if stderr != nil {
		p.cmd.Stderr = stderr
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Write takes what the process prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// longEnough is how long a test waits for what must happen.
const longEnough = 30 * time.Second

// await returns the matches of a pattern, with their groups, once there are at
// least n of them in what the process prints.
func (p *process) await(pattern string, n int) ([][]string, error) {
	re := regexp.MustCompile("(?m)" + pattern)
	for deadline := time.Now().Add(longEnough); time.Now().Before(deadline); {
		over := false
		select {
		case <-p.ended:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
		if found := re.FindAllStringSubmatch(p.printed(), -1); len(found) >= n {
			return found, nil
		}
		if over {
			return nil, fmt.Errorf("it ended (%v) before %q was printed %d times:\n%s", p.err, pattern, n, p.printed())
		}
	}
	return nil, fmt.Errorf("%q is not printed %d times:\n%s", pattern, n, p.printed())
}

// stop ends the process with SIGTERM and returns what it ended with.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.wait()
}

func (p *process) wait() error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(longEnough):
		return fmt.Errorf("it does not end:\n%s", p.printed())
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// start runs govnode until the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p, err := startProcess(t.TempDir(), args...)
	require.NoError(t, err)
	t.Cleanup(p.kill)
	return p
}

// mustAwait is await for what has to come.
func (p *process) mustAwait(t *testing.T, pattern string, n int) [][]string {
	t.Helper()
	found, err := p.await(pattern, n)
	require.NoError(t, err)
	return found
}
