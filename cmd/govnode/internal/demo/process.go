package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/process"
)

// A workerProcess is a worker as its parent sees it.
type workerProcess struct {
	orders workerOrders
	reader ledgerReader
	killed bool // by the parent; its main goroutine's own

	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  *process.Tail
	ended chan struct{} // closed when the process has ended
}

func startWorker(s *process.Spawner, orders workerOrders, stderr io.Writer) (*workerProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program, to start workers with: %w", err)
	}
	w := &workerProcess{orders: orders, reader: ledgerReader{path: orders.Ledger}, said: &process.Tail{}, ended: make(chan struct{})}
	w.cmd = exec.Command(program, "demo", "worker")
	// The name that this program was called by, which tells a test binary that
	// it is to be govnode.
	w.cmd.Args[0] = os.Args[0]
	w.cmd.Env = config.WithoutSettings(os.Environ())
	w.cmd.Stderr = io.MultiWriter(w.said, stderr)
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.Start(w.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = w.cmd.Wait() // how it ended is told by ProcessState
		close(w.ended)
	}()
	line, err := json.Marshal(orders)
	if err == nil {
		_, err = w.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		w.kill()
		<-w.ended
		return nil, err
	}
	return w, nil
}

// tell sends the worker a line. One that has ended hears nothing, which its
// parent learns from ended.
func (w *workerProcess) tell(what string) { _, _ = io.WriteString(w.stdin, what+"\n") }

// kill ends the process with SIGKILL. Doing it to one that has ended does
// nothing.
func (w *workerProcess) kill() { _ = w.cmd.Process.Kill() }

// lastWords is what the worker said last, and how it ended.
func (w *workerProcess) lastWords() string {
	return fmt.Sprintf("%s (%s)", w.said.String(), w.cmd.ProcessState)
}
