//go:build attack

package vectors

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/pki"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/test/processes"
)

// What the ports of nodes are sent by those who do not mean well.
func TestNetwork(t *testing.T) {
	t.Parallel()
	s := secure(t, 3, "--reflection", "--admin-listen", "127.0.0.1:0")
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 100000\nmax_concurrent: 1000\n"})
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "s", "agentId": "a", "policy": object{"name": "p"}})
	for _, x := range []struct {
		name string
		try  func(*testing.T, *secured)
	}{
		{"admin", adminFromElsewhere}, {"tls", weakTLS}, {"strangers", strangersOnRaft}, {"rubbish", rubbishOnPorts}, {"lengths", hugeLengths},
		{"proto", malformedProto}, {"json", deepJSON}, {"deadlines", deadlines}, {"cancel", cancelledOnTheWay}, {"names", namesInMetrics},
	} {
		t.Run(x.name, func(t *testing.T) {
			own := *s
			own.t = t
			x.try(t, &own)
		})
	}
}

// attempts are how many calls were ever tried in the session s.
func (s *secured) attempts() string {
	s.t.Helper()
	return fmt.Sprint(s.must(0, s.admin, "SessionService/GetSession", object{"sessionId": "s"})["session"].(object)["attempts"])
}

// weakTLS speaks versions before 1.3, weak suites, or no TLS, on both ports of each node.
func weakTLS(t *testing.T, s *secured) {
	var weak []uint16
	for _, c := range tls.InsecureCipherSuites() {
		weak = append(weak, c.ID)
	}
	for _, n := range s.Nodes {
		for _, address := range []string{n.API, n.Raft} {
			for name, c := range map[string]*tls.Config{
				"1.0":  {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
				"1.1":  {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
				"1.2":  {MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12},
				"weak": {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12, CipherSuites: weak},
			} {
				c.InsecureSkipVerify = true
				conn, err := tls.Dial("tcp", address, c)
				if err == nil {
					_ = conn.Close()
				}
				require.ErrorContains(t, err, "protocol version", "%s at %s", name, address)
			}
			for _, text := range []string{
				"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
				"POST /govnode.v1.AccessService/WhoAmI HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.admin + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
				"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
			} {
				said, err := say(address, text)
				require.NoError(t, err)
				require.NotContains(t, said, " 200 ")
				require.NotContains(t, said, "principal")
			}
		}
	}
	conn := s.dial(0)
	require.EqualValues(t, tls.VersionTLS13, conn.(*tls.Conn).ConnectionState().Version)
	require.NoError(t, conn.Close())
}

// say sends bytes and returns what came back before the connection was closed. The error
// says that it was not closed.
func say(address, text string) (string, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	_, _ = io.WriteString(conn, text) // it may be closed by now
	_ = conn.(*net.TCPConn).CloseWrite()
	return untilClosed(conn)
}

func untilClosed(conn net.Conn) (string, error) {
	said, err := io.ReadAll(conn)
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return string(said), err
	}
	return string(said), nil
}

// A visitor is somebody who shows a certificate on the Raft port of nodes.
type visitor struct {
	name string
	cert *tls.Certificate // nil shows none
	who  string           // that a connection of Raft's begins with
}

// Accept, Close, Addr and Dial make it a raft.StreamLayer that only calls.
func (v visitor) Accept() (net.Conn, error) { select {} }
func (v visitor) Close() error              { return nil }
func (v visitor) Addr() net.Addr            { return &net.TCPAddr{} }
func (v visitor) Dial(to raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	conn, err := v.open(string(to), "govnode-raft")
	if err != nil {
		return nil, err
	}
	_, err = conn.Write(append([]byte{byte(len(v.who))}, v.who...))
	return conn, err
}

func (v visitor) open(address, protocol string) (net.Conn, error) {
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13}
	if v.cert != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return v.cert, nil }
	}
	conn, err := tls.Dial("tcp", address, c)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(30 * time.Second))
}

// append sends an entry of a leader's to a node, and returns its answer.
func (v visitor) append(n *processes.Node, term uint64) (*raft.AppendEntriesResponse, error) {
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: v, MaxPool: 1, Timeout: 20 * time.Second})
	var res raft.AppendEntriesResponse
	err := t.AppendEntries(raft.ServerID(n.Name), raft.ServerAddress(n.Raft), &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n1"), Addr: []byte("127.0.0.1:1")},
		Term:      term, PrevLogEntry: 1 << 40, Entries: []*raft.Log{{Index: 1<<40 + 1, Term: term, Type: raft.LogNoop}},
	}, &res)
	return &res, err
}

// node is a client of what nodes say to each other.
func (v visitor) node(n *processes.Node) nodev1connect.NodeServiceClient {
	only := new(http.Protocols)
	only.SetHTTP2(true)
	return nodev1connect.NewNodeServiceClient(&http.Client{Transport: &http.Transport{Protocols: only, DialTLSContext: func(_ context.Context, _, address string) (net.Conn, error) {
		return v.open(address, "h2")
	}}}, "https://"+n.Raft)
}

// shown is a certificate that somebody shows.
func shown(t *testing.T, p *pki.Pair) *tls.Certificate {
	t.Helper()
	return &tls.Certificate{Certificate: [][]byte{p.Certificate.Raw}, PrivateKey: p.Key}
}

// terms are those of the nodes, and who leads.
func (s *secured) terms() (all []string) {
	s.t.Helper()
	for _, n := range s.Nodes {
		status, err := s.Status(s.t.Context(), n)
		require.NoError(s.t, err)
		all = append(all, fmt.Sprint(status.Leader, status.Term))
	}
	return all
}

// member is a visitor with the certificate of a node, as the authority makes it.
func (s *secured) member(name string) visitor {
	s.t.Helper()
	folder := filepath.Join(s.Secured.Folder, name)
	p, err := pki.ReadPair(filepath.Join(folder, "node-"+name+".crt"), filepath.Join(folder, "node-"+name+".key"))
	require.NoError(s.t, err)
	v := visitor{name: "member " + name, cert: shown(s.t, p)}
	hello, err := v.node(s.Nodes[1]).Hello(s.t.Context(), &nodev1.HelloRequest{})
	require.NoError(s.t, err)
	v.who = hello.Cluster + " " + name + " "
	return v
}

// strangersOnRaft knocks at the Raft port of each node with certificates that are no
// node's of the cluster.
func strangersOnRaft(t *testing.T, s *secured) {
	now := time.Now()
	ca, err := pki.ReadPair(s.Secured.Authority(), filepath.Join(s.Secured.Folder, "ca", "ca.key"))
	require.NoError(t, err)
	own := s.member("n1")
	issue := func(ca *pki.Pair, role pki.Role, name string, at time.Time, validity time.Duration) *tls.Certificate {
		hosts := []string{"127.0.0.1"}
		if role == pki.Client {
			hosts = nil
		}
		p, err := pki.Issue(ca, role, name, hosts, at, validity)
		require.NoError(t, err)
		return shown(t, p)
	}
	other, err := pki.NewCA("other", now)
	require.NoError(t, err)
	posing, err := pki.NewCA(processes.ClusterName, now)
	require.NoError(t, err)
	strangers := []visitor{
		{"nobody", nil, own.who},
		{"a client", issue(ca, pki.Client, "eve", now, time.Hour), own.who},
		{"a client with the name of a node", issue(ca, pki.Client, "n1", now, time.Hour), own.who},
		{"a node of another cluster", issue(other, pki.Node, "n1", now, time.Hour), own.who},
		{"a node of another authority", issue(posing, pki.Node, "n1", now, time.Hour), own.who},
		{"a node whose certificate has ended", issue(ca, pki.Node, "n1", now.Add(-30*time.Minute), 10*time.Minute), own.who},
		{"another node", issue(ca, pki.Node, "n9", now, time.Hour), own.who},
		{"a node that is no member", issue(ca, pki.Node, "n9", now, time.Hour), strings.Replace(own.who, " n1 ", " n9 ", 1)},
		{"a member of another cluster's log", own.cert, "01HZZZZZZZZZZZZZZZZZZZZZZZ n1 "},
	}
	before, terms := s.state(), s.terms()
	for i, n := range s.Nodes {
		for _, v := range strangers {
			_, err := v.append(n, 1<<63)
			require.Error(t, err, "%s at %s", v.name, n.Name)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%s at %s", v.name, n.Name)
			_, err = v.node(n).Term(t.Context(), &nodev1.TermRequest{})
			require.Error(t, err, "%s at %s", v.name, n.Name)
			_, err = v.node(n).RemoveNode(t.Context(), &nodev1.RemoveNodeRequest{})
			require.Error(t, err, "%s at %s", v.name, n.Name)
		}
		for _, alarm := range []string{"a connection of another node was refused", "expired", "only nodes may speak here", "unknown authority", "it speaks for"} {
			s.says(i, alarm)
		}
	}
	require.Equal(t, terms, s.terms())
	require.Equal(t, before, s.state())
	// What a member sends gets there: it is the certificates that made the difference.
	res, err := own.append(s.Nodes[2], 0)
	require.NoError(t, err)
	require.False(t, res.Success)
	require.Equal(t, terms[2], fmt.Sprint("n1", res.Term))
}

// rubbishOnPorts sends what is no protocol to both ports, in plain text and where TLS is
// spoken already.
func rubbishOnPorts(t *testing.T, s *secured) {
	random := make([]byte, 64<<10)
	_, err := rand.Read(random)
	require.NoError(t, err)
	texts := []string{
		string(random), "\x00", "\xff\xff\xff\xff", "\x16\x03\x01\xff\xff\x01", "\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff", "\x15\x03\x03\x00\x02\x02\x28", "\x16\x03\x03" + string(random[:512]),
		"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "R\x1a01HZZZZZZZZZZZZZZZZZZZZZZZ\x00\xdb\xff\xff\xff\xff", "\x80\x80\x01\x03\x01", strings.Repeat("\x16", 1<<16),
	}
	before, terms := s.state(), s.terms()
	for _, n := range s.Nodes {
		for i, text := range texts {
			for _, address := range []string{n.API, n.Raft} {
				said, err := say(address, text)
				require.NoError(t, err, "%d at %s is not closed", i, address)
				require.NotContains(t, said, " 200 ")
			}
		}
	}
	for i, text := range texts {
		conn := s.dial(i % 3)
		_, _ = io.WriteString(conn, text+"\r\n\r\n")
		_ = conn.(*tls.Conn).CloseWrite()
		said, err := untilClosed(conn)
		require.NoError(t, err, "%d is not closed", i)
		require.NotContains(t, said, " 200 ")
		_ = conn.Close()
	}
	require.Equal(t, terms, s.terms())
	require.Equal(t, before, s.state())
	s.alive()
}

// alive sees to it that each node runs and takes a call.
func (s *secured) alive() {
	s.t.Helper()
	for i, n := range s.Nodes {
		require.True(s.t, n.Runs(), n.Name)
		require.Empty(s.t, n.Failures())
		s.must(i, s.admin, "AccessService/WhoAmI", object{})
	}
}

var allocated = regexp.MustCompile(`(?m)^go_memstats_alloc_bytes_total ([0-9.e+]+)$`)

// allocated is how many bytes a node has ever allocated.
func (s *secured) allocated(i int) float64 {
	s.t.Helper()
	a := s.get(i, s.Secured.Operator(), "/metrics")
	require.Equal(s.t, http.StatusOK, a.Status)
	found := allocated.FindSubmatch(a.Body)
	require.NotNil(s.t, found)
	n, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(s.t, err)
	return n
}

// hugeLengths announces messages of 4 GiB, and sends none of them.
func hugeLengths(t *testing.T, s *secured) {
	const times, most = 20, 256 << 20 // 80 GiB are announced in each way
	frame := binary.BigEndian.AppendUint32([]byte{0}, 1<<32-1)
	before := make([]float64, len(s.Nodes))
	for i := range s.Nodes {
		before[i] = s.allocated(i)
	}
	state := s.state()
	for n := range times {
		for _, kind := range []string{"application/connect+proto", "application/connect+json", "application/grpc", "application/grpc-web"} {
			for _, method := range []string{"CallService/Exchange", "ClusterService/Restore"} {
				token := s.admin
				if method == "ClusterService/Restore" {
					token = s.Secured.Operator()
				}
				a, err := s.send(n%3, token, method, frame, "Content-Type", kind, "Te", "trailers")
				if err == nil {
					require.NotContains(t, string(a.Body), "index", "%s %s", kind, method)
				}
			}
		}
		for _, kind := range []string{"application/grpc", "application/grpc-web"} {
			_, _ = s.send(n%3, s.admin, "CallService/BeginCall", frame, "Content-Type", kind, "Te", "trailers")
		}
	}
	for i := range s.Nodes {
		conn := s.dial(i)
		_, err := io.WriteString(conn, "POST /govnode.v1.CallService/BeginCall HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nAuthorization: Bearer "+s.admin+
			"\r\nContent-Length: 4294967295\r\n\r\n"+strings.Repeat("x", 1<<20))
		require.NoError(t, err)
		require.NoError(t, conn.(*tls.Conn).CloseWrite())
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, " 429 ", "a request may not be that long")
		_ = conn.Close()
	}
	// The same of Raft's, by a member: lengths in its encoding, and of a frame.
	member := s.member("n1")
	for n := range times {
		to := s.Nodes[1+n%2]
		for _, text := range []string{"\x00\xdb\xff\xff\xff\xff", "\x00\xc6\xff\xff\xff\xff", "\x00\xdf\xff\xff\xff\xff", "\x00\x81\xa7Entries\xdd\xff\xff\xff\xff", "\x00\x81\xa6Leader\xc6\xff\xff\xff\xff"} {
			conn, err := member.Dial(raft.ServerAddress(to.Raft), time.Second)
			require.NoError(t, err)
			_, err = io.WriteString(conn, text)
			require.NoError(t, err)
			require.NoError(t, conn.(*tls.Conn).CloseWrite())
			_, err = untilClosed(conn)
			require.NoError(t, err, "%q is not closed", text)
			_ = conn.Close()
		}
		if n > 1 {
			continue
		}
		conn, err := member.open(to.Raft, "h2")
		require.NoError(t, err)
		_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\xff\xff\xff\x00\x00\x00\x00\x00\x01")
		require.NoError(t, err)
		_, err = untilClosed(conn)
		require.NoError(t, err)
		_ = conn.Close()
	}
	for i, n := range s.Nodes {
		require.Less(t, s.allocated(i)-before[i], float64(most), n.Name)
	}
	require.Equal(t, state, s.state())
	s.alive()
}

// malformedProto sends messages in protobuf that are nested too deeply, have fields that
// there are not, or of another type, or end too early.
func malformedProto(t *testing.T, s *secured) {
	good := &v1.BeginCallRequest{SessionId: "s", CallId: "proto", Tool: "t"}
	with := func(more []byte) []byte {
		b, err := proto.Marshal(good)
		require.NoError(t, err)
		return append(b, more...)
	}
	field := func(n protowire.Number, kind protowire.Type, content []byte) []byte {
		return append(protowire.AppendTag(nil, n, kind), content...)
	}
	value := structpb.NewNullValue()
	deep, err := proto.Marshal(value)
	require.NoError(t, err)
	for range 10_000 { // Struct in Value in the entry of a map
		entry := append(field(1, protowire.BytesType, protowire.AppendString(nil, "a")), field(2, protowire.BytesType, protowire.AppendBytes(nil, deep))...)
		of := field(1, protowire.BytesType, protowire.AppendBytes(nil, entry))
		deep = field(5, protowire.BytesType, protowire.AppendBytes(nil, of))
	}
	_, _, n := protowire.ConsumeTag(deep)
	require.Positive(t, n)
	groups := strings.Repeat(string(protowire.AppendTag(nil, 500, protowire.StartGroupType)), 20_000)
	duration := field(8, protowire.BytesType, protowire.AppendBytes(nil, field(99, protowire.VarintType, protowire.AppendVarint(nil, 1))))
	before, attempts := s.state(), s.attempts()
	for name, body := range map[string][]byte{
		"nested too deeply":        with(field(5, protowire.BytesType, deep[n:])),
		"groups in groups":         with([]byte(groups)),
		"1 MB that nobody knows":   with(field(9999, protowire.BytesType, protowire.AppendBytes(nil, make([]byte, 1<<20)))),
		"a field nobody knows":     with(field(9999, protowire.BytesType, protowire.AppendString(nil, "x"))),
		"one in a message in it":   with(duration),
		"a number for a text":      with(field(4, protowire.VarintType, protowire.AppendVarint(nil, 7))),
		"a text for a number":      with(field(12, protowire.BytesType, protowire.AppendString(nil, "7"))),
		"32 bits for a number":     with(field(11, protowire.Fixed32Type, protowire.AppendFixed32(nil, 7))),
		"a number for a message":   with(field(8, protowire.VarintType, protowire.AppendVarint(nil, 7))),
		"a text that is not UTF-8": with(field(4, protowire.BytesType, protowire.AppendString(nil, "\xff\xfe"))),
		"a length beyond the end":  with(append(protowire.AppendTag(nil, 4, protowire.BytesType), 0xff, 0xff, 0xff, 0xff, 0x0f)),
		"a number without an end":  with(append(protowire.AppendTag(nil, 12, protowire.VarintType), bytes.Repeat([]byte{0xff}, 11)...)),
		"field 0":                  with([]byte{0x02, 0x01, 'x'}),
		"a type that is none":      with([]byte{0x27}),
		"an end of no group":       with(protowire.AppendTag(nil, 500, protowire.EndGroupType)),
		"random bytes":             []byte("\x8f\x01\xfe\xca\x99"),
	} {
		for _, method := range []string{"CallService/BeginCall", "PolicyService/PutPolicy", "CallService/EndCall", "SessionService/CreateSession"} {
			a, err := s.send(0, s.admin, method, body, "Content-Type", "application/proto")
			require.NoError(t, err)
			require.Contains(t, []string{"invalid_argument", "resource_exhausted"}, a.Code(), "%s: %s: %s", method, name, a)
			require.Less(t, len(a.Body), 4<<10)
		}
		enveloped := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
		grpc, err := s.send(1, s.admin, "CallService/BeginCall", enveloped, "Content-Type", "application/grpc-web+proto")
		require.NoError(t, err)
		require.Regexp(t, `(?i)grpc-status:[ [](3|8)\b`, fmt.Sprint(string(grpc.Body), grpc.Header), name)
		item := field(1, protowire.BytesType, protowire.AppendBytes(nil, field(2, protowire.BytesType, protowire.AppendBytes(nil, body))))
		a, err := s.send(2, s.admin, "CallService/BatchCalls", item, "Content-Type", "application/proto")
		require.NoError(t, err)
		require.Contains(t, []string{"invalid_argument", "resource_exhausted"}, a.Code(), "in a batch: %s: %s", name, a)
	}
	require.Equal(t, before, s.state())
	require.Equal(t, attempts, s.attempts())
	s.alive()
	a, err := s.send(0, s.admin, "CallService/BeginCall", with(nil), "Content-Type", "application/proto")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.Status, "without any of it the call is taken: %s", a)
}

// deepJSON sends JSON that is nested deeply, where it is read and in texts that hold JSON.
func deepJSON(t *testing.T, s *secured) {
	const deep = 100_000
	list, half := strings.Repeat("[", deep)+strings.Repeat("]", deep), strings.Repeat("[", deep)
	objects := strings.Repeat(`{"a":`, deep/4) + "1" + strings.Repeat("}", deep/4)
	before, attempts := s.state(), s.attempts()
	for method, bodies := range map[string][]string{
		"CallService/BeginCall": {
			`{"sessionId":"s","callId":"d","tool":"t","arguments":{"a":` + list + `}}`, `{"sessionId":"s","callId":"d","tool":"t","arguments":` + objects + `}`,
			`{"sessionId":"s","callId":"d","tool":"t","arguments":{"a":` + half, `{"sessionId":"s","callId":"d","tool":"t","context":` + objects + `}`,
			`{"sessionId":"s","callId":"d","tool":"t","argumentsJson":"{\"a\":` + strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000) + `}"}`,
			`{"sessionId":"s","callId":"d","tool":"t","contextJson":"{\"a\":` + half + `"}`, `{"sessionId":"s","callId":"d","tool":"t","metadataJson":"{\"a\":` + half + `"}`,
			`{"sessionId":"s","callId":"d","tool":"t","nobody":` + list + `}`, half, list, `{"sessionId":` + list + `}`,
		},
		"CallService/EndCall":     {`{"sessionId":"s","callId":"proto","status":"STATUS_SUCCEEDED","output":` + list + `}`, `{"sessionId":"s","callId":"proto","output":` + objects + `}`},
		"CallService/BatchCalls":  {`{"operations":[{"tag":1,"begin":{"sessionId":"s","callId":"d","tool":"t","arguments":` + objects + `}}]}`, `{"operations":` + list + `}`},
		"PolicyService/Evaluate":  {`{"sessionId":"s","tool":"t","arguments":{"a":` + list + `}}`, `{"sessionId":"s","tool":"t","argumentsJson":"` + half + `"}`},
		"ApprovalService/Request": {`{"agentId":"a","tool":"t","requestId":"d","arguments":{"a":` + list + `}}`},
		"PolicyService/PutPolicy": {`{"name":"d","yaml":"max_tool_calls: ` + half + `"}`, list},
	} {
		for _, body := range bodies {
			a, err := s.send(0, s.admin, method, []byte(body), "Content-Type", "application/json")
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", a.Code(), "%s %.80s: %s", method, body, a)
			require.Less(t, len(a.Body), 8<<10)
		}
	}
	require.Equal(t, before, s.state())
	require.Equal(t, attempts, s.attempts())
	s.alive()
}

// deadlines asks for no time and for all the time there is.
func deadlines(t *testing.T, s *secured) {
	before := s.attempts()
	for _, x := range [][2]string{
		{"Connect-Timeout-Ms", "99999999999"}, {"Connect-Timeout-Ms", "-1"}, {"Connect-Timeout-Ms", "1e12"}, {"Connect-Timeout-Ms", "soon"}, {"Connect-Timeout-Ms", "0x10"},
	} {
		a, err := s.ask(0, s.admin, "CallService/BeginCall", object{"sessionId": "s", "callId": "time", "tool": "t"}, x[0], x[1])
		require.NoError(t, err)
		require.Equal(t, "invalid_argument", a.Code(), "%v: %s", x, a)
	}
	for _, x := range [][2]string{
		{"wait", "1000000000000s"}, {"wait", "31536000s"}, {"ttl", "1000000000000s"}, {"ttl", "31536000s"}, {"maxHold", "315576000000s"}, {"maxHold", "31536000s"},
	} {
		a, err := s.ask(0, s.admin, "CallService/BeginCall", object{"sessionId": "s", "callId": "time", "tool": "t", x[0]: x[1]})
		require.NoError(t, err)
		require.Equal(t, "invalid_argument", a.Code(), "%v: %s", x, a)
	}
	require.Equal(t, before, s.attempts())
	// No time at all: it is not known what became of it, and asking again tells.
	a, err := s.ask(0, s.admin, "CallService/BeginCall", object{"sessionId": "s", "callId": "none", "tool": "t"}, "Connect-Timeout-Ms", "0")
	require.NoError(t, err)
	require.NotEqual(t, http.StatusOK, a.Status, a)
	got := s.must(1, s.admin, "CallService/BeginCall", object{"sessionId": "s", "callId": "none", "tool": "t"})
	require.Equal(t, "OUTCOME_ADMITTED", got["outcome"])
	for i, x := range [][2]string{{"Connect-Timeout-Ms", "9999999999"}, {"Grpc-Timeout", "99999999H"}, {"Grpc-Timeout", "0n"}} {
		a, err := s.ask(2, s.admin, "CallService/BeginCall", object{"sessionId": "s", "callId": fmt.Sprint("long", i), "tool": "t"}, x[0], x[1])
		require.NoError(t, err)
		require.Equal(t, "OUTCOME_ADMITTED", a.Object()["outcome"], "%v: %s", x, a)
	}
}

// cancelledOnTheWay goes away as soon as a call is sent, until some were admitted without
// anybody there to hear it: whoever asks again under the same id gets their outcome.
func cancelledOnTheWay(t *testing.T, s *secured) {
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "gone", "agentId": "a", "policy": object{"name": "p"}})
	held := func() map[string]string {
		all := map[string]string{}
		open, _ := s.must(0, s.admin, "SessionService/GetSession", object{"sessionId": "gone"})["session"].(object)["openCalls"].([]any)
		for _, c := range open {
			all[c.(object)["callId"].(string)] = fmt.Sprint(c.(object)["grants"].([]any)[0].(object)["token"])
		}
		return all
	}
	n := 0
	require.Eventually(t, func() bool {
		for range 10 {
			body := fmt.Sprintf(`{"sessionId":"gone","callId":"c%d","tool":"t","ttl":"600s"}`, n)
			conn := s.dial(n % 3)
			_, err := fmt.Fprintf(conn, "POST /govnode.v1.CallService/BeginCall HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", s.admin, len(body), body)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			n++
		}
		return len(held()) > 2
	}, 60*time.Second, 10*time.Millisecond)
	known := held()
	for i := range n {
		id := fmt.Sprint("c", i)
		got := s.must((i+1)%3, s.admin, "CallService/BeginCall", object{"sessionId": "gone", "callId": id, "tool": "t", "ttl": "600s"})
		require.Equal(t, "OUTCOME_ADMITTED", got["outcome"])
		if token, ok := known[id]; ok {
			require.Equal(t, token, got["grants"].([]any)[0].(object)["token"], "it is the one that was granted")
		}
	}
	session := s.must(0, s.admin, "SessionService/GetSession", object{"sessionId": "gone"})["session"].(object)
	require.Equal(t, fmt.Sprint(n), fmt.Sprint(session["attempts"]), "each counts once")
}

// namesInMetrics sends 200 names of each kind: no metric has a series more for them.
func namesInMetrics(t *testing.T, s *secured) {
	const canary = "zq7canary"
	operator := s.made(canary)
	send := func(n int) {
		name := fmt.Sprint(canary, n)
		for _, x := range []struct {
			token, method string
			body          object
		}{
			{operator, "PolicyService/PutPolicy", object{"name": name, "yaml": "max_tool_calls: 9\nmax_concurrent: 3\n"}},
			{operator, "SlotService/PutPool", object{"pool": name, "slots": 1, "client": name}},
			{operator, "LimitService/PutRate", object{"rate": name, "limit": 1, "per": "60s"}},
			{operator, "LimitService/PutBudget", object{"budget": name, "amount": "1"}},
			{operator, "SessionService/CreateSession", object{"sessionId": name, "agentId": name, "policy": object{"name": name}, "attributes": object{name: name}}},
			{operator, "CallService/BeginCall", object{"sessionId": name, "callId": name, "tool": name, "serverLabel": name, "metadata": object{name: name}}},
			{operator, "SlotService/AcquireSlot", object{"pool": name, "slotId": name, "client": name, "label": name}},
			{operator, "LimitService/TakeRate", object{"rate": name, "requestId": name, "client": name}},
			{operator, "CounterService/Set", object{"key": name, "value": name}},
			{operator, "SessionService/Signal", object{"agentId": name, "signal": name}},
			{operator, "ApprovalService/Request", object{"agentId": name, "tool": name, "requestId": name}},
			{operator, "SessionService/GetSession", object{"sessionId": name + "-none"}},
			{operator, "CallService/BeginCall", object{"sessionId": name + "-none", "callId": name, "tool": name}},
			{operator, "SlotService/AcquireSlot", object{"pool": name + "-none", "slotId": name}},
			{operator, "PolicyService/PutPolicy", object{"name": name, "yaml": name + ": 1\n"}},
			{operator, "PolicyService/" + name, object{}},
			{operator, name + "/Get", object{}},
			{"gn_" + name + ".none." + name + name, "AccessService/WhoAmI", object{}},
			{"", "AccessService/WhoAmI", object{}},
		} {
			_, err := s.ask(0, x.token, x.method, x.body, "User-Agent", name, "Govnode-"+name, name)
			require.NoError(t, err)
		}
		s.get(0, operator, "/"+name)
		req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(name), s.URL(s.Nodes[0])+"/govnode.v1.AccessService/WhoAmI", nil)
		require.NoError(t, err)
		res, err := s.http.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	series := func() map[string]bool {
		all := map[string]bool{}
		for _, n := range []int{0, 1, 2} {
			for line := range strings.Lines(string(s.get(n, s.Secured.Operator(), "/metrics").Body)) {
				if strings.HasPrefix(line, "gov_") {
					all[fmt.Sprint(n, line[:strings.LastIndexByte(line, ' ')])] = true
				}
			}
		}
		return all
	}
	send(0)
	before := series()
	require.Greater(t, len(before), 100)
	for n := range 200 {
		send(n + 1)
	}
	after := series()
	require.Less(t, len(after), len(before)+20, "those that time brings, and none for a name")
	for name := range after {
		require.NotContains(t, strings.ToLower(name), canary)
	}
}

var adminAt = regexp.MustCompile(`admin=(127\.0\.0\.1:\d+)`)

// adminFromElsewhere asks for profiles, metrics and the schema where they are not meant
// to be had.
func adminFromElsewhere(t *testing.T, s *secured) {
	for i := range s.Nodes {
		for _, token := range []string{"", s.admin, s.Secured.Operator()} {
			for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1", "/debug/vars", "//debug/pprof/", "/metrics/../debug/pprof/", "/healthz/../debug/pprof/heap"} {
				a := s.get(i, token, path)
				require.Contains(t, []int{http.StatusNotFound, http.StatusUnauthorized}, a.Status, "%s: %.200s", path, a)
			}
		}
		for token, want := range map[string]int{"": http.StatusUnauthorized, s.admin: http.StatusForbidden, s.Secured.Operator(): http.StatusOK} {
			require.Equal(t, want, s.get(i, token, "/metrics").Status)
			stream := grpcreflect.NewClient(s.as(token), s.URL(s.Nodes[i]), connect.WithGRPC()).NewStream(t.Context())
			_, err := stream.ListServices()
			require.Equal(t, want == http.StatusOK, err == nil, "%v", err)
			_, _ = stream.Close()
		}

		// The port for those who run the node is on this machine alone, and for no web pages.
		found := adminAt.FindStringSubmatch(s.Nodes[i].Said())
		require.NotNil(t, found, s.Nodes[i].Said())
		get := func(header, value string) int {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+found[1]+"/debug/pprof/cmdline", nil)
			require.NoError(t, err)
			if header == "Host" {
				req.Host = value
			} else if header != "" {
				req.Header.Set(header, value)
			}
			res, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			return res.StatusCode
		}
		require.Equal(t, http.StatusOK, get("", ""))
		require.Equal(t, http.StatusForbidden, get("Host", "evil.example"))
		require.Equal(t, http.StatusForbidden, get("Host", "192.0.2.1"))
		require.Equal(t, http.StatusForbidden, get("Origin", "http://evil.example"))
		_, port, err := net.SplitHostPort(found[1])
		require.NoError(t, err)
		for _, host := range elsewhere(t) {
			conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err == nil {
				_ = conn.Close()
			}
			require.Error(t, err, "the port answers at %s", host)
		}
	}
}

// elsewhere are the addresses of this machine but for that of the admin port.
func elsewhere(t *testing.T) []string {
	t.Helper()
	all := []string{"127.0.0.2"}
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() {
			all = append(all, ip.IP.String())
		}
	}
	return all
}

// Nodes with settings by which strangers would come in do not start, and say which it is.
func TestOpenDoors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return string(out), err
	}
	for _, args := range [][]string{
		{"tls", "init", "--cluster", "example", "--out", "ca"}, {"tls", "node", "a", "--hosts", "127.0.0.1", "--ca-dir", "ca", "--out", "a"},
		{"tls", "node", "a", "--hosts", "127.0.0.1", "--ca-dir", "ca", "--out", "open"},
	} {
		out, err := run(args...)
		require.NoError(t, err, out)
	}
	file := func(name, content string, mode os.FileMode) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), mode))
		require.NoError(t, os.Chmod(filepath.Join(dir, name), mode))
		return name
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "open", "node-a.key"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	file("empty.key", "", 0o600)
	file("empty.crt", "", 0o600)
	file("empty.token", "", 0o600)
	file("open.token", "gnj_aaaa."+strings.Repeat("s", 43), 0o644)
	file("nokeys.yaml", "keys: []\n", 0o600)
	file("nohash.yaml", "keys: [{name: a, hash: '', role: agent}]\n", 0o600)
	file("noname.yaml", "certificates: [{match: '', namespace: team-a, roles: [agent]}]\n", 0o600)
	file("noaud.yaml", "issuers: [{issuer: 'https://x', audience: '', subjects: [{match: '*', namespace: t, roles: [agent]}]}]\n", 0o600)
	tls := func(cert, key string) []string {
		return []string{"--cluster-name", "example", "--tls-cert", cert, "--tls-key", key, "--tls-ca", "ca/ca.crt"}
	}
	own := tls("a/node-a.crt", "a/node-a.key")
	for i, x := range []struct {
		says string
		args []string
	}{
		{"chmod 600", tls("open/node-a.crt", "open/node-a.key")},
		{"empty.key", tls("a/node-a.crt", "empty.key")},
		{"empty.crt", tls("empty.crt", "a/node-a.key")},
		{"is not a loopback address", []string{"--listen", "0.0.0.0:0"}},
		{"is not a loopback address", []string{"--listen", "[::]:0"}},
		{"is not a loopback address", []string{"--listen", ":0"}},
		{"is not a loopback address", []string{"--raft-listen", "0.0.0.0:0"}},
		{"is not a loopback address", append([]string{"--listen", "0.0.0.0:0"}, own...)},                             // TLS, and no tokens
		{"is not a loopback address", []string{"--listen", "0.0.0.0:0", "--auth", "tokens"}},                         // tokens, and no TLS
		{"must say under which host", []string{"--listen", "0.0.0.0:0", "--insecure", "--raft-listen", "0.0.0.0:0"}}, // and it is said aloud
		{"admin-listen", []string{"--admin-listen", "0.0.0.0:0"}},
		{"admin-listen", []string{"--admin-listen", ":0"}},
		{"admin-listen", append([]string{"--admin-listen", "192.0.2.1:1", "--auth", "tokens"}, own...)},
		{"chmod 700", append([]string{"--auth", "tokens", "--socket", "folder/s"}, own...)},
		{"empty.token", append([]string{"--auth", "tokens", "--join-token-file", "empty.token"}, own...)},
		{"chmod 600", append([]string{"--auth", "tokens", "--join-token-file", "open.token"}, own...)},
		{"there is none", []string{"--edictum-keys", "nokeys.yaml"}},
		{"keys[0].hash", []string{"--edictum-keys", "nohash.yaml"}},
		{"certificates[0]", append([]string{"--auth", "tokens", "--identities", "noname.yaml"}, own...)},
		{"audience", append([]string{"--auth", "tokens", "--identities", "noaud.yaml"}, own...)},
		{"belongs to --auth tokens", []string{"--identities", "noname.yaml"}},
	} {
		args := []string{"serve", "--node", "a", "--data", fmt.Sprint("data", i), "--raft-listen", "127.0.0.1:0"}
		if strings.Contains(strings.Join(x.args, " "), "join-token-file") {
			args = append(args, "--join", "127.0.0.1:1", "--join-timeout", "5s")
		} else {
			args = append(args, "--bootstrap")
		}
		if !strings.Contains(strings.Join(x.args, " "), "--listen") || strings.Contains(strings.Join(x.args, " "), "--raft-listen") {
			args = append(args, "--listen", "127.0.0.1:0")
		}
		out, err := run(append(args, x.args...)...)
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%v: %s", x.args, out)
		require.Contains(t, out, x.says, "%v", x.args)
		require.NotContains(t, out, "node a api=", "%v: it began to serve", x.args)
	}
}
