package server_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// audited is what the nodes of one state have written, line by line.
type audited struct {
	files [][]string
	heads *audit.Heads
}

func (a *audited) report(t *testing.T, files [][]string) *audit.Report {
	t.Helper()
	var in []audit.File
	for i, lines := range files {
		in = append(in, audit.File{Name: fmt.Sprint("n", i+1), Text: strings.NewReader(strings.Join(lines, ""))})
	}
	report, err := audit.Verify(in, audit.Against{Heads: a.heads})
	require.NoError(t, err)
	return report
}

// twoNodesAudited has two nodes work on one state for a while.
func twoNodesAudited(t *testing.T) *audited {
	t.Helper()
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	asks := func(c *server.Config) { c.Authentication = true }
	nodes := []*node{startOn(t, store, asks), startOn(t, store, asks)}
	token := nodes[0].token("default", "worker0", []v1.Role{v1.Role_ROLE_OPERATOR, v1.Role_ROLE_AGENT, v1.Role_ROLE_ORCHESTRATOR, v1.Role_ROLE_POLICY_AUTHOR})
	post := func(n *node, method, body string) map[string]any {
		status, answer := n.post(method, body, "Authorization", "Bearer "+token)
		require.Equal(t, 200, status, "%s %s: %v", method, body, answer)
		return answer
	}
	post(nodes[0], "PolicyService/PutPolicy", `{"yaml":"apiVersion: governance.toolkit/v1\nname: p\nversion: \"1.0\"\nrules: [{name: no-rm, condition: {field: tool_name, operator: eq, value: rm}, action: deny}]\ndefaults: {action: allow}\n"}`)
	post(nodes[1], "SlotService/PutPool", `{"pool":"gpu","slots":2,"requestId":"put-gpu","client":"ops"}`)
	for i := range 12 {
		s := fmt.Sprint("s", i%4)
		n := nodes[i%2]
		if i < 4 {
			post(n, "SessionService/CreateSession", fmt.Sprintf(`{"sessionId":%q,"agentId":"a","policy":{"name":"p"}}`, s))
		}
		tool := []string{"search", "rm"}[i%3/2]
		post(n, "CallService/BeginCall", fmt.Sprintf(`{"sessionId":%q,"callId":"c%d","tool":%q}`, s, i, tool))
		if tool == "search" {
			post(nodes[(i+1)%2], "CallService/EndCall", fmt.Sprintf(`{"sessionId":%q,"callId":"c%d","status":"STATUS_SUCCEEDED"}`, s, i))
		}
	}
	post(nodes[0], "SessionService/CloseSession", `{"sessionId":"s3"}`)
	a := &audited{heads: headsOf(t, store)}
	for _, n := range nodes {
		n.audit.mu.Lock()
		a.files = append(a.files, slices.Collect(strings.Lines(n.audit.buf.String())))
		n.audit.mu.Unlock()
	}
	require.Empty(t, a.report(t, a.files).Problems)
	// What is behind the last change of a node and changed nothing stands in its file
	// alone: whoever cuts that off is not found.
	for i, l := range a.files {
		for !strings.Contains(l[len(l)-1], `"head":`) {
			l = l[:len(l)-1]
		}
		a.files[i] = l
	}
	return a
}

// Whatever is done to the audit of one node is found, and the place is named.
func TestWhatIsDoneToTheAuditIsFound(t *testing.T) {
	a := twoNodesAudited(t)
	r := rand.New(rand.NewPCG(1, 2))
	ways := map[string]func(lines []string) (changed []string, at int){
		"a letter changed": func(l []string) ([]string, int) {
			i := r.IntN(len(l))
			b := []byte(l[i])
			at := r.IntN(len(b) - 1)
			for b[at]++; b[at] == '\n' || b[at] == l[i][at]; b[at]++ {
			}
			l[i] = string(b)
			return l, i
		},
		"an outcome changed": func(l []string) ([]string, int) {
			i := slices.IndexFunc(l, func(s string) bool { return strings.Contains(s, `"outcome":"denied"`) })
			l[i] = strings.Replace(l[i], `"code":3`, `"code":1`, 1)
			return l, i
		},
		"a line removed": func(l []string) ([]string, int) {
			i := r.IntN(len(l))
			return slices.Delete(l, i, i+1), i
		},
		"a line doubled": func(l []string) ([]string, int) {
			i := r.IntN(len(l))
			return slices.Insert(l, i, l[i]), i + 1
		},
		"two lines exchanged": func(l []string) ([]string, int) {
			i := r.IntN(len(l) - 1)
			l[i], l[i+1] = l[i+1], l[i]
			return l, i
		},
		"cut off": func(l []string) ([]string, int) {
			n := 1 + r.IntN(len(l)-1)
			return l[:n], n - 1
		},
		"an older copy": func(l []string) ([]string, int) { return l[:len(l)/2], len(l)/2 - 1 },
		"replaced by another chain": func(l []string) ([]string, int) {
			tail := audit.Tail{Node: "n1"}
			for i := range l {
				body, _, _ := strings.Cut(l[i], `,"node":`)
				l[i] = string(tail.Seal([]byte(strings.Replace(body, "search", "browse", 1)), 0)) + "\n"
			}
			return l, -1
		},
		"removed as a whole": func([]string) ([]string, int) { return nil, -1 },
	}
	found, all := 0, 0
	for range 20 {
		for name, change := range ways {
			node := r.IntN(2)
			files := [][]string{slices.Clone(a.files[0]), slices.Clone(a.files[1])}
			var at int
			files[node], at = change(files[node])
			all++
			report := a.report(t, files)
			require.NotEmpty(t, report.Problems, "%s of n%d, at line %d", name, node+1, at+1)
			found++
			if p := report.Problems[0]; at >= 0 && p.File == fmt.Sprint("n", node+1) {
				require.InDelta(t, at+1, p.Line, 2, "%s: %v", name, report.Problems)
			}
		}
	}
	require.Equal(t, all, found)
}

// A state that is older than the audit is found too.
func TestAnOlderStateThanTheAuditIsFound(t *testing.T) {
	a := twoNodesAudited(t)
	k := session.SessionKey("default", "s1")
	i := slices.IndexFunc(a.heads.Links, func(l audit.Link) bool { return l.Chain == k })
	older := a.heads.Links[i]
	for _, file := range a.files {
		for _, line := range file {
			if _, rest, ok := strings.Cut(line, fmt.Sprintf(`"n":%d,"generation":0,"head":"`, older.N-1)); ok && strings.Contains(line, `"chain":"`+string(k)+`"`) {
				older.Head = rest[:64]
			}
		}
	}
	require.NotEqual(t, a.heads.Links[i].Head, older.Head)
	older.N--
	was := a.heads.Links
	a.heads.Links = slices.Clone(was)
	a.heads.Links[i] = older
	require.Empty(t, a.report(t, a.files).Problems, "the files may have gone on since the heads were read")

	a.heads.Links, a.heads.At = slices.Delete(slices.Clone(was), i, i+1), time.Now().Add(time.Hour)
	problems := a.report(t, a.files).Problems
	require.NotEmpty(t, problems)
	require.Contains(t, problems[0].What, `the state does not know change`)
}

// What a restore takes back is not accused, before anything is changed behind it.
func TestARestoreIsNotAccused(t *testing.T) {
	n := furnished(t)
	var snapshot bytes.Buffer
	require.NoError(t, n.store.Save(t.Context(), &snapshot))
	n.session("late")
	n.begin("s", "late")
	n.restore(snapshot.Bytes(), nil)
	heads := &audit.Heads{At: time.Now().Add(time.Hour), Namespaces: []string{"default"}, Generations: map[string]uint32{}}
	res, err := n.access.ListChains(n.ctx(), &v1.ListChainsRequest{PageSize: 1000})
	require.NoError(t, err)
	for _, c := range res.Chains {
		require.Less(t, c.Generation, res.Generation)
		heads.Links = append(heads.Links, audit.Link{Chain: session.Key(c.Key), N: c.Links, Generation: c.Generation, Head: hex.EncodeToString(c.Head)})
	}
	problems := func() []audit.Problem {
		report, err := audit.Verify(files(n.audit), audit.Against{Heads: heads})
		require.NoError(t, err)
		return report.Problems
	}
	heads.Generations["default"] = res.Generation
	require.Empty(t, problems())
	heads.Generations["default"] = res.Generation - 1
	require.NotEmpty(t, problems(), "a state from before the restore")
}

// The heads of chains come in pages of any size: each once, of whatever kind it is, and
// those that stand in the state. Without one of them its end could be cut off unseen.
func TestChainsInPages(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	for _, id := range []string{"a", "m", "z"} { // names of sessions and of clients go through each other
		n.session(id)
		for _, client := range []string{"b" + id, "n" + id} {
			_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "v", Client: client, RequestId: "r"})
			require.NoError(t, err)
		}
	}
	want := map[session.Key]string{}
	for _, l := range headsOf(t, n.store).Links {
		if l.Chain.Namespace() == "default" {
			want[l.Chain] = l.Head
		}
	}
	require.Greater(t, len(want), 9)
	for size := 1; size <= len(want)+1; size++ {
		got, token := map[session.Key]string{}, ""
		for {
			res, err := n.access.ListChains(n.ctx(), &v1.ListChainsRequest{PageSize: int32(size), PageToken: token})
			require.NoError(t, err, "%d", size)
			require.LessOrEqual(t, len(res.Chains), size)
			for _, c := range res.Chains {
				require.NotContains(t, got, session.Key(c.Key), "%d", size)
				got[session.Key(c.Key)] = hex.EncodeToString(c.Head)
			}
			if token = res.NextPageToken; token == "" {
				break
			}
		}
		require.Equal(t, want, got, "%d", size)
	}
}

// A node that is started again goes on with the chain of its file.
func TestChainsGoOnAfterARestart(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	var log bytes.Buffer
	path := t.TempDir() + "/audit.jsonl"
	for i := range 3 {
		tail, err := audit.TailOf(path, "n1")
		require.NoError(t, err)
		require.Equal(t, i > 0, tail.Seq > 0)
		s, err := server.New(server.Config{Store: store, Audit: &log, AuditChain: &tail})
		require.NoError(t, err)
		h := httptest.NewServer(s.Handler())
		res, err := http.Post(h.URL+"/govnode.v1.SlotService/PutPool", "application/json", strings.NewReader(fmt.Sprintf(`{"pool":"p","slots":%d,"requestId":"put-%d","client":"ops"}`, i+1, i)))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, 200, res.StatusCode)
		h.Close()
		require.NoError(t, s.Close())
		require.NoError(t, os.WriteFile(path, log.Bytes(), 0o600))
	}
	report, err := audit.Verify([]audit.File{{Name: path, Text: &log}}, audit.Against{Heads: headsOf(t, store)})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Equal(t, 4, report.Changes, "with that of the key")
}

// A losing store sends each command twice, since the first answer is lost.
type losing struct {
	*storage.Memory
	meanwhile func(cmds []session.Command) // what happens before it is sent again; nil for nothing
}

// Apply implements storage.Store.
func (l losing) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	l.Memory.Apply(ctx, cmds...)
	if l.meanwhile != nil {
		l.meanwhile(cmds)
	}
	answers := l.Memory.Apply(ctx, cmds...)
	for i := range answers {
		answers[i].Again = true
	}
	return answers
}

// A change that the store knows as a repeat alone, since it had lost the first answer,
// has a line.
func TestChangesWhoseAnswersWereLostHaveLines(t *testing.T) {
	store := losing{Memory: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.AuditChain = &audit.Tail{Node: "n1"} })
	for i := range 3 {
		status, answer := n.post("CounterService/Increment", fmt.Sprintf(`{"key":"k","amount":"1","requestId":"r%d","client":"c"}`, i))
		require.Equal(t, 200, status, "%v", answer)
		require.Equal(t, fmt.Sprint(i+1), answer["value"])
	}
	status, answer := n.post("CounterService/Increment", `{"key":"unnamed","amount":"1"}`) // each attempt is a change of its own
	require.Equal(t, 200, status, "%v", answer)
	require.Equal(t, "2", answer["value"])
	a := &audited{heads: headsOf(t, store)}
	a.heads.Links = slices.DeleteFunc(a.heads.Links, func(l audit.Link) bool {
		return l.Chain != session.ClientKey("default", "c") && l.Chain != session.NamespaceKey("default")
	})
	require.Len(t, a.heads.Links, 2)
	n.audit.mu.Lock()
	lines := slices.Collect(strings.Lines(n.audit.buf.String()))
	n.audit.mu.Unlock()
	require.Empty(t, a.report(t, [][]string{lines}).Problems)
	last := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.Contains(l, `"request_id":"r2"`) })
	problems := a.report(t, [][]string{last}).Problems
	require.NotEmpty(t, problems)
	require.Contains(t, problems[len(problems)-1].What, "the state has 3 changes of", "the line of the last one is needed")
}

// A mute store answers nobody until it is let go, and applies what it has, the latest
// first. It says what became of it.
type mute struct {
	*storage.Memory
	settled storage.Settled
	quiet   bool
	mu      sync.Mutex
	held    []session.Command
}

// Settled implements storage.Settling.
func (m *mute) Settled() *storage.Settled { return &m.settled }

// Apply implements storage.Store.
func (m *mute) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.quiet {
		return m.Memory.Apply(ctx, cmds...)
	}
	m.held = append(m.held, cmds...)
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = storage.Lost(errors.New("the leader was paused"))
	}
	return answers
}

func (m *mute) letGo(t *testing.T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quiet = false
	slices.Reverse(m.held)
	for _, cmd := range m.held {
		a := m.Memory.Apply(t.Context(), cmd)[0]
		require.NoError(t, a.Failure())
		m.settled.Note([]session.Command{cmd}, []session.Result{a.Result}, a.Index)
	}
}

// Changes that were under way when the leader was paused have their lines, however many
// they are and in whatever order they were applied once it went on.
func TestChangesThatAPausedLeaderHad(t *testing.T) {
	store := &mute{Memory: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) { c.AuditChain = &audit.Tail{Node: "n1"} })
	increment := func(i int) (status int) {
		status, _ = n.post("CounterService/Increment", fmt.Sprintf(`{"key":"k","amount":"1","requestId":"r%d","client":"c"}`, i))
		return status
	}
	require.Equal(t, 200, increment(0))
	store.mu.Lock()
	store.quiet = true
	store.mu.Unlock()
	for i := range 100 {
		require.Equal(t, 503, increment(1+i))
	}
	store.letGo(t)
	require.Equal(t, 200, increment(101))
	lines := func() (all []string) {
		n.audit.mu.Lock()
		defer n.audit.mu.Unlock()
		return slices.Collect(strings.Lines(n.audit.buf.String()))
	}
	require.Eventually(t, func() bool {
		learned := 0
		for _, l := range lines() {
			if strings.Contains(l, `"outcome":"done"`) && strings.Contains(l, `"learned":true`) {
				learned++
			}
		}
		return learned == 100
	}, 10*time.Second, time.Millisecond)
	a := &audited{heads: headsOf(t, store)}
	require.Empty(t, a.report(t, [][]string{lines()}).Problems)
	gone := slices.DeleteFunc(lines(), func(l string) bool { return strings.Contains(l, `"request_id":"r50"`) })
	require.NotEmpty(t, a.report(t, [][]string{gone}).Problems)
}

// Anchors say where the lines and the state stand, and digests of arguments have a key
// of their namespace.
func TestAnchorsAndKeys(t *testing.T) {
	var log bytes.Buffer
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s, err := server.New(server.Config{
		Store: store, Audit: &log, AuditChain: &audit.Tail{Node: "n1"},
		StateDigest: func() (uint64, session.Digest) { return 7, session.Digest{0xab} },
	})
	require.NoError(t, err)
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	plain := &http.Client{}
	eventually(t, "there is a key", func() bool {
		found, err := store.Get(t.Context(), session.AccessKey(session.ClusterNamespace), storage.Nearby)
		return err == nil && found.Record != nil
	})
	digests := map[string]bool{}
	for _, ns := range []string{"one", "one", "two"} {
		post := func(method, body string) map[string]any {
			req, err := http.NewRequest(http.MethodPost, h.URL+"/govnode.v1."+method, strings.NewReader(body))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Govnode-Namespace", ns)
			res, err := plain.Do(req)
			require.NoError(t, err)
			defer func() { _ = res.Body.Close() }()
			var out map[string]any
			require.NoError(t, json.NewDecoder(res.Body).Decode(&out))
			require.Equal(t, 200, res.StatusCode, "%v", out)
			return out
		}
		post("PolicyService/PutPolicy", `{"name":"p","files":[{"path":"p.yaml","content":"name: p\nblocked_patterns: [secret]\n"}]}`)
		post("PolicyService/Evaluate", `{"policy":{"name":"p"},"tool":"t","arguments":{"x":"secret"}}`)
	}
	require.NoError(t, s.Close())
	var anchors int
	for _, text := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		var l struct {
			audit.Line
			Digest string `json:"context_sha256"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &l))
		if l.Anchor != nil {
			anchors++
			require.Equal(t, audit.AnchorEvent, l.Event)
			require.EqualValues(t, 7, l.Anchor.Index)
			require.Equal(t, store.DataID(session.ClusterNamespace), l.Anchor.Cluster)
			require.Equal(t, "ab", l.Anchor.State[:2])
		}
		if l.Digest != "" {
			require.Regexp(t, `^hmac-sha256:[0-9a-f]{64}$`, l.Digest)
			digests[l.Digest] = true
		}
	}
	require.Equal(t, 2, anchors, "one at the beginning, and one at the end")
	require.Len(t, digests, 2, "the same arguments in two namespaces")
	report, err := audit.Verify([]audit.File{{Name: "log", Text: &log}}, audit.Against{Heads: headsOf(t, store)})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
}
