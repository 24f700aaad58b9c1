//go:build attack

package vectors

import (
	"bytes"
	"context"
	"crypto/tls"
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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/test/processes"
)

var program string

// measureVar names a file. The test's own program then runs another, and writes there how
// many bytes that had in memory at most. Linux counts for a process what its parent had
// when it was begun, and this program is small at its start.
const measureVar = "GOVNODE_ATTACK_MEASURE"

func measured(report string) int {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	_ = cmd.Run()
	most := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	if err := os.WriteFile(report, strconv.AppendInt(nil, most, 10), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// TestMain builds the program, unless GOVNODE_BIN names one.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if report := os.Getenv(measureVar); report != "" {
			return measured(report)
		}
		dir, err := os.MkdirTemp("", "govnode-attack-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			program, err = processes.Program(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// object is JSON as a client writes and reads it.
type object = map[string]any

// A secured is nodes under attack. Node folders are below dir, each with audit.jsonl.
type secured struct {
	*processes.Cluster
	t     *testing.T
	dir   string
	http  *http.Client // shows no token by itself
	admin string       // a token of "default" that may do everything in it
}

// secure runs so many nodes with TLS, tokens and chains until the test ends: on Raft, or
// with the flags of another backend.
func secure(t *testing.T, size int, args ...string) *secured {
	t.Helper()
	return start(t, size, true, func(*processes.Cluster) {}, args...)
}

// start is secure, or without TLS and tokens, and has something done with the nodes before
// they start.
func start(t *testing.T, size int, asks bool, before func(*processes.Cluster), args ...string) *secured {
	t.Helper()
	dir := t.TempDir()
	c, err := processes.New(program, processes.NewLoopback(), size, func(node string) string { return filepath.Join(dir, node) }, args...)
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true}
	if asks {
		require.NoError(t, c.Secure(filepath.Join(dir, "tls")))
		transport.TLSClientConfig = c.Secured.TLS()
	}
	s := &secured{Cluster: c, t: t, dir: dir, http: &http.Client{Transport: transport}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.Nodes {
				t.Logf("%s said:\n%s%v", n.Name, n.Said(), n.Failures())
			}
		}
		require.NoError(t, c.Close())
	})
	before(c)
	if slices.Contains(args, "redis") { // where nobody founds anything
		for _, n := range c.Nodes {
			require.NoError(t, n.Start())
		}
		require.NoError(t, c.Ready(30*time.Second))
	} else {
		require.NoError(t, c.Found(30*time.Second))
	}
	if asks {
		s.admin = s.token("default", "agent,orchestrator,approver,policy-author,auditor,operator")
	}
	return s
}

// token makes a token over the socket of the first node.
func (s *secured) token(namespace, roles string, more ...string) string {
	s.t.Helper()
	token, err := s.Secured.NewToken(s.Nodes[0], namespace, roles, more...)
	require.NoError(s.t, err)
	return token
}

// An answer is what came back: the status of HTTP, the body and the headers.
type answer struct {
	Status int
	Body   []byte
	Header http.Header
}

// Code is that of a Connect error; "" of an answer that is none.
func (a answer) Code() string {
	var e struct{ Code string }
	_ = json.Unmarshal(a.Body, &e)
	if a.Status == http.StatusOK {
		return ""
	}
	return e.Code
}

// Message is that of a Connect error.
func (a answer) Message() string {
	var e struct{ Message string }
	_ = json.Unmarshal(a.Body, &e)
	return e.Message
}

// Object is the body.
func (a answer) Object() (o object) {
	_ = json.Unmarshal(a.Body, &o)
	return o
}

func (a answer) String() string { return fmt.Sprintf("HTTP %d: %s", a.Status, a.Body) }

// ask sends one request to the i-th node, with a token unless it is "", and more headers as pairs.
func (s *secured) ask(i int, token, method string, body any, headers ...string) (answer, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	return s.send(i, token, method, content, append([]string{"Content-Type", "application/json"}, headers...)...)
}

// send is ask with a body as it is.
func (s *secured) send(i int, token, method string, content []byte, headers ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(s.Nodes[i])+"/govnode.v1."+method, bytes.NewReader(content))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	content, err = io.ReadAll(res.Body)
	return answer{res.StatusCode, content, res.Header}, err
}

// must is ask where an answer is needed, and that no error.
func (s *secured) must(i int, token, method string, body any) object {
	s.t.Helper()
	a, err := s.ask(i, token, method, body)
	require.NoError(s.t, err, method)
	require.Equal(s.t, http.StatusOK, a.Status, "%s: %s", method, a)
	return a.Object()
}

// dial opens a connection to the API of a node over TLS, of HTTP/1.1.
func (s *secured) dial(i int) net.Conn {
	s.t.Helper()
	secure := s.Secured.TLS()
	secure.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", s.Nodes[i].API, secure)
	require.NoError(s.t, err)
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	return conn
}

// records are those of the whole state, as bytes, by their keys.
func (s *secured) records() map[session.Key]string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := govnodev1connect.NewClusterServiceClient(s.HTTP, s.URL(s.Nodes[0])).Snapshot(ctx, &v1.SnapshotRequest{})
	require.NoError(s.t, err)
	var b bytes.Buffer
	for stream.Receive() {
		b.Write(stream.Msg().Chunk)
	}
	require.NoError(s.t, stream.Err())
	require.NoError(s.t, stream.Close())
	state, err := session.ReadSnapshot(&b)
	require.NoError(s.t, err)
	all := map[session.Key]string{}
	for k, r := range state.Snapshot().All() {
		all[k] = string(session.EncodeRecord(r))
	}
	return all
}

// unchanged does something, and wants every record to be as it was before.
func (s *secured) unchanged(t *testing.T, do func()) {
	t.Helper()
	before := s.records()
	do()
	after := s.records()
	for k := range before {
		require.Equal(t, before[k], after[k], "the record %q changed", k)
	}
	require.Len(t, after, len(before), "there are new records")
}

// memory is what a process has in memory: now, and the most since the last call.
func (s *secured) memory(i int) (now, most int) {
	s.t.Helper()
	folder := fmt.Sprintf("/proc/%d/", s.Nodes[i].Pid())
	content, err := os.ReadFile(folder + "status")
	require.NoError(s.t, err)
	for line := range strings.Lines(string(content)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &now)
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &most)
	}
	require.NotZero(s.t, now)
	require.NoError(s.t, os.WriteFile(folder+"clear_refs", []byte("5"), 0))
	return now << 10, most << 10
}
