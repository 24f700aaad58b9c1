package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// The processes that the demo starts, which are this program again: how they look
// to their parent, and how they hear from it.

// A child is a process of the demo as its parent sees it.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  *process.Tail
	ended chan struct{} // closed when the process has ended
}

// A workerProcess is a worker as its parent sees it.
type workerProcess struct {
	*child
	orders workerOrders
	reader ledgerReader
	killed bool // by the parent; its main goroutine's own
}

func startWorker(s *process.Spawner, orders workerOrders, stderr io.Writer) (*workerProcess, error) {
	c, err := startChild(s, "worker", orders, stderr)
	if err != nil {
		return nil, err
	}
	return &workerProcess{child: c, orders: orders, reader: ledgerReader{path: orders.Ledger}}, nil
}

// startChild starts `govnode demo` as what is named, and gives it its orders.
func startChild(s *process.Spawner, what string, orders any, stderr io.Writer) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program, to start others with: %w", err)
	}
	c := &child{said: &process.Tail{}, ended: make(chan struct{})}
	c.cmd = exec.Command(program, "demo", what)
	// The name that this program was called by, which tells a test binary that
	// it is to be govnode.
	c.cmd.Args[0] = os.Args[0]
	c.cmd.Env = config.WithoutSettings(os.Environ())
	c.cmd.Stderr = io.MultiWriter(c.said, stderr)
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.Start(c.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // how it ended is told by ProcessState
		close(c.ended)
	}()
	line, err := json.Marshal(orders)
	if err == nil {
		_, err = c.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// tell sends the process a line. One that has ended hears nothing, which its
// parent learns from ended.
func (c *child) tell(what string) { _, _ = io.WriteString(c.stdin, what+"\n") }

// kill ends the process with SIGKILL. Doing it to one that has ended does
// nothing.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// end kills the process and waits until it is gone.
func (c *child) end() {
	c.kill()
	<-c.ended
}

// lastWords is what the process said last, and how it ended.
func (c *child) lastWords() string {
	return fmt.Sprintf("%s (%s)", c.said.String(), c.cmd.ProcessState)
}

// hearOrders reads in a child what it is told first, and returns what comes after
// that.
func hearOrders(stdin io.Reader, orders any) (*bufio.Scanner, error) {
	lines := bufio.NewScanner(stdin)
	if !lines.Scan() {
		return nil, terminal.Usagef("started without orders: this is what govnode demo starts")
	}
	if err := json.Unmarshal(lines.Bytes(), orders); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	return lines, nil
}

// obey does in a child what its parent tells it, and ends the process when the
// parent has gone.
func obey(lines *bufio.Scanner, told map[string]func()) {
	for lines.Scan() {
		if do := told[lines.Text()]; do != nil {
			do()
		}
	}
	os.Exit(terminal.ExitNo)
}
