package chaos

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A losingRedis is one redis-server on the loopback, whose folder may be put back.
type losingRedis struct {
	dir, port string
	cmd       *exec.Cmd
}

func (r *losingRedis) address() string { return "127.0.0.1:" + r.port }

// freePort is below those that the kernel gives to connections, so that a server
// that comes back finds its own.
func freePort() (string, error) {
	for port := 15000 + os.Getpid()%100*50; port < 20000; port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return fmt.Sprint(port), l.Close()
		}
	}
	return "", errors.New("no free port")
}

// newRedis starts one on an empty folder.
func newLosingRedis(dir string) (*losingRedis, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	r := &losingRedis{dir: dir, port: port}
	return r, errors.Join(os.MkdirAll(dir, 0o700), r.start())
}

// start runs it on the data that it has, and waits until it serves.
func (r *losingRedis) start(more ...string) error {
	r.cmd = exec.Command("redis-server", append([]string{"--port", r.port, "--bind", "127.0.0.1", "--dir", r.dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--repl-diskless-sync-delay", "0"}, more...)...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	return within(20*time.Second, func() error {
		answer, err := r.do("PING")
		if err == nil && !strings.HasPrefix(answer, "+PONG") {
			err = errors.New(answer)
		}
		return err
	})
}

// do sends a line and returns the beginning of its answer.
func (r *losingRedis) do(line string) (string, error) {
	c, err := net.DialTimeout("tcp", r.address(), time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintf(c, "%s\r\n", line); err != nil {
		return "", err
	}
	b := make([]byte, 16<<10)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// kill ends it as a crash does.
func (r *losingRedis) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// within tries something until it succeeds or a time is over.
func within(d time.Duration, try func() error) error {
	for end := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		if err := try(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// copyOf keeps what a Redis has on its disk now.
func (r *losingRedis) copyOf(to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(filepath.Join(r.dir, "appendonlydir")))
}

// putBack lets a Redis that does not run have what it had before.
func (r *losingRedis) putBack(from string) error {
	to := filepath.Join(r.dir, "appendonlydir")
	return errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
}

// A wire is the address at which nodes find Redis, whichever is behind it.
type wire struct {
	listener net.Listener
	to       atomic.Pointer[string]

	mu   sync.Mutex
	open map[net.Conn]bool
}

func newWire(to string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{listener: l, open: map[net.Conn]bool{}}
	w.to.Store(&to)
	go w.serve()
	return w, nil
}

func (w *wire) serve() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = near.Close() }()
			far, err := net.DialTimeout("tcp", *w.to.Load(), time.Second)
			if err != nil {
				return
			}
			defer func() { _ = far.Close() }()
			w.mu.Lock()
			w.open[near] = true
			w.mu.Unlock()
			ended := make(chan struct{}, 2)
			go func() { _, _ = io.Copy(far, near); ended <- struct{}{} }()
			go func() { _, _ = io.Copy(near, far); ended <- struct{}{} }()
			<-ended
			w.mu.Lock()
			delete(w.open, near)
			w.mu.Unlock()
		}()
	}
}

// end ends all connections.
func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		_ = c.Close()
	}
}
