package power

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/govnode/test/processes/disks"
)

// A node is one member on a disk of its own.
type node struct {
	name      string
	api, raft string
	store     string // what keeps its log
	args      []string
	program   string
	disk      *disks.Disk

	mu      sync.Mutex
	process *process // nil before the first start
}

// A process is one run of a node.
type process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	served chan struct{} // closed when it says that it serves

	mu       sync.Mutex
	expected bool // its end is meant
	tampered []*disks.Tamperer
	said     []string // the last lines
}

const linesKept = 200

// readyWithin is how long nodes may take, on a machine that has other things to
// do, until they take work when nothing is wrong any more.
const readyWithin = 30 * time.Second

func (n *node) running() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

// start starts the node on its disk, which is mounted.
func (n *node) start(more ...string) (*process, error) {
	args := append([]string{
		"serve", "--node", n.name, "--data", filepath.Join(n.disk.Folder(), "data"), "--listen", n.api, "--raft-listen", n.raft,
		"--log-store", n.store, "--raft-disk-timeout", diskTimeout.String(), "--log-level", "warn",
	}, n.args...)
	p := &process{cmd: exec.Command(n.program, append(args, more...)...), ended: make(chan struct{}), served: make(chan struct{})}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(out)
	n.mu.Lock()
	n.process = p
	n.mu.Unlock()
	return p, nil
}

// listen notes what the process says, until it has ended.
func (p *process) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		p.mu.Lock()
		if p.said = append(p.said, lines.Text()); len(p.said) > linesKept {
			p.said = p.said[1:]
		}
		p.mu.Unlock()
		if strings.HasPrefix(lines.Text(), "node ") {
			select {
			case <-p.served:
			default:
				close(p.served)
			}
		}
	}
	_, _ = io.Copy(io.Discard, out)
	_ = p.cmd.Wait()
	close(p.ended)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.said, "\n")
}

// expect says that the process may end from now on.
func (p *process) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

// surprise returns what is wrong with the end of a process, or nil.
func (p *process) surprise(name string) error {
	select {
	case <-p.ended:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	said := strings.Join(p.said, "\n")
	if strings.Contains(said, "panic:") || strings.Contains(said, "\ngoroutine ") {
		return fmt.Errorf("%s ended with a stack trace: %s", name, said)
	}
	if !p.expected {
		return fmt.Errorf("%s ended by itself: %s", name, said)
	}
	return nil
}

// tamper lets something befall what the process does to its disk.
func (p *process) tamper(t disks.Tampering) error {
	x, err := t.Attach(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tampered = append(p.tampered, x)
	return nil
}

// leave ends all tampering.
func (p *process) leave() {
	p.mu.Lock()
	all := p.tampered
	p.tampered = nil
	p.mu.Unlock()
	for _, x := range all {
		x.Detach()
	}
}

// freeze stops the process where it stands.
func (p *process) freeze() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// kill kills the process and returns when it has ended.
func (p *process) kill() error {
	p.expect()
	_ = p.cmd.Process.Kill()
	p.leave()
	select {
	case <-p.ended:
		return nil
	case <-time.After(20 * time.Second):
		return fmt.Errorf("process %d does not end", p.cmd.Process.Pid)
	}
}

// cutPower cuts the power of nodes, all at once, and mounts their disks as they
// are when it comes back. A node that is frozen first does nothing after the cut;
// one that is not sees its disk go.
func cutPower(freeze bool, nodes ...*node) error {
	var errs []error
	for _, n := range nodes {
		if n.running().expect(); freeze {
			n.running().freeze()
		}
	}
	for _, n := range nodes {
		errs = append(errs, n.disk.Cut())
	}
	for _, n := range nodes {
		errs = append(errs, n.running().kill())
	}
	for _, n := range nodes {
		errs = append(errs, n.disk.Remount())
	}
	return errors.Join(errs...)
}

// ready waits until nodes take work.
func ready(nodes ...*node) error {
	end := time.Now().Add(readyWithin)
	for _, n := range nodes {
		p := n.running()
		for {
			err := n.takesWork()
			if err == nil {
				break
			}
			select {
			case <-p.ended:
				return fmt.Errorf("%s does not start: %s", n.name, p.output())
			case <-time.After(10 * time.Millisecond):
			}
			if time.Now().After(end) {
				return fmt.Errorf("%s does not take work: %w; it said: %s", n.name, err, p.output())
			}
		}
	}
	return nil
}

var plain = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (n *node) takesWork() error {
	res, err := plain.Get("http://" + n.api + "/readyz")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz: HTTP %d: %s", res.StatusCode, strings.TrimSpace(string(body)))
	}
	return err
}

// freeAddresses finds addresses that nobody listens on, below those that the
// kernel gives to connections.
func freeAddresses(first, count int) (all []string, err error) {
	for port := first; port < 32000 && len(all) < count; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if l, err := net.Listen("tcp", address); err == nil {
			all = append(all, address)
			if err := l.Close(); err != nil {
				return nil, err
			}
		}
	}
	if len(all) < count {
		return nil, errors.New("no free ports")
	}
	return all, nil
}
