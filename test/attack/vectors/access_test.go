//go:build attack

package vectors

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/input"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

const everyRole = "agent,orchestrator,approver,policy-author,auditor,operator"

// Who has no token, a wrong one, or one of something else.
func TestAccess(t *testing.T) {
	t.Parallel()
	s := secure(t, 3)
	empty := s.state()
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 100000\nmax_concurrent: 1000\n"})
	require.NotEqual(t, empty, s.state(), "a change can be seen")
	for _, x := range []struct {
		name string
		try  func(*testing.T, *secured)
	}{
		{"none", withoutToken}, {"rubbish", withRubbish}, {"expired", withExpired}, {"namespace", inAnotherNamespace}, {"operator", asOperator},
		{"batch", foreignItems}, {"lists", beyondScope}, {"headers", forgedHeaders}, {"hops", forgedHops}, {"socket", otherUsersSocket}, {"guess", guessedSessions},
	} {
		t.Run(x.name, func(t *testing.T) {
			own := *s
			own.t = t
			x.try(t, &own)
		})
	}
}

// methods are all of the API.
func methods(t *testing.T) access.Methods {
	t.Helper()
	all, err := access.ReadMethods()
	require.NoError(t, err)
	return all
}

// call asks for a method of any kind with an empty request, over gRPC.
func (s *secured) call(i int, token, procedure string) connect.Code {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	c := connect.NewClient[emptypb.Empty, emptypb.Empty](s.as(token), s.URL(s.Nodes[i])+procedure, connect.WithGRPC())
	stream := c.CallBidiStream(ctx)
	_ = stream.Send(&emptypb.Empty{}) // the answer tells
	_ = stream.CloseRequest()
	_, err := stream.Receive()
	cancel()
	_ = stream.CloseResponse()
	if err == nil || errors.Is(err, io.EOF) {
		return 0
	}
	return connect.CodeOf(err)
}

// as is a client that shows a token with each request.
func (s *secured) as(token string) *http.Client {
	return &http.Client{Transport: showing{token, s.http.Transport}}
}

type showing struct {
	token string
	to    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s showing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	return s.to.RoundTrip(r)
}

// state is all that was ever changed in namespaces, as the chains of the audit in the
// state tell it, and who the members are.
func (s *secured) state(namespaces ...string) string {
	s.t.Helper()
	var all strings.Builder
	for _, ns := range append(namespaces, "default", "$cluster") {
		for page := ""; ; {
			got := s.must(0, s.Secured.Operator(), "AccessService/ListChains", object{"namespace": ns, "pageSize": 1000, "pageToken": page})
			fmt.Fprintln(&all, ns, got["chains"])
			if page, _ = got["nextPageToken"].(string); page == "" {
				break
			}
		}
	}
	var nodes []string
	status := s.must(0, s.Secured.Operator(), "ClusterService/Status", object{})
	for _, p := range status["peers"].([]any) {
		nodes = append(nodes, p.(object)["node"].(string))
	}
	slices.Sort(nodes)
	return fmt.Sprint(all.String(), nodes)
}

func withoutToken(t *testing.T, s *secured) {
	before := s.state()
	for i := range s.Nodes {
		for procedure := range methods(t) {
			require.Equal(t, connect.CodeUnauthenticated, s.call(i, "", procedure), procedure)
			a, err := s.ask(i, "", strings.TrimPrefix(procedure, "/govnode.v1."), object{})
			require.NoError(t, err)
			require.NotEqual(t, http.StatusOK, a.Status, "%s: %s", procedure, a)
		}
		for _, path := range []string{"/metrics", "/v1/session", "/v1/session/a/b", "/v1/approvals", "/v1/rules/current", "/v1/stream"} {
			a := s.get(i, "", path)
			require.Equal(t, http.StatusUnauthorized, a.Status, "%s: %s", path, a)
		}
	}
	require.Equal(t, before, s.state())
}

// get is a GET of a path.
func (s *secured) get(i int, token, path string) answer {
	s.t.Helper()
	res, err := s.as(token).Get(s.URL(s.Nodes[i]) + path)
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return answer{res.StatusCode, body, res.Header}
}

func withRubbish(t *testing.T, s *secured) {
	good := s.token("default", everyRole)
	parts := strings.Split(good, ".") // gn_NAMESPACE, ID, SECRET
	require.Len(t, parts, 3)
	random := make([]byte, 48)
	_, err := rand.Read(random)
	require.NoError(t, err)
	canary := hex.EncodeToString(random)
	tokens := []string{
		canary, "gn_" + canary, "gn_default." + parts[1] + "." + canary[:43], "gn_default.none." + canary, "gn_none." + parts[1] + "." + parts[2],
		"gn_default..", "gn_", ".", "..", " ", parts[2], good + "x", good + " " + good, strings.ToUpper(good), "gn_default." + parts[2] + "." + parts[1],
		"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.", "gn_$cluster." + parts[1] + "." + parts[2], "gn_default." + strings.Repeat(canary, 100),
	}
	for n := range len(good) {
		if n%5 == 0 || n > len(good)-3 {
			tokens = append(tokens, good[:n])
		}
	}
	before := s.state()
	texts := map[string]bool{}
	for n, token := range tokens {
		for _, method := range []string{"AccessService/WhoAmI", "PolicyService/PutPolicy"} {
			a, err := s.ask(n%3, "", method, object{"name": "p", "yaml": "max_tool_calls: 1\n"}, "Authorization", "Bearer "+token)
			require.NoError(t, err)
			require.Equal(t, "unauthenticated", a.Code(), "%q: %s", token, a)
			if strings.TrimSpace(token) != "" {
				texts[a.String()] = true
			}
		}
	}
	require.Len(t, texts, 1, "nobody learns what of a token was right")
	for _, header := range []string{"", "Bearer", "Basic " + canary, good, "Bearer\t" + good} {
		a, err := s.ask(0, "", "AccessService/WhoAmI", object{}, "Authorization", header)
		require.NoError(t, err)
		require.Equal(t, "unauthenticated", a.Code(), "%q: %s", header, a)
	}

	// One that is as long as many requests is not read to its end.
	said := s.raw(0, "POST /govnode.v1.AccessService/WhoAmI HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nAuthorization: Bearer "+
		strings.Repeat(canary, 1<<20/len(canary))+"\r\n\r\n{}")
	require.NotContains(t, said, " 200 ")
	require.Equal(t, before, s.state())
	s.nowhere(canary, parts[2])
}

// raw sends bytes to the API of a node over TLS, and returns what it says before it
// closes the connection, or nothing more.
func (s *secured) raw(i int, text string) string {
	s.t.Helper()
	conn := s.dial(i)
	defer func() { _ = conn.Close() }()
	go func() { _, _ = io.WriteString(conn, text) }() // the node may not read it all
	said, _ := io.ReadAll(conn)
	return string(said)
}

// nowhere sees to it that no text is in what the nodes have printed or written.
func (s *secured) nowhere(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		for _, n := range s.Nodes {
			require.NotContains(s.t, n.Said(), text)
		}
		require.NoError(s.t, filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			require.NotContains(s.t, string(content), text, path)
			return err
		}))
	}
}

// says waits until a node has printed a text.
func (s *secured) says(i int, text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.Nodes[i].Said(), text) }, 20*time.Second, 5*time.Millisecond, "%s: %s", s.Nodes[i].Name, text)
}

func withExpired(t *testing.T, s *secured) {
	token := s.token("default", everyRole, "--expires", "2s")
	a, err := s.ask(1, token, "AccessService/WhoAmI", object{})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Eventually(t, func() bool {
		a, err := s.ask(1, token, "AccessService/WhoAmI", object{})
		return err == nil && a.Code() == "unauthenticated"
	}, 20*time.Second, 20*time.Millisecond)
	before := s.state()
	for procedure := range methods(t) {
		require.Equal(t, connect.CodeUnauthenticated, s.call(1, token, procedure), procedure)
	}
	require.Equal(t, before, s.state())
}

// bodies ask each method about an object of "ns-here", all of whose names end in -here.
// Where there is an id that the node draws, it stands as {approval}, {standing},
// {decision} and {digest}.
var bodies = map[string]string{
	"AccessService/AllowSubject": `{"namespace":"ns-here","subject":"cert:x-here"}`,
	"AccessService/CreateToken":  `{"namespace":"ns-here","tokenId":"made","secretSha256":"` + strings.Repeat("A", 43) + `=","roles":["ROLE_AGENT"]}`,
	"AccessService/DenySubject":  `{"namespace":"ns-here","subject":"cert:x-here"}`,
	"AccessService/GetQuotas":    `{"namespace":"ns-here"}`,
	"AccessService/ListChains":   `{"namespace":"ns-here"}`,
	"AccessService/ListTokens":   `{"namespace":"ns-here"}`,
	"AccessService/PutQuotas":    `{"namespace":"ns-here","quotas":{"sessions":"1"}}`,
	"AccessService/RevokeToken":  `{"namespace":"ns-here","tokenId":"{token}"}`,
	"AccessService/WhoAmI":       `{}`,

	"ApprovalService/Cancel":         `{"id":"{approval}"}`,
	"ApprovalService/Decide":         `{"id":"{approval}","decision":"VOTE_APPROVE"}`,
	"ApprovalService/DeleteStanding": `{"id":"{standing}"}`,
	"ApprovalService/Get":            `{"id":"{approval}"}`,
	"ApprovalService/List":           `{"sessionId":"s-here"}`,
	"ApprovalService/ListStanding":   `{"name":"s-here"}`,
	"ApprovalService/PutStanding":    `{"scope":"STANDING_SCOPE_SESSION","name":"s-here","tool":"t-here","expiry":"60s"}`,
	"ApprovalService/Request":        `{"agentId":"a-here","tool":"t","sessionId":"s-here","requestId":"q-here","timeout":"60s"}`,

	"CallService/BatchCalls": `{"operations":[{"tag":1,"begin":{"sessionId":"s-here","callId":"n-here","tool":"t"}},
		{"tag":2,"end":{"sessionId":"s-here","callId":"c-here","status":"STATUS_SUCCEEDED"}},{"tag":3,"cancel":{"sessionId":"s-here","callId":"c-here"}},
		{"tag":4,"acquire":{"pool":"q-here","slotId":"n-here"}},{"tag":5,"release":{"pool":"q-here","slotId":"slot-here","client":"w-here","token":"{fence}"}},
		{"tag":6,"renew":{"client":"w-here","slots":[{"pool":"q-here","slotId":"slot-here","token":"{fence}"},{"sessionId":"s-here","slotId":"c-here","token":"{held}"}]}},
		{"tag":7,"take":{"rate":"r-here","requestId":"n-here"}}]}`,
	"CallService/BeginCall":  `{"sessionId":"s-here","callId":"n-here","tool":"t"}`,
	"CallService/CancelCall": `{"sessionId":"s-here","callId":"c-here"}`,
	"CallService/EndCall":    `{"sessionId":"s-here","callId":"c-here","status":"STATUS_SUCCEEDED"}`,

	"ClusterService/AddNode":            `{"node":"n9","address":"127.0.0.1:9"}`,
	"ClusterService/RemoveNode":         `{"node":"n3"}`,
	"ClusterService/RepairIDs":          `{"holderClient":"w-here","newerThan":"1"}`,
	"ClusterService/Status":             `{}`,
	"ClusterService/TransferLeadership": `{}`,

	"CounterService/Append":     `{"key":"l-here","items":["more"],"ttl":"60s"}`,
	"CounterService/BatchGet":   `{"keys":["k-here","l-here"]}`,
	"CounterService/Delete":     `{"key":"k-here"}`,
	"CounterService/DeleteList": `{"key":"l-here"}`,
	"CounterService/Get":        `{"key":"k-here"}`,
	"CounterService/Increment":  `{"key":"k-here","amount":"1","requestId":"n-here"}`,
	"CounterService/Range":      `{"key":"l-here"}`,
	"CounterService/Set":        `{"key":"k-here","value":"mine"}`,

	"DecisionService/Explain": `{"decisionId":"{decision}","sessionId":"s-here"}`,

	"LimitService/AdjustBudget": `{"budget":"b-here","by":"-5","requestId":"n-here"}`,
	"LimitService/DeleteBudget": `{"budget":"b-here"}`,
	"LimitService/DeleteRate":   `{"rate":"r-here"}`,
	"LimitService/GetBudget":    `{"budget":"b-here"}`,
	"LimitService/GetRate":      `{"rate":"r-here"}`,
	"LimitService/ListBudgets":  `{}`,
	"LimitService/ListRates":    `{}`,
	"LimitService/PutBudget":    `{"budget":"n-here","parent":"b-here","amount":"5"}`,
	"LimitService/PutRate":      `{"rate":"r-here","limit":1,"per":"60s"}`,
	"LimitService/TakeRate":     `{"rate":"r-here","requestId":"n-here"}`,

	"PolicyService/DeleteHash":   `{"tool":"t-here"}`,
	"PolicyService/DeletePolicy": `{"digest":"{digest}"}`,
	"PolicyService/Evaluate":     `{"sessionId":"s-here","tool":"t"}`,
	"PolicyService/GetPolicy":    `{"digest":"{digest}"}`,
	"PolicyService/ListHashes":   `{}`,
	"PolicyService/ListPolicies": `{}`,
	"PolicyService/PutHash":      `{"tool":"t-here","hash":"` + strings.Repeat("b", 64) + `"}`,
	"PolicyService/PutPolicy":    `{"name":"p-here","yaml":"max_tool_calls: 1\n"}`,
	"PolicyService/Scan":         `{"sessionId":"s-here","kind":"SCAN_KIND_INPUT","text":"x"}`,

	"SessionService/CloseSession":  `{"sessionId":"s-here"}`,
	"SessionService/CreateSession": `{"sessionId":"n-here","agentId":"a-here","policy":{"digest":"{digest}"},"parentSessionId":"s-here"}`,
	"SessionService/GetSession":    `{"sessionId":"s-here"}`,
	"SessionService/ListSessions":  `{"agentId":"a-here","policyDigest":"{digest}"}`,
	"SessionService/ListSignals":   `{}`,
	"SessionService/Signal":        `{"sessionId":"s-here","signal":"KILL"}`,

	"SlotService/AcquireSlot":  `{"pool":"q-here","slotId":"n-here"}`,
	"SlotService/DeletePool":   `{"pool":"q-here","force":true}`,
	"SlotService/ForceRelease": `{"slotId":"c-here","sessionId":"s-here","requestId":"n-here"}`,
	"SlotService/GetPool":      `{"pool":"q-here"}`,
	"SlotService/ListPools":    `{}`,
	"SlotService/ListSlots":    `{"pool":"q-here"}`,
	"SlotService/PutPool":      `{"pool":"q-here","slots":9}`,
	"SlotService/ReleaseSlot":  `{"pool":"q-here","slotId":"slot-here","client":"w-here","token":"{fence}"}`,
	"SlotService/RenewSlots":   `{"client":"w-here","slots":[{"pool":"q-here","slotId":"slot-here","token":"{fence}"},{"sessionId":"s-here","slotId":"c-here","token":"{held}"}]}`,
}

// streams are the methods that are no request with one answer; inAnotherNamespace tries
// Follow by itself, and foreignItems tries Exchange.
var streams = map[string]bool{"CallService/Exchange": true, "EventService/Follow": true, "ClusterService/Snapshot": true, "ClusterService/Restore": true}

// found is what the audience of an answer may not learn: not more than of an object that
// is not there. What differs in any two answers is left out.
func found(a answer) string {
	var strip func(v any) any
	strip = func(v any) any {
		switch v := v.(type) {
		case object:
			_, detail := v["type"]
			for k, x := range v {
				if volatile[k] || strings.HasSuffix(k, "At") || detail && k == "value" {
					delete(v, k)
				} else {
					v[k] = strip(x)
				}
			}
		case []any:
			for i := range v {
				v[i] = strip(v[i])
			}
		}
		return v
	}
	return kept.ReplaceAllString(fmt.Sprint(a.Status, strip(a.Object())), "kept by all")
}

// kept is in any order.
var kept = regexp.MustCompile(`kept by n[123], n[123], n[123]`)

// volatile are fields of answers that no two answers share: places in the order, times,
// and what the node draws. The encoding of an error's details is left out as well.
var volatile = map[string]bool{
	"index": true, "appliedIndex": true, "at": true, "decisionId": true, "id": true, "version": true, "requestDigest": true,
	"node": true, "lag": true, "lastContact": true, "token": true,
}

func inAnotherNamespace(t *testing.T, s *secured) {
	const ns, canary = "ns-here", "canary-7d1e"
	own := s.token(ns, everyRole)
	ids := map[string]string{}
	put := func(method string, body object) object { t.Helper(); return s.must(0, own, method, body) }
	of := func(o object, path ...string) string {
		for _, k := range path[:len(path)-1] {
			if list, ok := o[k].([]any); ok {
				o = list[0].(object)
			} else {
				o = o[k].(object)
			}
		}
		return o[path[len(path)-1]].(string)
	}
	ids["{digest}"] = of(put("PolicyService/PutPolicy", object{"name": "p-here", "yaml": "name: p-here\ndescription: " + canary + "\nmax_tool_calls: 1000\nmax_concurrent: 9\n"}), "digest")
	put("SessionService/CreateSession", object{"sessionId": "s-here", "agentId": "a-here", "policy": object{"name": "p-here"}, "attributes": object{"k": canary}})
	begun := put("CallService/BeginCall", object{"sessionId": "s-here", "callId": "c-here", "tool": canary, "ttl": "600s"})
	ids["{decision}"], ids["{held}"] = of(begun, "decisionId"), of(begun, "grants", "token")
	put("SlotService/PutPool", object{"pool": "q-here", "slots": 7})
	ids["{fence}"] = of(put("SlotService/AcquireSlot", object{"pool": "q-here", "slotId": "slot-here", "client": "w-here", "label": canary, "ttl": "600s"}), "token")
	put("LimitService/PutRate", object{"rate": "r-here", "limit": 7, "per": "60s"})
	put("LimitService/PutBudget", object{"budget": "b-here", "amount": "7"})
	put("CounterService/Set", object{"key": "k-here", "value": canary})
	put("CounterService/Append", object{"key": "l-here", "items": []string{canary}, "ttl": "600s"})
	put("PolicyService/PutHash", object{"tool": "t-here", "hash": strings.Repeat("a", 64)})
	ids["{approval}"] = of(put("ApprovalService/Request", object{"agentId": "a-here", "tool": "t", "sessionId": "s-here", "message": canary, "timeout": "600s"}), "approval", "id")
	ids["{standing}"] = of(put("ApprovalService/PutStanding", object{"scope": "STANDING_SCOPE_SESSION", "name": "s-here", "tool": canary, "expiry": "600s"}), "standing", "id")
	put("SessionService/Signal", object{"agentId": "x-here", "signal": "STOP", "reason": canary})
	ids["{token}"] = strings.Split(own, ".")[1]
	absent := map[string]string{
		"{digest}": "sha256:" + strings.Repeat("1", 64), "{decision}": strings.Repeat("0", len(ids["{decision}"])), "{held}": "99999", "{fence}": "99999",
		"{approval}": strings.Repeat("0", len(ids["{approval}"])), "{standing}": strings.Repeat("0", len(ids["{standing}"])), "{token}": "none",
	}
	fill := func(body string, with map[string]string) string {
		for k, v := range with {
			body = strings.ReplaceAll(body, k, v)
		}
		return body
	}
	all := methods(t)
	require.Len(t, bodies, len(all)-len(streams), "each method has a body here")
	before := s.state(ns)
	n := 0
	for method, body := range bodies {
		m := all["/govnode.v1."+method]
		require.NotNil(t, m, method)
		n++
		space := fmt.Sprint("foreign", n)
		other := s.made(space)
		answers := [2]answer{}
		for k, text := range []string{fill(body, ids), strings.ReplaceAll(fill(body, absent), "-here", "-none")} {
			a, err := s.send(n%3, other, method, []byte(text), "Content-Type", "application/json")
			require.NoError(t, err)
			if k == 0 {
				require.NotContains(t, string(a.Body), canary, method)
			}
			answers[k] = a
			b, err := s.send(n%3, other, method, []byte(text), "Content-Type", "application/json", input.NamespaceHeader, []string{ns, "ns-none"}[k])
			require.NoError(t, err)
			require.Equal(t, "permission_denied", b.Code(), "%s: %s", method, b)
		}
		was := found(answers[0])
		for k, v := range ids {
			if len(v) > 8 { // others are numbers, which no answer tells
				was = strings.ReplaceAll(was, v, absent[k])
			}
		}
		require.Equal(t, found(answers[1]), strings.ReplaceAll(was, "-here", "-none"), method)
		switch m.Scope {
		case v1.Scope_SCOPE_TOKENS, v1.Scope_SCOPE_CLUSTER:
			require.Equal(t, "permission_denied", answers[0].Code(), "%s: %s", method, answers[0])
		}
	}

	// Who follows everything there is from the beginning sees his own event alone.
	other := s.made("follows")
	s.must(0, other, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 9\n"})
	s.must(0, other, "SessionService/CreateSession", object{"sessionId": "s", "agentId": "a", "policy": object{"name": "p"}})
	s.must(0, other, "CallService/BeginCall", object{"sessionId": "s", "callId": "own", "tool": "t"})
	e := s.firstEvent(0, other, &v1.FollowRequest{FromOldest: true})
	require.Equal(t, "own", e.CallId, "%v", e)
	require.Equal(t, before, s.state(ns))
	got := s.must(2, own, "CounterService/Get", object{"key": "k-here"})
	require.Contains(t, fmt.Sprint(got), canary)
}

// made makes a token with every role in a namespace, by a request.
func (s *secured) made(ns string) string {
	s.t.Helper()
	const secret = "a-secret-of-enough-letters-00000"
	sum := sha256.Sum256([]byte(secret))
	s.must(0, s.Secured.Operator(), "AccessService/CreateToken", object{"namespace": ns, "tokenId": "made", "secretSha256": sum[:],
		"roles": []string{"ROLE_AGENT", "ROLE_ORCHESTRATOR", "ROLE_APPROVER", "ROLE_POLICY_AUTHOR", "ROLE_AUDITOR", "ROLE_OPERATOR"}})
	return "gn_" + ns + ".made." + secret
}

// firstEvent is the first one that whoever follows is told.
func (s *secured) firstEvent(i int, token string, req *v1.FollowRequest) *v1.Event {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	stream, err := govnodev1connect.NewEventServiceClient(s.as(token), s.URL(s.Nodes[i])).Follow(ctx, req)
	require.NoError(s.t, err)
	for stream.Receive() {
		if e := stream.Msg().Event; e != nil {
			return e
		}
	}
	require.NoError(s.t, stream.Err())
	return nil
}

func asOperator(t *testing.T, s *secured) {
	agent := s.token("default", "agent")
	before := s.state()
	tried := 0
	for procedure, m := range methods(t) {
		if m.Scope == v1.Scope_SCOPE_SELF || m.Scope == v1.Scope_SCOPE_ITEMS || slices.Contains(m.Roles, v1.Role_ROLE_AGENT) {
			continue
		}
		tried++
		require.Equal(t, connect.CodePermissionDenied, s.call(tried%3, agent, procedure), procedure)
		if method := strings.TrimPrefix(procedure, "/govnode.v1."); bodies[method] != "" {
			a, err := s.send(tried%3, agent, method, []byte(bodies[method]), "Content-Type", "application/json")
			require.NoError(t, err)
			require.Equal(t, "permission_denied", a.Code(), "%s: %s", method, a)
		}
	}
	require.Greater(t, tried, 30)
	for _, path := range []string{"/metrics"} {
		a := s.get(0, agent, path)
		require.Equal(t, http.StatusForbidden, a.Status, a)
	}
	require.Equal(t, before, s.state())
}

// foreignItems puts items about what belongs to others between own ones, in a batch and
// in a stream: the others' are not found, and the own ones have their answers.
func foreignItems(t *testing.T, s *secured) {
	secret := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return base64.StdEncoding.EncodeToString(sum[:])
	}
	for _, x := range [][3]string{{"b-mine", "bot-1", ""}, {"b-other", "else", ""}, {"b-sealed", "bot-1", "sealed"}, {"b-own", "bot-1", "own"}} {
		body := object{"sessionId": x[0], "agentId": x[1], "policy": object{"name": "p"}}
		if x[2] != "" {
			body["sessionTokenSha256"] = secret(x[2])
		}
		s.must(0, s.admin, "SessionService/CreateSession", body)
	}
	held := map[string]uint64{}
	for id, token := range map[string]string{"b-mine": "", "b-other": "", "b-sealed": "sealed", "b-own": "own"} {
		a := s.must(0, s.admin, "CallService/BeginCall", object{"sessionId": id, "callId": "held", "tool": "t", "ttl": "600s", "sessionToken": token})
		_, err := fmt.Sscan(a["grants"].([]any)[0].(object)["token"].(string), ptr(held, id))
		require.NoError(t, err)
	}
	s.must(0, s.admin, "SlotService/PutPool", object{"pool": "b-pool", "slots": 5})
	var fence uint64
	_, err := fmt.Sscan(s.must(0, s.admin, "SlotService/AcquireSlot", object{"pool": "b-pool", "slotId": "theirs", "client": "w", "ttl": "600s"})["token"].(string), &fence)
	require.NoError(t, err)
	bound := s.token("default", "agent", "--agents", "bot-*")

	const notFound, lapsed, fenced = "NOT_FOUND", "OUTCOME_LEASE_EXPIRED", "OUTCOME_FENCED"
	run := func(tag string, ask func([]*v1.Operation) []*v1.OperationResult) {
		var ops []*v1.Operation
		var want []string
		add := func(w string, op *v1.Operation) {
			op.Tag = uint64(len(ops) + 1)
			ops, want = append(ops, op), append(want, w)
		}
		begin := func(w, session, token string) {
			add(w, &v1.Operation{Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: session, CallId: tag, Tool: "t", SessionToken: token}}})
		}
		begin("OUTCOME_ADMITTED", "b-mine", "")
		for _, x := range []struct{ session, token string }{{"b-other", ""}, {"b-none", ""}, {"b-sealed", ""}, {"b-sealed", "own"}, {"b-other", "own"}} {
			begin(notFound, x.session, x.token)
			add(notFound, &v1.Operation{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: x.session, CallId: "held", Status: v1.Status_STATUS_SUCCEEDED, SessionToken: x.token}}})
			add(notFound, &v1.Operation{Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: x.session, CallId: "held", SessionToken: x.token}}})
			add(lapsed, &v1.Operation{Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{SessionId: x.session, SlotId: "held", Token: held[x.session], SessionToken: x.token}}}}})
			begin("OUTCOME_ADMITTED", "b-own", "own")
		}
		add(fenced, &v1.Operation{Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "b-pool", SlotId: "theirs", Client: "w", Token: fence}}})
		add(fenced, &v1.Operation{Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Client: "w", Slots: []*v1.SlotRef{{Pool: "b-pool", SlotId: "theirs", Token: fence}}}}})
		add("OUTCOME_ENDED", &v1.Operation{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "b-own", CallId: tag, Status: v1.Status_STATUS_SUCCEEDED, SessionToken: "own"}}})
		results := ask(ops)
		require.Len(t, results, len(ops))
		slices.SortFunc(results, func(a, b *v1.OperationResult) int { return int(a.Tag) - int(b.Tag) })
		for i, r := range results {
			require.Equal(t, want[i], outcome(r), "%v got %v", ops[i], r)
		}
	}
	theirs := func() string {
		var all []string
		for _, id := range []string{"b-other", "b-sealed"} {
			x := s.must(2, s.admin, "SessionService/GetSession", object{"sessionId": id})["session"].(object)
			all = append(all, fmt.Sprint(x["attempts"], x["openCalls"]))
		}
		text := fmt.Sprint(all, s.must(2, s.admin, "SlotService/ListSlots", object{"pool": "b-pool"})["slots"])
		return unrenewed.ReplaceAllString(age.ReplaceAllString(text, ""), "ttl:10m")
	}
	before := theirs()
	c := govnodev1connect.NewCallServiceClient(s.as(bound), s.URL(s.Nodes[1]))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	run("batch", func(ops []*v1.Operation) []*v1.OperationResult {
		res, err := c.BatchCalls(ctx, &v1.BatchCallsRequest{Operations: ops})
		require.NoError(t, err)
		return res.Results
	})
	run("stream", func(ops []*v1.Operation) (all []*v1.OperationResult) {
		stream, err := c.Exchange(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&v1.ExchangeRequest{Frames: ops}))
		for len(all) < len(ops) {
			m, err := stream.Receive()
			require.NoError(t, err)
			all = append(all, m.Answers...)
		}
		require.NoError(t, stream.CloseRequest())
		require.NoError(t, stream.CloseResponse())
		return all
	})
	require.Equal(t, before, theirs())
}

// A lease of ten minutes that was renewed since would have the usual 30 seconds.
var age, unrenewed = regexp.MustCompile(`age:[0-9.]+s`), regexp.MustCompile(`ttl:5[0-9][0-9]\.[0-9]+s`)

func ptr(m map[string]uint64, k string) *target { return &target{m, k} }

// A target is where Sscan writes a number into a map.
type target struct {
	m map[string]uint64
	k string
}

// Scan implements fmt.Scanner.
func (x *target) Scan(state fmt.ScanState, _ rune) error {
	var n uint64
	_, err := fmt.Fscan(state, &n)
	x.m[x.k] = n
	return err
}

// outcome is that of a result, or the reason of its error.
func outcome(r *v1.OperationResult) string {
	switch {
	case r.GetError() != nil:
		return r.GetError().Reason
	case r.GetBegin() != nil:
		return r.GetBegin().Outcome.String()
	case r.GetEnd() != nil:
		return r.GetEnd().Outcome.String()
	case r.GetRelease() != nil:
		return r.GetRelease().Outcome.String()
	case r.GetRenew() != nil:
		return r.GetRenew().Results[0].Outcome.String()
	}
	return r.String()
}

// beyondScope lists, follows and explains with a token that is bound to some agents.
func beyondScope(t *testing.T, s *secured) {
	const canary = "canary-agent"
	bound := s.token("default", everyRole, "--agents", "bot-*")
	for id, agent := range map[string]string{"l-mine": "bot-l", "l-other": canary} {
		s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": id, "agentId": agent, "policy": object{"name": "p"}})
		s.must(0, s.admin, "ApprovalService/Request", object{"agentId": agent, "tool": "t", "sessionId": id, "timeout": "600s"})
		s.must(0, s.admin, "ApprovalService/PutStanding", object{"scope": "STANDING_SCOPE_AGENT", "name": agent, "tool": "t", "expiry": "600s"})
	}
	theirs := s.must(0, s.admin, "CallService/BeginCall", object{"sessionId": "l-other", "callId": canary, "tool": "t"})["decisionId"]
	s.must(0, s.admin, "CallService/BeginCall", object{"sessionId": "l-mine", "callId": "l-own", "tool": "t"})
	for _, agent := range []string{"bot-l", canary} {
		s.must(0, s.admin, "SessionService/Signal", object{"agentId": agent, "signal": "STOP"})
	}
	for i, x := range []struct {
		method string
		body   object
		sees   string // that is its own
	}{
		{"SessionService/ListSessions", object{}, "l-mine"},
		{"SessionService/ListSessions", object{"agentId": canary}, ""},
		{"SessionService/ListSignals", object{}, "bot-l"},
		{"SlotService/ListSlots", object{"pool": "policy/p"}, "l-own"},
		{"ApprovalService/List", object{}, "bot-l"},
		{"ApprovalService/List", object{"agentId": canary}, ""},
		{"ApprovalService/List", object{"sessionId": "l-other"}, ""},
		{"ApprovalService/ListStanding", object{}, "bot-l"},
		{"ApprovalService/ListStanding", object{"name": canary}, ""},
		{"DecisionService/Explain", object{"decisionId": theirs, "local": true}, ""},
		{"DecisionService/Explain", object{"decisionId": theirs}, ""},
	} {
		node := i % 3
		if x.body["local"] != nil {
			node = 0
		}
		a, err := s.ask(node, s.admin, x.method, x.body)
		require.NoError(t, err)
		require.Contains(t, string(a.Body), canary, "%s %v: there is something to see", x.method, x.body)
		a, err = s.ask(node, bound, x.method, x.body)
		require.NoError(t, err)
		require.NotContains(t, string(a.Body), canary, "%s %v", x.method, x.body)
		require.Contains(t, string(a.Body), x.sees, "%s %v", x.method, x.body)
	}
	for _, req := range []*v1.FollowRequest{{FromOldest: true}, {FromOldest: true, AgentId: "bot-l"}} {
		require.Contains(t, s.firstEvent(0, bound, req).AgentId, "bot-")
	}
	watched := func(token string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		stream, err := govnodev1connect.NewEventServiceClient(s.as(token), s.URL(s.Nodes[0])).Follow(ctx, &v1.FollowRequest{FromOldest: true})
		require.NoError(t, err)
		seen := false
		for stream.Receive() {
			e := stream.Msg().Event
			seen = seen || e.GetAgentId() == canary
			if e.GetCallId() == "l-own" {
				return seen
			}
		}
		require.NoError(t, stream.Err())
		return seen
	}
	require.True(t, watched(s.admin), "there is something to see")
	require.False(t, watched(bound))
}

// forgedHeaders says who asks in headers that a proxy might set.
func forgedHeaders(t *testing.T, s *secured) {
	agent := s.token("default", "agent")
	before := s.state()
	for header, value := range map[string]string{
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "https", "X-Real-Ip": "127.0.0.1", "Forwarded": "for=127.0.0.1;by=n1",
		"X-Forwarded-User": "local:0", "X-Forwarded-Client-Cert": `URI=spiffe://example/node/n1`, "X-Ssl-Client-Cert": "spiffe://example/node/n1", "X-Client-Cert": "node/n1",
		"X-Govnode-Identity": "local:0", "Govnode-Identity": "local:0", "Govnode-Principal": "local:0", "Govnode-Node": "n1", "Govnode-Cluster": "example",
		"X-Remote-User": "local:0", "Remote-User": "local:0", "X-Original-Url": "/healthz", "X-Http-Method-Override": "GET", "Origin": "https://127.0.0.1",
	} {
		a, err := s.ask(0, "", "AccessService/WhoAmI", object{}, header, value)
		require.NoError(t, err)
		require.Equal(t, "unauthenticated", a.Code(), "%s: %s", header, a)
		a, err = s.ask(0, agent, "AccessService/WhoAmI", object{}, header, value)
		require.NoError(t, err)
		require.Equal(t, "token:"+strings.Split(agent, ".")[1], a.Object()["principal"], header)
		for _, method := range []string{"SlotService/PutPool", "AccessService/CreateToken", "ClusterService/AddNode"} {
			a, err = s.ask(1, agent, method, object{}, header, value)
			require.NoError(t, err)
			require.Equal(t, "permission_denied", a.Code(), "%s %s: %s", header, method, a)
		}
	}
	require.Equal(t, before, s.state())
}

// forgedHops poses as a node that passes something on.
func forgedHops(t *testing.T, s *secured) {
	service := nodev1.File_govnode_node_v1_node_proto.Services().Get(0)
	before := s.state()
	for i := range service.Methods().Len() {
		procedure := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(i).Name())
		for _, token := range []string{"", s.admin, s.Secured.Operator()} {
			require.Equal(t, connect.CodeUnimplemented, s.call(i%3, token, procedure), "what nodes say to each other is not on the port of the API: %s", procedure)
		}
	}
	require.Equal(t, before, s.state())
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "hops", "agentId": "a", "policy": object{"name": "p"}})
	n := 0
	for i := range s.Nodes {
		for _, header := range []string{"Hop", "X-Hop", "Govnode-Hop", "X-Govnode-Hop", "X-Govnode-Forwarded", "Govnode-Outcome", "Max-Forwards", "Via"} {
			a, err := s.ask(i, s.admin, "CallService/BeginCall", object{"sessionId": "hops", "callId": fmt.Sprint("c", n), "tool": "t"}, header, "1")
			require.NoError(t, err)
			require.Equal(t, "OUTCOME_ADMITTED", a.Object()["outcome"], "%s: %s", header, a)
			n++
			got := s.must((i+1)%3, s.admin, "SessionService/GetSession", object{"sessionId": "hops"})["session"].(object)
			require.EqualValues(t, fmt.Sprint(n), fmt.Sprint(got["attempts"]), "each is passed on once, to who leads")
		}
	}
}

// otherUsersSocket opens the local socket as another user: the folder keeps him out, and
// where it does not the node does.
func otherUsersSocket(t *testing.T, s *secured) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	const nobody = 65534
	path := s.Nodes[0].Socket
	before := s.state()
	ask := func() (string, error) {
		conn, err := dialAs(nobody, path)
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close() }()
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		body := `{"namespace":"$cluster","tokenId":"root","secretSha256":"` + strings.Repeat("A", 43) + `=","roles":["ROLE_OPERATOR"]}`
		_, _ = fmt.Fprintf(conn, "POST /govnode.v1.AccessService/CreateToken HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
		said, _ := io.ReadAll(conn)
		return string(said), nil
	}
	_, err := ask()
	require.ErrorIs(t, err, os.ErrPermission)
	info, err := os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o777))
	require.NoError(t, os.Chmod(path, 0o777))
	said, err := ask()
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, os.Chmod(filepath.Dir(path), info.Mode()))
	require.NoError(t, err)
	require.Empty(t, said)
	s.says(0, "opened by another user, who is refused")
	require.Equal(t, before, s.state())
	_, err = s.Secured.NewToken(s.Nodes[0], "default", "agent")
	require.NoError(t, err, "its own user is let in")
}

// dialAs opens a Unix socket as another user, which this thread alone becomes. It has to
// become itself again and live: with a thread the processes end that it has started.
func dialAs(uid int, path string) (conn net.Conn, err error) {
	become := func(uid int) error {
		if _, _, no := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); no != 0 {
			return no
		}
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := os.Geteuid()
	if err := become(uid); err != nil {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
	}
	if own := become(own); own != nil {
		panic(own) // whatever else runs on this thread would be another user
	}
	f := os.NewFile(uintptr(fd), path) // nil where there is none
	if f != nil {
		defer func() { _ = f.Close() }()
	}
	if err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// guessedSessions tries 100,000 ids of sessions, some of which there are, of agents out
// of the token's scope and with secrets; and is slowed down where its namespace has a
// quota of operations.
func guessedSessions(t *testing.T, s *secured) {
	const tries, each = 100_000, 1000
	admin := s.token("guessed", everyRole)
	s.must(0, admin, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 100\n"})
	sum := sha256.Sum256([]byte("secret"))
	for n := range 20 {
		body := object{"sessionId": fmt.Sprint("s", n*4999), "agentId": "else", "policy": object{"name": "p"}}
		if n%2 == 0 {
			body["agentId"], body["sessionTokenSha256"] = "bot-1", sum[:]
		}
		s.must(0, admin, "SessionService/CreateSession", body)
	}
	bound := s.token("guessed", "agent", "--agents", "bot-*")
	before := s.state("guessed")
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			c := govnodev1connect.NewCallServiceClient(s.as(bound), s.URL(s.Nodes[w%3]))
			for from := w * each; from < tries; from += 4 * each {
				ops := make([]*v1.Operation, each)
				for i := range ops {
					ops[i] = &v1.Operation{Tag: uint64(i + 1), Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: fmt.Sprint("s", from+i), CallId: "c", Tool: "t"}}}
				}
				res, err := c.BatchCalls(t.Context(), &v1.BatchCallsRequest{Operations: ops})
				if err != nil || len(res.Results) != each {
					t.Errorf("%d of %d: %v", len(res.GetResults()), each, err)
					return
				}
				for i, r := range res.Results {
					if e := r.GetError(); e.GetReason() != "NOT_FOUND" || e.Message != fmt.Sprintf("operations[%d].begin.sessionId: there is no session %q; create it with CreateSession", i, fmt.Sprint("s", from+i)) {
						t.Errorf("s%d: %v", from+i, r)
						return
					}
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, before, s.state("guessed"))

	s.must(0, s.Secured.Operator(), "AccessService/PutQuotas", object{"namespace": "guessed", "quotas": object{"operationsPerSecond": "50"}})
	require.Eventually(t, func() bool {
		for range 100 {
			if a, err := s.ask(0, bound, "CallService/BeginCall", object{"sessionId": "s1", "callId": "c", "tool": "t"}); err == nil && strings.Contains(string(a.Body), "QUOTA_EXCEEDED") {
				return true
			}
		}
		return false
	}, 30*time.Second, time.Millisecond)
}
