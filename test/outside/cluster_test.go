//go:build outside

package outside

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var program string

// TestMain builds the program, unless GOVNODE_BIN names one.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if program = os.Getenv("GOVNODE_BIN"); program != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "govnode-outside-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program = filepath.Join(dir, "govnode")
		build := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", program, "../../cmd/govnode")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "building govnode:", err)
			return 1
		}
		return m.Run()
	}())
}

// A cluster is one `govnode dev --nodes 3`, or three `govnode serve`.
type cluster struct {
	t       *testing.T
	backend []string     // flags
	redis   *redisServer // of the backend redis
	dir     string       // of its data, and of what tests write
	runs    []run
	http    *http.Client
	scheme  string // of the API
	token   string // that requests show; empty: none

	mu     sync.Mutex
	nodes  map[string]node // by name, as of the last line about it
	output bytes.Buffer
}

type node struct {
	name, api string
	pid       int
}

// A run is a process that was started with args: dev, or one node.
type run struct {
	node string // its name; empty for dev
	args []string
	cmd  *exec.Cmd
}

// backends is what the promises are held to on.
var backends = []string{"raft", "redis", "redis-cluster"}

// start runs a cluster of dev on free ports until the test ends.
func start(t *testing.T, backend string, more ...string) *cluster {
	t.Helper()
	c := newCluster(t, backend)
	args := append([]string{"dev", "--nodes", "3", "--listen", freePorts(t), "--data", filepath.Join(c.dir, "data")}, c.backend...)
	c.runs = []run{{args: append(args, more...)}}
	c.launch()
	return c
}

// newCluster makes one that is not launched yet.
func newCluster(t *testing.T, backend string) *cluster {
	t.Helper()
	c := &cluster{
		t: t, dir: t.TempDir(), nodes: map[string]node{}, scheme: "http",
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}},
	}
	switch backend {
	case "raft":
		c.backend = []string{"--backend", "raft"}
	case "redis":
		c.redis = startRedis(t)
		c.backend = []string{"--backend", "redis", "--redis", c.redis.url()}
	case "redis-cluster":
		c.backend = []string{"--backend", "redis", "--redis-cluster", startRedisCluster(t)}
	}
	t.Cleanup(func() {
		c.t = t // and no longer that of a subtest
		c.crash()
		if t.Failed() {
			t.Logf("the program said:\n%s", c.said())
		}
	})
	return c
}

// led reports whether one of the nodes leads the others.
func (c *cluster) led() bool { return c.backend[1] == "raft" }

// freePorts finds an address from which on the three ports of the API and,
// 10 further on, the three of Raft are free. They are below those that the
// kernel gives to connections.
func freePorts(t *testing.T) string {
	t.Helper()
	for first := 20000 + os.Getpid()%1000*10; first < 32000; first += 20 {
		free := true
		for _, offset := range []int{0, 1, 2, 10, 11, 12} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+offset))
			if err != nil {
				free = false
				break
			}
			require.NoError(t, l.Close())
		}
		if free {
			return fmt.Sprintf("127.0.0.1:%d", first)
		}
	}
	t.Fatal("no free ports")
	return ""
}

// launch starts the program and waits until all nodes take work.
func (c *cluster) launch() {
	c.t.Helper()
	c.mu.Lock()
	clear(c.nodes)
	c.mu.Unlock()
	for i := range c.runs {
		c.startRun(&c.runs[i])
	}
	c.await("three nodes are there", func() bool { return len(c.list()) == 3 })
	for _, n := range c.list() {
		c.await(n.name+" takes work", func() bool { return c.takesWork(n) == nil })
	}
}

// startRun starts one process and returns when it has said that it serves.
func (c *cluster) startRun(r *run) {
	c.t.Helper()
	r.cmd = exec.Command(program, r.args...)
	out, err := r.cmd.StdoutPipe()
	require.NoError(c.t, err)
	r.cmd.Stderr = r.cmd.Stdout
	require.NoError(c.t, r.cmd.Start())
	ready := make(chan struct{})
	go c.listen(out, r.node, ready)
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		c.t.Fatalf("%v is not ready after 30 s:\n%s", r.args, c.said())
	}
}

// listen notes what a process says, until it ends.
func (c *cluster) listen(out io.Reader, name string, ready chan struct{}) {
	lines := bufio.NewScanner(out)
	told := false
	for lines.Scan() {
		var n node
		c.mu.Lock()
		fmt.Fprintln(&c.output, lines.Text())
		_, err := fmt.Sscanf(lines.Text(), "node %s api=%s pid=%d", &n.name, &n.api, &n.pid)
		if err == nil {
			c.nodes[n.name] = n
		}
		c.mu.Unlock()
		if !told && (lines.Text() == "ready" || err == nil && n.name == name) {
			told = true
			close(ready)
		}
	}
}

func (c *cluster) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output.String()
}

// stop ends the program, as Ctrl-C does, and its nodes with it.
func (c *cluster) stop() {
	for _, r := range c.runs {
		_ = r.cmd.Process.Signal(syscall.SIGINT)
	}
	for _, r := range c.runs {
		late := time.AfterFunc(20*time.Second, func() { _ = r.cmd.Process.Kill() })
		_ = r.cmd.Wait()
		late.Stop()
	}
}

// crash kills the program, with which its nodes must end.
func (c *cluster) crash() {
	for _, r := range c.runs {
		if r.cmd != nil {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
		}
	}
	for _, n := range c.list() {
		gone(c.t, n.pid)
	}
}

// gone checks that a process ends within a second. One that has ended may be
// listed as a zombie until whoever inherited it takes notice.
func gone(t *testing.T, pid int) {
	t.Helper()
	var process []byte
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		var err error
		if process, err = exec.Command("ps", "-o", "stat=,args=", "-p", strconv.Itoa(pid)).Output(); err != nil || bytes.HasPrefix(process, []byte("Z")) {
			return
		}
	}
	t.Fatalf("process %d has outlived its parent: %s", pid, process)
}

// list returns the nodes in the order of their names.
func (c *cluster) list() []node {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]node, 0, len(c.nodes))
	for _, n := range c.nodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b node) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return all
}

// kill kills nodes with SIGKILL, all at once, and returns when none of them
// answers.
func (c *cluster) kill(nodes ...node) {
	c.t.Helper()
	for _, n := range nodes {
		require.NoError(c.t, syscall.Kill(n.pid, syscall.SIGKILL))
	}
	for _, n := range nodes {
		c.await("the port of "+n.name+" is closed", func() bool {
			conn, err := net.DialTimeout("tcp", n.api, time.Second)
			if err != nil {
				return true
			}
			_ = conn.Close()
			return false
		})
	}
}

// back waits until nodes that were killed run again, as other processes, and
// take work. Those of dev are started again by it.
func (c *cluster) back(killed ...node) {
	c.t.Helper()
	for _, old := range killed {
		for i := range c.runs {
			if c.runs[i].node == old.name {
				_ = c.runs[i].cmd.Wait()
				c.startRun(&c.runs[i])
			}
		}
	}
	for _, old := range killed {
		c.await(old.name+" is back", func() bool {
			c.mu.Lock()
			n := c.nodes[old.name]
			c.mu.Unlock()
			return n.pid != old.pid && c.takesWork(n) == nil
		})
	}
}

// takesWork asks a node whether it is ready, and returns what it says if not.
func (c *cluster) takesWork(n node) error {
	res, err := c.http.Get(c.scheme + "://" + n.api + "/readyz")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz: HTTP %d: %s", res.StatusCode, body)
	}
	return err
}

// leader returns the node that leads and those that do not. Over a Redis none
// does, and any one is as good.
func (c *cluster) leader() (leads node, others []node) {
	c.t.Helper()
	if !c.led() {
		all := c.list()
		return all[0], all[1:]
	}
	c.await("somebody leads", func() bool {
		var status struct{ Leader string }
		n := c.list()[0]
		if code, err := c.try(n, "ClusterService/Status", map[string]any{}, &status); err != nil || code != http.StatusOK {
			return false
		}
		leads, others = node{}, nil
		for _, n := range c.list() {
			if n.name == status.Leader {
				leads = n
			} else {
				others = append(others, n)
			}
		}
		return leads.name != ""
	})
	return leads, others
}

func (c *cluster) await(what string, so func() bool) {
	c.t.Helper()
	require.Eventually(c.t, so, 30*time.Second, 20*time.Millisecond, what)
}

// try sends one request and returns the status of HTTP.
func (c *cluster) try(n node, method string, body, answer any) (int, error) {
	return c.tryAs(c.token, n, method, body, answer)
}

// tryAs is try with a token.
func (c *cluster) tryAs(token string, n node, method string, body, answer any) (int, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.scheme+"://"+n.api+"/govnode.v1."+method, bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	content, err = io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusOK {
		return res.StatusCode, fmt.Errorf("%s: HTTP %d: %s", method, res.StatusCode, content)
	}
	if answer == nil {
		return res.StatusCode, nil
	}
	return res.StatusCode, json.Unmarshal(content, answer)
}

// post sends one request that must be answered.
func (c *cluster) post(n node, method string, body, answer any) {
	c.t.Helper()
	_, err := c.try(n, method, body, answer)
	require.NoError(c.t, err)
}

// govnode runs a command of the program against the cluster.
func (c *cluster) govnode(args ...string) string {
	c.t.Helper()
	args = append(args, "--addr", c.list()[0].api)
	out, err := exec.Command(program, args...).CombinedOutput()
	require.NoError(c.t, err, "govnode %v: %s", args, out)
	return string(out)
}
