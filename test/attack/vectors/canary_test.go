//go:build attack

package vectors

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/govnode/test/processes"
)

// Whatever stands in a field of a request is in no log, metric, audit record, error or
// stack trace, and in no file of data, unless mayBe says that it may be there, and
// why. What it names is found, so that the search is known to find.
func TestCanaries(t *testing.T) {
	var found []map[string]map[string]string
	t.Run("raft", func(t *testing.T) {
		a := newAviary(t, 3, true, "--raft-snapshot-bytes", "262144", "--raft-trailing-logs", "16777216")
		a.everything()
		found = append(found, a.judge(func() {}))
	})
	t.Run("redis", func(t *testing.T) {
		args, data, save := keptRedis(t, canary("the password of Redis"))
		a := newAviary(t, 1, true, args...)
		a.data = append(a.data, data)
		a.everything()
		found = append(found, a.judge(save))
	})
	t.Run("keys", func(t *testing.T) {
		key := "gnk_" + canary("an API key")
		file := filepath.Join(t.TempDir(), "keys.yaml")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "keys:\n- {name: sdk, hash: 'sha256:%x', role: operator}\n", sha256.Sum256([]byte(key))), 0o600))
		a := newAviary(t, 1, false, "--edictum-keys", file, "--audit-chain", "on")
		a.edictum(key)
		found = append(found, a.judge(func() {}))
	})
	if len(found) < 3 {
		return // a part of them
	}
	needed := map[string]bool{}
	for _, places := range found {
		for field := range places {
			entry, _ := leaveOf(field)
			needed[entry] = true
		}
	}
	for entry := range mayBe {
		if !needed[entry] {
			t.Errorf("%s is found nowhere: it needs no place in the table", entry)
		}
	}
}

// aviary is nodes that are given canaries, and all that they said.
type aviary struct {
	*secured
	prints []*printed
	worker string   // a token of "default" whose secret is a canary
	secret string   // of sessions
	data   []string // folders
	found  *findings
}

func newAviary(t *testing.T, size int, secured bool, args ...string) *aviary {
	a := &aviary{found: &findings{of: map[finding]string{}}}
	a.secured = start(t, size, secured, func(c *processes.Cluster) {
		for _, n := range c.Nodes {
			p := &printed{}
			n.Prints, a.prints, a.data = p, append(a.prints, p), append(a.data, n.Dir)
		}
	}, append(args, "--log-level", "debug", "--admin-listen", "127.0.0.1:0")...)
	return a
}

// holdSecrets are methods whose requests hold more than names: some of each are taken.
var holdSecrets = []string{"AccessService.CreateToken", "AccessService.DenySubject", "ApprovalService.Request", "ApprovalService.Decide", "ApprovalService.PutStanding",
	"CallService.BeginCall", "CallService.EndCall", "CallService.BatchCalls", "CallService.Exchange", "CounterService.Set", "CounterService.Append", "CounterService.Increment",
	"PolicyService.PutPolicy", "PolicyService.Evaluate", "PolicyService.Scan", "SessionService.CreateSession", "SessionService.Signal", "SlotService.AcquireSlot", "SlotService.RenewSlots"}

// everything sends canaries in all ways that there are.
func (a *aviary) everything() {
	a.setUp()
	all := probes(a.t, a.bases())
	var group sync.WaitGroup
	var next, taken atomic.Int64
	var done sync.Map // methods of requests that were taken
	for w := range 8 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(all); i = int(next.Add(1)) - 1 {
				if a.probe((i+w)%len(a.Nodes), all[i]) {
					taken.Add(1)
					done.Store(all[i].method.FullName(), true)
				}
			}
		})
	}
	group.Wait()
	for _, method := range holdSecrets {
		_, ok := done.Load(protoreflect.FullName("govnode.v1." + method))
		require.True(a.t, ok, "no %s was taken", method)
	}
	a.headers()
	a.bodies()
	a.edictum(a.worker)
	a.waiting()
	a.t.Logf("a canary in each of %d requests, of which %d were taken", len(all), taken.Load())
}

// judge ends the nodes and holds what is found to what may be. It returns that, by
// fields and places.
func (a *aviary) judge(save func()) map[string]map[string]string {
	t := a.t
	for i, n := range a.Nodes {
		token := ""
		if a.Secured != nil {
			token = a.Secured.Operator()
		}
		a.found.text("metrics", a.get(a.URL(n)+"/metrics", token))
		admin := a.prints[i].after("admin=")
		require.NotEmpty(t, admin)
		for _, path := range []string{"/metrics", "/debug/pprof/goroutine?debug=1", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1", "/debug/pprof/cmdline"} {
			a.found.text("metrics", a.get("http://"+admin+path, ""))
		}
	}
	a.saveSnapshot()
	for i, n := range a.Nodes {
		require.NoError(t, syscall.Kill(n.Pid(), syscall.SIGQUIT))
		require.Eventually(t, func() bool { return !n.Runs() }, 30*time.Second, 10*time.Millisecond)
		log, dump, quit := strings.Cut(a.prints[i].text(), "SIGQUIT")
		require.True(t, quit && strings.Contains(dump, "\ngoroutine 1 "), "no stacks: %.2000s", dump)
		a.found.text("log", log)
		a.found.text("stacks", dump)
		a.found.text("audit", string(read(t, filepath.Join(n.Dir, "audit.jsonl"))))
	}
	save()
	for _, dir := range a.data {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && d.Name() != "audit.jsonl" {
				a.found.text("data", string(read(t, path)))
			}
			return err
		}))
	}
	places := map[string]map[string]string{} // by field
	for f, around := range a.found.of {
		field := fieldOf(f.number)
		if places[field] == nil {
			places[field] = map[string]string{}
		}
		places[field][f.place] = around
	}
	for _, field := range slices.Sorted(maps.Keys(places)) {
		for _, place := range slices.Sorted(maps.Keys(places[field])) {
			if _, l := leaveOf(field); slices.Contains(strings.Fields(l.places), place) {
				continue
			}
			t.Errorf("what is in %s is in the %s: %q", field, place, places[field][place])
		}
	}
	return places
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// findings are canaries that were found, and what stands around them.
type findings struct {
	mu sync.Mutex
	of map[finding]string
}

type finding struct {
	number int // -1 if it cannot be read
	place  string
}

var (
	marks = regexp.MustCompile("(?i)" + canaryMark + "([0-9]{0,6})")
	// What is in base64 or in hexadecimal digits is no less in plain sight.
	coded = func() *regexp.Regexp {
		forms := []string{"(?i:" + hex.EncodeToString([]byte(canaryMark)) + ")"}
		for skip := range 3 { // the text of base64 depends on where it begins
			text := base64.StdEncoding.EncodeToString([]byte("xxx"[:skip] + canaryMark))
			forms = append(forms, regexp.QuoteMeta(text[[]int{0, 2, 3}[skip]:len(text)/4*4-4]))
		}
		return regexp.MustCompile("[A-Za-z0-9+/_-]*(" + strings.Join(forms, "|") + ")[A-Za-z0-9+/_-]*")
	}()
)

// text looks for canaries in what was found at a place.
func (f *findings) text(place, text string) {
	last, of := -1, -1
	for _, at := range marks.FindAllStringSubmatchIndex(text, -1) {
		n := -1
		if at[3]-at[2] == 6 {
			_, _ = fmt.Sscanf(text[at[2]:at[3]], "%06d", &n) // they are digits
		} else if at[0] == last+32 {
			n = of // the rest of one that was repeated, and cut off
		}
		last, of = at[0], n
		f.add(n, place, text[max(0, at[0]-120):min(len(text), at[1]+80)])
	}
	for _, run := range coded.FindAllString(text, -1) {
		whole := false
		plain := func(b []byte, _ error) {
			for _, at := range marks.FindAllSubmatch(b, -1) {
				n := -1
				if _, err := fmt.Sscanf(string(at[1]), "%06d", &n); err == nil && len(at[1]) == 6 {
					whole = true
					f.add(n, place, run)
				}
			}
		}
		run = strings.NewReplacer("-", "+", "_", "/").Replace(run)
		for skip := range min(4, len(run)) {
			plain(base64.RawStdEncoding.DecodeString(run[skip : skip+(len(run)-skip)/4*4]))
			plain(hex.DecodeString(run[skip : skip+(len(run)-skip)/2*2]))
		}
		if !whole {
			f.add(-1, place, run)
		}
	}
}

func (f *findings) add(number int, place, around string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of[finding{number, place}] == "" {
		f.of[finding{number, place}] = around
	}
}

// A printed is all that a process prints.
type printed struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *printed) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// after is the word behind a text.
func (p *printed) after(what string) string {
	_, rest, _ := strings.Cut(p.text(), what)
	word, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(word)
}

// setUp makes what requests are about.
func (a *aviary) setUp() {
	id, secret := "canaryworker", canary("the secret of a token")
	sum := sha256.Sum256([]byte(secret))
	a.must(0, a.Secured.Operator(), "AccessService/CreateToken", object{"namespace": "default", "tokenId": id, "secretSha256": sum[:],
		"roles": []string{"ROLE_AGENT", "ROLE_ORCHESTRATOR", "ROLE_APPROVER", "ROLE_POLICY_AUTHOR", "ROLE_AUDITOR", "ROLE_OPERATOR"}, "requestId": "canary"})
	a.worker = "gn_default." + id + "." + secret
	a.secret = canary("the secret of a session")
	sum = sha256.Sum256([]byte(a.secret))
	const room = "max_tool_calls: 1000000\nmax_attempts: 1000000\nmax_concurrent: 4096\ntimeout_seconds: 86400\n"
	for name, yaml := range map[string]string{
		"open":    "drift_threshold: 0\n",
		"blocked": "blocked_patterns: ['c[n]ryzqxvk', 'AKIA[A-Z0-9]+']\n",
		"strange": "name: strange\nrules:\n" +
			"- {name: more, condition: {field: arguments.password, operator: gt, value: 3}, action: deny, priority: 9}\n" +
			"- {name: like, condition: {field: arguments.password, operator: matches, value: '^c[n]ryzqxvk'}, action: deny, priority: 8}\n",
		"asked":   "require_human_approval: true\napproval: {required: 1, timeout: 300s}\n",
		"drift":   "drift_threshold: 0.1\n",
		"edictum": "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: edictum}\ndefaults: {mode: enforce}\nrules:\n- {id: keys, type: post, tool: '*', when: {output.text: {matches: 'c[n]ryzqxvk[0-9]+'}}, then: {action: redact, message: a key}}\n",
	} {
		files := []any{object{"path": "a.yaml", "content": yaml + room}}
		if strings.Contains(yaml, "rules:") { // which is a document of another kind
			files = []any{object{"path": "a.yaml", "content": yaml}, object{"path": "b.yaml", "content": room}}
		}
		a.must(0, a.worker, "PolicyService/PutPolicy", object{"name": name, "files": files})
		a.must(0, a.worker, "SessionService/CreateSession", object{"sessionId": name, "agentId": "agent", "policy": object{"name": name}, "sessionTokenSha256": sum[:]})
	}
	a.must(0, a.worker, "SlotService/PutPool", object{"pool": "full", "slots": 1})
	a.must(0, a.worker, "SlotService/AcquireSlot", object{"pool": "full", "slotId": "taken", "client": "holder", "ttl": "3600s"})
	a.must(0, a.worker, "LimitService/PutRate", object{"rate": "rate", "limit": 1000, "per": "60s"})
	a.must(0, a.worker, "LimitService/PutBudget", object{"budget": "budget", "amount": "1000"})
	a.must(0, a.worker, "CounterService/Set", object{"key": "text", "value": canary("SetRequest.value")})
	for _, call := range []string{"ended", "judged"} {
		for _, session := range []string{"open", "drift", "edictum"} {
			a.must(0, a.worker, "CallService/BeginCall", object{"sessionId": session, "callId": call, "tool": "t", "sessionToken": a.secret, "ttl": "3600s"})
		}
	}
}

// bases are what requests have beside a canary.
func (a *aviary) bases() map[string][]object {
	var begins []object
	for _, session := range []string{"open", "blocked", "strange", "asked"} {
		o := object{"sessionId": session, "callId": "$call", "tool": "t", "sessionToken": a.secret}
		if session == "asked" {
			o["$kind"] = " (of a call that people decide about)"
		}
		begins = append(begins, o)
	}
	ends := []object{{"sessionId": "open", "callId": "ended", "sessionToken": a.secret, "status": "STATUS_SUCCEEDED"}}
	for _, session := range []string{"drift", "edictum"} {
		ends = append(ends, object{"sessionId": session, "callId": "judged", "sessionToken": a.secret, "status": "STATUS_SUCCEEDED"})
	}
	ends[1]["$kind"] = " (the first of a session with a drift_threshold)"
	one := func(o object) []object { return []object{o} }
	return map[string][]object{
		"BeginCallRequest": begins, "EndCallRequest": ends, "CancelCallRequest": one(object{"sessionId": "open", "callId": "none", "sessionToken": a.secret}),
		"CreateSessionRequest": one(object{"sessionId": "$session", "agentId": "agent", "policy": object{"name": "open"}}),
		"EvaluateRequest": {{"policy": object{"name": "blocked"}, "tool": "t"}, {"policy": object{"name": "strange"}, "tool": "t", "arguments": object{"password": "x"}},
			{"policy": object{"name": "edictum"}, "tool": "t", "output": "x"}},
		"ScanRequest":                   one(object{"policy": object{"name": "blocked"}, "text": "x", "kind": "SCAN_KIND_INPUT"}),
		"PolicyRef":                     one(object{"name": "open"}),
		"TextFile":                      one(object{"path": "p.yaml", "content": "max_tool_calls: 3\n"}),
		"PutPolicyRequest":              {{"name": "put", "yaml": "max_tool_calls: 3\n"}, {"name": "put"}},
		"PutHashRequest":                one(object{"tool": "$tool", "hash": strings.Repeat("ab", 32)}),
		"ApprovalServiceRequestRequest": one(object{"agentId": "agent", "tool": "t", "message": "m"}),
		"ApprovalServiceDecideRequest":  one(object{"id": "pending", "decision": "VOTE_APPROVE"}),
		"PutStandingRequest":            one(object{"scope": "STANDING_SCOPE_AGENT", "name": "agent", "tool": "t", "expiry": "60s"}),
		"SignalRequest":                 one(object{"sessionId": "open", "signal": "HELLO", "reason": "r"}),
		"AcquireSlotRequest":            one(object{"pool": "full", "slotId": "$slot", "client": "c"}),
		"ReleaseSlotRequest":            one(object{"pool": "full", "slotId": "taken", "client": "holder", "token": 99}),
		"RenewSlotsRequest":             one(object{"client": "holder", "slots": []any{object{"sessionId": "open", "slotId": "ended", "sessionToken": a.secret}}}),
		"SlotRef":                       one(object{"sessionId": "open", "slotId": "ended", "sessionToken": a.secret}),
		"TakeRateRequest":               one(object{"rate": "rate", "client": "c", "requestId": "$take"}),
		"PutPoolRequest":                one(object{"pool": "pool", "slots": 1}),
		"PutRateRequest":                one(object{"rate": "other", "limit": 1, "per": "1s"}),
		"PutBudgetRequest":              one(object{"budget": "other", "amount": "1"}),
		"SetRequest":                    one(object{"key": "k", "value": "v"}),
		"IncrementRequest":              one(object{"key": "n", "amount": "1"}),
		"AdjustBudgetRequest":           one(object{"budget": "budget", "by": "1"}),
		"AppendRequest":                 one(object{"key": "l", "items": []any{"v"}, "ttl": "3600s"}),
		"CreateTokenRequest":            one(object{"tokenId": "$", "secretSha256": bytes.Repeat([]byte("h"), 32), "roles": []string{"ROLE_AGENT"}}),
		"DenySubjectRequest":            one(object{"subject": "$jwt:s"}),
		"AddNodeRequest":                one(object{"node": "n9", "address": "127.0.0.9:1", "nonvoter": true}),
		"Want":                          one(object{"pool": "full"}),
		"RateWant":                      one(object{"rate": "rate"}),
		"BudgetAmount":                  one(object{"budget": "budget"}),
	}
}

// probe sends a request, and reports whether it was taken.
func (a *aviary) probe(node int, p probe) bool {
	if p.body["id"] == "pending" {
		made := a.must(0, a.admin, "ApprovalService/Request", object{"agentId": "agent", "tool": "t", "message": "m"})
		p.body["id"] = made["approval"].(object)["id"]
	}
	body, err := json.Marshal(p.body)
	require.NoError(a.t, err)
	name := string(p.method.Parent().Name()) + "/" + string(p.method.Name())
	kind, token := "application/json", a.worker
	if p.method.Parent().Name() == "ClusterService" && p.method.Name() != "RepairIDs" || p.method.Name() == "PutQuotas" {
		token = a.Secured.Operator()
	}
	if p.method.IsStreamingClient() || p.method.IsStreamingServer() {
		body, kind = enveloped(body), "application/connect+json"
	}
	res, err := a.send(node, token, name, body, "Content-Type", kind, "Connect-Timeout-Ms", "5000")
	if err != nil {
		return false // a stream that went on
	}
	a.failed(res)
	return res.Status == http.StatusOK
}

// enveloped is a message of a stream.
func enveloped(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// failed looks at what is an error of an answer.
func (a *aviary) failed(res answer) {
	if res.Status != http.StatusOK {
		a.found.text("errors", string(res.Body))
		return
	}
	for rest := res.Body; len(rest) > 0; { // of a batch, or of a stream
		at := bytes.Index(rest, []byte(`"error":`))
		if at < 0 {
			return
		}
		var said json.RawMessage
		if json.NewDecoder(bytes.NewReader(rest[at+len(`"error":`):])).Decode(&said) == nil {
			a.found.text("errors", string(said))
		}
		rest = rest[at+1:]
	}
}

// headers sends canaries in headers and in the query.
func (a *aviary) headers() {
	status := []byte(`{"sessionId":"open"}`)
	for _, h := range []string{"Authorization", "Cookie", "User-Agent", "Govnode-Namespace", "X-Forwarded-For", "Forwarded", "Traceparent", "Idempotency-Key", "Referer",
		"Connect-Timeout-Ms", "Connect-Protocol-Version", "Accept-Encoding", "Content-Encoding", "X-Api-Key", "X-Edictum-Agent-Id", "Proxy-Authorization", "Origin", "Host", "Content-Type"} {
		for _, form := range []string{"%s", "Bearer %s", "Bearer gn_default.%[1]s.%[1]s%[1]s", "Bearer gn_default.canaryworker.%s", "Bearer gnj_%[1]s.%[1]s.%[1]s", "Bearer gnk_%s",
			"Basic %s", "Bearer eyJhbGciOiJSUzI1NiJ9.%[1]s.%[1]s", "%[1]s=%[1]s; %[1]s"} {
			for _, path := range []string{"/govnode.v1.SessionService/GetSession", "/v1/sessions/k", "/metrics", "/govnode.v1.ClusterService/AddNode"} {
				req, err := http.NewRequest(http.MethodPost, a.URL(a.Nodes[0])+path, bytes.NewReader(status))
				require.NoError(a.t, err)
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+a.worker)
				value := fmt.Sprintf(form, canary("the header "+h))
				if h == "Host" {
					req.Host = url.QueryEscape(value)
				} else {
					req.Header.Set(h, value)
				}
				a.do(req)
			}
		}
	}
	for _, path := range []string{"/govnode.v1.SessionService/GetSession", "/v1/sessions/k", "/metrics", "/readyz", "/nothing"} {
		c := canary("the query")
		req, err := http.NewRequest(http.MethodGet, a.URL(a.Nodes[0])+path+"?token="+c+"&"+c+"=1", nil)
		require.NoError(a.t, err)
		a.do(req)
	}
}

// do sends a request and looks at the error that it is answered with, if it is one.
func (a *aviary) do(req *http.Request) (res answer) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	got, err := a.http.Do(req.WithContext(ctx))
	if err != nil {
		return answer{} // what HTTP does not let through
	}
	defer func() { _ = got.Body.Close() }()
	res.Status = got.StatusCode
	if res.Body, err = io.ReadAll(got.Body); err != nil {
		return answer{}
	}
	for name, values := range got.Header {
		a.found.text("errors", name+": "+strings.Join(values, " "))
	}
	if res.Status != http.StatusOK && res.Status != http.StatusCreated {
		a.found.text("errors", string(res.Body))
	}
	return res
}

func (a *aviary) get(url, token string) string {
	a.t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(a.t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res := a.do(req)
	require.Equal(a.t, http.StatusOK, res.Status, "%s: %s", url, res)
	return string(res.Body)
}

// bodies sends canaries in bodies that are no requests.
func (a *aviary) bodies() {
	for _, kind := range []string{"application/json", "application/proto", "application/connect+json", "application/connect+proto", "application/grpc", "application/grpc-web+proto", "text/plain"} {
		for _, form := range []string{"%s", `"%s"`, `{"%s`, `{"sessionId":"%s","callId`, "\x0a\x20%s\xff", "\x00\x00\x00\x00\x20%s", "\x01\x00\x00\x00\x20%s", "\x00\xff\xff\xff\xff%s"} {
			for _, method := range []string{"CallService/BeginCall", "CallService/Exchange", "CounterService/Set"} {
				res, err := a.send(0, a.worker, method, fmt.Appendf(nil, form, canary("a body that cannot be read")), "Content-Type", kind)
				if err == nil {
					a.failed(res)
				}
			}
		}
	}
}

// edictum sends canaries in what SDKs of Edictum say.
func (a *aviary) edictum(token string) {
	text := func(c string) []any {
		return []any{c, c + "\n\"}\x1b[31m " + c, strings.Repeat(c, 400), object{c: c}, []any{c}, nil}
	}
	say := func(method, path, field string, body func(v any) any, values func(c string) []any) {
		c := canary("/v1/" + field)
		for _, v := range values(c) {
			content, err := json.Marshal(body(v))
			require.NoError(a.t, err)
			req, err := http.NewRequest(method, a.URL(a.Nodes[0])+"/v1/"+strings.ReplaceAll(path, "*", url.PathEscape(c)), bytes.NewReader(content))
			require.NoError(a.t, err)
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("X-Edictum-Agent-Id", "agent")
			a.do(req)
		}
	}
	none := func(c string) []any { return []any{nil} }
	same := func(v any) any { return v }
	in := func(base object, field string) func(any) any {
		return func(v any) any { return alone(base, nil, field, v) }
	}
	say("PUT", "sessions/*", "sessions: a key", in(object{}, "value"), func(string) []any { return []any{"x"} })
	say("GET", "sessions/*", "sessions: a key", same, none)
	say("PUT", "sessions/k", "sessions: value", in(object{}, "value"), text)
	say("POST", "sessions/k/increment", "sessions: amount", in(object{}, "amount"), text) // of a text
	say("POST", "sessions/n/increment", "sessions: amount", in(object{}, "amount"), text)
	say("POST", "sessions/batch", "sessions: a key", func(v any) any { return object{"keys": []any{v}} }, text)
	question := object{"tool_name": "t", "tool_args": object{"a": 1}, "message": "m"}
	for _, f := range []string{"tool_name", "message", "session_id", "timeout_action", "timeout"} {
		say("POST", "approvals", "approvals: "+f, in(question, f), text)
	}
	say("POST", "approvals", "approvals: tool_args", in(question, "tool_args"), func(c string) []any { return append(text(c), secrets(c)) })
	say("GET", "approvals/*", "approvals: an id", same, none)
	say("PUT", "approvals/*", "approvals: an id", in(object{"approved": true}, "x"), none)
	say("PUT", "approvals/none", "approvals: reason", in(object{"approved": true}, "reason"), text)
	say("GET", "approvals?session_id=*&status=*", "approvals: a query", same, none)
	event := object{"session_id": "s", "call_id": "c", "action": "call_allowed"}
	for _, f := range []string{"session_id", "call_id", "action", "tool_args", "output", "other"} {
		field := "events"
		if f == "session_id" {
			field = "events: session_id"
		}
		say("POST", "events", field, func(v any) any { return object{"events": []any{alone(event, nil, f, v)}} }, text)
	}
	say("GET", "events?session_id=*&agent_id=*", "events: a query", same, none)
	ruleset := object{"yaml": "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: r}\nrules: []\n"}
	for _, f := range []string{"yaml", "signature", "public_key"} {
		say("PUT", "rulesets/r", "rulesets: "+f, in(ruleset, f), text)
	}
	say("PUT", "rulesets/*", "rulesets: a name", same, func(string) []any { return []any{ruleset} })
	say("GET", "rulesets/*/current?env=*", "rulesets: a name", same, none)
	say("PUT", "agents/*/ruleset", "agents: a name", in(object{}, "name"), func(string) []any { return []any{"r"} })
	say("PUT", "agents/agent/ruleset", "rulesets: a name", in(object{}, "name"), text)
	say("POST", "*", "a path", same, none)
	say("POST", "sessions/k", "a body", same, func(c string) []any { return []any{c} })
}

// waiting has requests under way until the nodes end: calls that wait for a slot with
// arguments, and streams.
func (a *aviary) waiting() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	a.t.Cleanup(func() { cancel(); all.Wait() })
	send := func(method, kind string, body []byte) {
		for i := range a.Nodes {
			all.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL(a.Nodes[i])+"/govnode.v1."+method, bytes.NewReader(body))
				require.NoError(a.t, err)
				req.Header.Set("Content-Type", kind)
				req.Header.Set("Authorization", "Bearer "+a.worker)
				if res, err := a.http.Do(req); err == nil { // it ends with the node
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			})
		}
	}
	waits := func() object {
		return object{"sessionId": "open", "callId": fmt.Sprint("waits-", draws.Add(1)), "tool": "t", "sessionToken": a.secret, "wait": "600s", "pools": []any{object{"pool": "full"}},
			"arguments": secrets(canary("BeginCallRequest.arguments"))}
	}
	for range 5 {
		body, err := json.Marshal(waits())
		require.NoError(a.t, err)
		send("CallService/BeginCall", "application/json", body)
	}
	tried := waits()
	tried["wait"] = "1s"
	require.Equal(a.t, "OUTCOME_WAIT_TIMEOUT", a.must(0, a.worker, "CallService/BeginCall", tried)["outcome"])
	body, err := json.Marshal(object{"frames": []any{object{"tag": 1, "begin": waits()}}})
	require.NoError(a.t, err)
	send("CallService/Exchange", "application/connect+json", enveloped(body))
	send("EventService/Follow", "application/connect+json", enveloped([]byte("{}")))
	require.Eventually(a.t, func() bool {
		slots := a.must(0, a.worker, "SlotService/ListSlots", object{"pool": "full"})
		waiters, _ := slots["waiters"].([]any)
		return len(waiters) >= 6
	}, 20*time.Second, 20*time.Millisecond, "they wait")
}

// saveSnapshot has what is in a snapshot looked at as data.
func (a *aviary) saveSnapshot() {
	req, err := http.NewRequest(http.MethodPost, a.URL(a.Nodes[0])+"/govnode.v1.ClusterService/Snapshot", bytes.NewReader(enveloped([]byte("{}"))))
	require.NoError(a.t, err)
	req.Header.Set("Content-Type", "application/connect+json")
	if a.Secured != nil {
		req.Header.Set("Authorization", "Bearer "+a.Secured.Operator())
	}
	res := a.do(req)
	require.Equal(a.t, http.StatusOK, res.Status, res)
	var all []byte
	for rest := res.Body; len(rest) >= 5; {
		n := 5 + int(binary.BigEndian.Uint32(rest[1:]))
		var m struct{ Chunk []byte }
		require.NoError(a.t, json.Unmarshal(rest[5:n], &m))
		all, rest = append(all, m.Chunk...), rest[n:]
	}
	require.Greater(a.t, len(all), 1000)
	a.found.text("data", string(all))
}

// keptRedis runs a Redis that keeps what it has, as it is and in an append-only file, in
// a folder of its own.
func keptRedis(t *testing.T, password string) (args []string, dir string, save func()) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server; install it with: sudo apt-get install -y redis-server")
	}
	dir = t.TempDir()
	settings := filepath.Join(t.TempDir(), "govnode.yaml")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, l.Close())
	cmd := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--rdbcompression", "no",
		"--appendonly", "yes", "--appendfsync", "always", "--requirepass", password)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	say := func(line string) string {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = c.Close() }()
		_, err = fmt.Fprintf(c, "AUTH %s\r\n%s\r\nQUIT\r\n", password, line)
		require.NoError(t, err)
		answer, err := io.ReadAll(c)
		require.NoError(t, err)
		return string(answer)
	}
	require.Eventually(t, func() bool { return strings.Contains(say("PING"), "PONG") }, 10*time.Second, 20*time.Millisecond)
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, "redis: redis://:%s@127.0.0.1:%s/0\n", password, port), 0o600))
	return []string{"--backend", "redis", "--config", settings}, dir, func() {
		require.Equal(t, 3, strings.Count(say("SAVE"), "+OK"))
		require.NotEmpty(t, read(t, filepath.Join(dir, "dump.rdb")))
	}
}
