package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A Cluster is some nodes of the program on a network.
type Cluster struct {
	Network Network
	Nodes   []*Node
	HTTP    *http.Client // reaches the nodes as their clients do
	// Secured is nil where nodes speak plain text and ask nobody who they are.
	Secured *Secured

	joined bool // nodes are members of one another's cluster; else they share what is behind them
}

// A Node is one node of the program: a place, a folder, and at times a process.
type Node struct {
	Name string
	Dir  string // of its data
	API  string // address
	Raft string // address of the port between nodes
	// Audit is the file of its audit, which lies in its folder unless AuditTo says
	// otherwise.
	Audit string
	// Socket is the path over which tokens are made, of a secured cluster.
	Socket string
	// Prints gets all that processes of the node print, from their next start on; nil is nobody.
	Prints io.Writer
	// Wiped says that what the folder once had is lost, as Wipe does.
	Wiped atomic.Bool

	program string
	args    []string // beside those that each start is given
	command []string // what it begins with at its place
	listen  string
	secured []string // flags; none: --insecure

	mu     sync.Mutex
	run    *process // nil while there is none
	lives  []Life
	failed []error
}

// A Life is one run of a node's process.
type Life struct {
	Audit int64     // how long the file of its audit was as it began
	Ended time.Time // zero while it goes on
	// Orderly says that the process ended as it was asked to.
	Orderly bool
}

// A process is one run of a node.
type process struct {
	cmd    *exec.Cmd
	output tail
	ended  chan struct{}
	wanted bool // somebody ended it
}

// New makes a cluster of so many nodes, none of which runs. dir returns the
// folder of a node's data; args are flags of serve for all of them.
func New(program string, network Network, size int, dir func(node string) string, args ...string) (*Cluster, error) {
	c := &Cluster{Network: network, HTTP: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	for i := range size {
		n := &Node{Name: fmt.Sprintf("n%d", i+1), program: program, args: args}
		n.Dir = dir(n.Name)
		n.Audit = filepath.Join(n.Dir, "audit.jsonl")
		listen, advertise, command, err := network.Place(n.Name)
		if err != nil {
			return nil, err
		}
		n.listen, n.command = listen, command
		n.API, n.Raft = fmt.Sprintf("%s:%d", advertise, APIPort), fmt.Sprintf("%s:%d", advertise, RaftPort)
		n.args = append([]string{"--advertise", advertise}, args...)
		c.Nodes = append(c.Nodes, n)
	}
	return c, nil
}

// AuditTo has each node write its audit to a file of a folder, so that the node's own
// may go without it. No node has been started yet.
func (c *Cluster) AuditTo(folder string) error {
	for _, n := range c.Nodes {
		n.Audit = filepath.Join(folder, n.Name+".audit.jsonl")
		n.args = append(slices.Clone(n.args), "--audit", n.Audit)
	}
	return wrap("the folder of audits", os.MkdirAll(folder, 0o700))
}

// Found starts the first node as the first member of a cluster and lets the
// others join it, and waits until all are ready.
func (c *Cluster) Found(within time.Duration) error {
	c.joined = true
	for i, n := range c.Nodes {
		flags := []string{"--bootstrap", "--bootstrap-wait", "0s"}
		if i > 0 {
			flags = []string{"--join", c.Nodes[0].Raft}
		}
		if err := n.Start(flags...); err != nil {
			return err
		}
	}
	return c.Ready(within)
}

// Start starts a node that does not run, as a service's configuration does: it
// names the members to ask all the same, and one whose folder was wiped once goes
// on asking for its place. That is heeded of an empty folder only: who was killed
// when it was a member again and had written nothing needs it. Nodes of a cluster that
// was never founded have no members to name.
func (c *Cluster) Start(n *Node) error {
	if !c.joined {
		return n.Start()
	}
	var all []string
	for _, other := range c.Nodes {
		if other != n {
			all = append(all, other.Raft)
		}
	}
	flags := []string{"--join", strings.Join(all, ",")}
	if n.Wiped.Load() {
		flags = append(flags, "--replace", "--join-timeout", "5m")
	}
	return n.Start(flags...)
}

// Ready waits until every node runs and says that it is well.
func (c *Cluster) Ready(within time.Duration) error {
	var err error
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		if err = c.well(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (c *Cluster) well() error {
	if c.Secured != nil {
		if err := c.Secured.operator(c.Nodes); err != nil {
			return err
		}
	}
	leaders := map[string]bool{}
	for _, n := range c.Nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err := c.Status(ctx, n)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		if s.Health != "ok" {
			return fmt.Errorf("%s: %s", n.Name, s.Health)
		}
		if s.Backend == "raft" { // over a Redis nobody leads the others
			leaders[s.Leader] = true
		}
	}
	if len(leaders) > 1 {
		return errors.New("the nodes name different leaders")
	}
	return nil
}

// URL is where the API of a node is.
func (c *Cluster) URL(n *Node) string {
	if c.Secured != nil {
		return "https://" + n.API
	}
	return "http://" + n.API
}

// Status asks a node how it sees the cluster.
func (c *Cluster) Status(ctx context.Context, n *Node) (*v1.StatusResponse, error) {
	return govnodev1connect.NewClusterServiceClient(c.HTTP, c.URL(n), connect.WithProtoJSON()).Status(ctx, &v1.StatusRequest{})
}

// Leader returns the node that most recently was said to lead, or nil.
func (c *Cluster) Leader() (leader *Node) {
	term := uint64(0)
	for _, n := range c.Nodes {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		s, err := c.Status(ctx, n)
		cancel()
		if i := slices.IndexFunc(c.Nodes, func(x *Node) bool { return err == nil && x.Name == s.Leader }); i >= 0 && s.Term >= term {
			leader, term = c.Nodes[i], s.Term
		}
	}
	return leader
}

// Names are those of the nodes.
func (c *Cluster) Names() (names []string) {
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// Close kills what is left, and removes the network.
func (c *Cluster) Close() error {
	for _, n := range c.Nodes {
		n.Kill()
	}
	c.HTTP.CloseIdleConnections()
	if c.Secured != nil {
		return errors.Join(os.RemoveAll(c.Secured.sockets), c.Network.Close())
	}
	return c.Network.Close()
}

// Start starts the node with more flags than the cluster's.
func (n *Node) Start(flags ...string) error { return n.StartUnder(nil, flags...) }

// StartUnder starts the node as a child of another command, which is given its
// command line behind its own.
func (n *Node) StartUnder(command []string, flags ...string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run != nil {
		return fmt.Errorf("processes: %s runs", n.Name)
	}
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return wrap(n.Name, err)
	}
	security := n.secured
	if security == nil {
		security = []string{"--insecure"}
	}
	line := slices.Concat(n.command, command, []string{n.program, "serve", "--node", n.Name, "--data", n.Dir,
		"--listen", fmt.Sprintf("%s:%d", n.listen, APIPort), "--raft-listen", fmt.Sprintf("%s:%d", n.listen, RaftPort)}, security, n.args, flags)
	var life Life
	if info, err := os.Stat(n.Audit); err == nil {
		life.Audit = info.Size()
	}
	p := &process{cmd: exec.Command(line[0], line[1:]...), ended: make(chan struct{})}
	p.cmd.Stdout = &p.output
	if n.Prints != nil {
		p.cmd.Stdout = io.MultiWriter(&p.output, n.Prints)
	}
	p.cmd.Stderr = p.cmd.Stdout
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return wrap(n.Name, err)
	}
	n.run, n.lives = p, append(n.lives, life)
	go func() {
		err := p.cmd.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		last := &n.lives[len(n.lives)-1]
		last.Ended, last.Orderly = time.Now(), err == nil
		if n.run == p {
			n.run = nil
		}
		if !p.wanted {
			n.failed = append(n.failed, fmt.Errorf("%s ended by itself: %w: %s", n.Name, err, p.output.last()))
		}
		close(p.ended)
	}()
	return nil
}

// Runs reports whether the node has a process, paused or not.
func (n *Node) Runs() bool { return n.Pid() != 0 }

// Pid is that of the process; 0 if there is none.
func (n *Node) Pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run == nil {
		return 0
	}
	return n.run.cmd.Process.Pid
}

// Kill ends the process at once. It reports false if there was none.
func (n *Node) Kill() bool { return n.end(syscall.SIGKILL, time.Minute) }

// Stop asks the process to end, and kills it if it has not within a time.
func (n *Node) Stop(within time.Duration) bool { return n.end(syscall.SIGTERM, within) }

func (n *Node) end(by syscall.Signal, within time.Duration) bool {
	n.mu.Lock()
	p := n.run
	if p != nil {
		p.wanted = true
	}
	n.mu.Unlock()
	if p == nil {
		return false
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, by) // it may have ended by itself meanwhile
	select {
	case <-p.ended:
	case <-time.After(within):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	}
	return true
}

// Pause stops the process from running until resume is called. It returns nil if
// there is none.
func (n *Node) Pause() (resume func()) {
	pid := n.Pid()
	if pid == 0 || syscall.Kill(-pid, syscall.SIGSTOP) != nil {
		return nil
	}
	return func() { _ = syscall.Kill(-pid, syscall.SIGCONT) } // it may have been killed
}

// Lives are the runs of its process, in their order.
func (n *Node) Lives() []Life {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lives)
}

// Failures are the ends that nobody asked for, with the last that was printed.
func (n *Node) Failures() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.failed)
}

// Forgive forgets the failures so far, and returns them.
func (n *Node) Forgive() (failed []error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	failed, n.failed = n.failed, nil
	return failed
}

// Said returns the end of what the process has printed.
func (n *Node) Said() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run == nil {
		return ""
	}
	return n.run.output.last()
}

// Wipe removes the data of a node that does not run.
func (n *Node) Wipe() error {
	n.Wiped.Store(true)
	all, err := filepath.Glob(filepath.Join(n.Dir, "*"))
	for _, path := range all {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// A tail keeps the last of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailLen = 16 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailLen {
		t.b = bytes.Clone(t.b[len(t.b)-tailLen:])
	}
	return len(b), nil
}

func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b[max(0, len(t.b)-tailLen):])
}
