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

// A cluster is one `govnode dev --nodes 3`.
type cluster struct {
	t    *testing.T
	dir  string // of its data, and of what tests write
	args []string
	cmd  *exec.Cmd
	http *http.Client

	mu     sync.Mutex
	nodes  map[string]node // by name, as of the last line about it
	ready  chan struct{}
	output bytes.Buffer
}

type node struct {
	name, api string
	pid       int
}

// start runs a cluster on free ports until the test ends.
func start(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{
		t: t, dir: dir, args: []string{"dev", "--nodes", "3", "--listen", freePorts(t), "--data", filepath.Join(dir, "data")},
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}},
	}
	c.launch()
	t.Cleanup(func() {
		c.t = t // and no longer that of a subtest
		c.crash()
		if t.Failed() {
			t.Logf("dev said:\n%s", c.said())
		}
	})
	return c
}

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

// launch starts dev and waits until it is ready.
func (c *cluster) launch() {
	c.t.Helper()
	c.mu.Lock()
	c.nodes, c.ready = map[string]node{}, make(chan struct{})
	ready := c.ready
	c.mu.Unlock()
	c.cmd = exec.Command(program, c.args...)
	out, err := c.cmd.StdoutPipe()
	require.NoError(c.t, err)
	c.cmd.Stderr = c.cmd.Stdout
	require.NoError(c.t, c.cmd.Start())
	go c.listen(out, ready)
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		c.t.Fatalf("dev is not ready after 30 s:\n%s", c.said())
	}
	require.Len(c.t, c.list(), 3)
}

func (c *cluster) listen(out io.Reader, ready chan struct{}) {
	lines := bufio.NewScanner(out)
	told := false
	for lines.Scan() {
		var n node
		c.mu.Lock()
		fmt.Fprintln(&c.output, lines.Text())
		if _, err := fmt.Sscanf(lines.Text(), "node %s api=%s pid=%d", &n.name, &n.api, &n.pid); err == nil {
			c.nodes[n.name] = n
		}
		c.mu.Unlock()
		if lines.Text() == "ready" && !told {
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

// stop ends dev, as Ctrl-C does, and its nodes with it.
func (c *cluster) stop() {
	if c.cmd.ProcessState != nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGINT)
	late := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	_ = c.cmd.Wait()
}

// crash kills dev, with whom its nodes must end.
func (c *cluster) crash() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
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
// take work.
func (c *cluster) back(killed ...node) {
	c.t.Helper()
	for _, old := range killed {
		c.await(old.name+" is back", func() bool {
			c.mu.Lock()
			n := c.nodes[old.name]
			c.mu.Unlock()
			if n.pid == old.pid {
				return false
			}
			res, err := c.http.Get("http://" + n.api + "/readyz")
			if err != nil {
				return false
			}
			_ = res.Body.Close()
			return res.StatusCode == http.StatusOK
		})
	}
}

// leader returns the node that leads and those that do not.
func (c *cluster) leader() (leads node, others []node) {
	c.t.Helper()
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
	content, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.api+"/govnode.v1."+method, bytes.NewReader(content))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
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

// object is a JSON object.
type object = map[string]any

// number is an integer that JSON may carry as a text.
type number int64

// UnmarshalJSON takes both forms.
func (n *number) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(bytes.Trim(b, `"`), (*int64)(n))
}

type counters struct{ Attempts, Calls, Executions, Failures int }

type answer struct {
	Outcome    string
	Reason     string
	DecisionID string `json:"decisionId"`
	Decision   struct{ MatchedRule, PolicyDigest string }
	Grants     []struct {
		Pool  string
		Token number
	}
	Token    number
	Counters counters
	Index    number
}

type session struct {
	SessionID     string `json:"sessionId"`
	PolicyVersion int
	PolicyDigest  string
	counters
}

// session returns a session as it stands.
func (c *cluster) session(n node, id string) session {
	c.t.Helper()
	var got struct{ Session session }
	c.post(n, "SessionService/GetSession", object{"sessionId": id}, &got)
	return got.Session
}

// open puts a policy and creates a session under it.
func (c *cluster) open(id, yaml string) {
	c.t.Helper()
	n := c.list()[0]
	c.post(n, "PolicyService/PutPolicy", object{"name": id, "yaml": yaml}, nil)
	c.post(n, "SessionService/CreateSession", object{"sessionId": id, "agentId": "outside", "policy": object{"name": id}}, nil)
}
