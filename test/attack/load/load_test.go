//go:build attack

package load

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/govnode/test/processes"
)

// What the test's own program is, where a test starts it again.
const (
	attackersVar = "GOVNODE_ATTACKERS"   // JSON of Attackers
	sinkVar      = "GOVNODE_ATTACK_SINK" // address, certificate and key, with commas between them
	longVar      = "GOVNODE_ATTACK_LOAD" // measures, in so many rounds
	onlyVar      = "GOVNODE_ATTACK_ONLY" // fields of Attackers, with commas between them; the others are none
	sameVar      = "GOVNODE_ATTACK_SAME" // attackers have the victim's address
)

var program string

// TestMain builds the program, unless GOVNODE_BIN names one. It is attackers and sinks
// as well.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if text := os.Getenv(attackersVar); text != "" {
			var a Attackers
			if err = json.Unmarshal([]byte(text), &a); err == nil {
				err = a.Run(context.Background())
			}
		} else if text := os.Getenv(sinkVar); text != "" {
			parts := strings.Split(text, ",")
			err = Sink(parts[0], parts[1], parts[2])
		} else {
			var dir string
			if dir, err = os.MkdirTemp("", "govnode-load-"); err == nil {
				defer func() { _ = os.RemoveAll(dir) }()
				if program, err = processes.Program(dir); err == nil {
					return m.Run()
				}
			}
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}())
}

// direct is a network without anything between a node and those who ask it.
type direct struct{ place string }

func (d direct) Place(string) (listen, advertise string, command []string, err error) {
	return d.place, d.place, nil, nil
}
func (d direct) Hold(processes.Weather, ...processes.Link) func() { return nil }
func (d direct) Close() error                                     { return nil }

// A scene is a node, a sink, and a victim that calls.
type scene struct {
	*processes.Cluster
	t      *testing.T
	node   *processes.Node
	admin  string // address of its metrics
	sink   string
	from   string // address of attackers
	tenant string // the attackers' token
	victim *victim
}

func newScene(t *testing.T) *scene {
	base := fmt.Sprintf("127.%d", 1+os.Getpid()%250)
	dir := t.TempDir()
	s := &scene{t: t, admin: base + ".4.1:7090", sink: base + ".3.1:7070", from: base + ".5.1"}
	var err error
	s.Cluster, err = processes.New(program, direct{base + ".3.2"}, 1, func(string) string { return filepath.Join(dir, "data") }, "--admin-listen", s.admin, "--log-level", "warn")
	require.NoError(t, err)
	require.NoError(t, s.Secure(filepath.Join(dir, "tls")))
	s.node = s.Nodes[0]
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node said:\n%s", s.node.Said())
		}
		require.NoError(t, s.Close())
	})
	require.NoError(t, s.Found(30*time.Second))

	s.tenant = s.tokenOf("attacker")
	s.victim = &victim{url: s.URL(s.node), token: s.tokenOf("victim"), secure: s.Secured.TLS()}
	client := s.victim.client()
	for _, v := range []*victim{s.victim, {url: s.victim.url, token: s.tenant}} {
		require.NoError(t, v.post(client, "PolicyService/PutPolicy", map[string]any{"name": "p", "yaml": "max_tool_calls: 1000000\nmax_concurrent: 1000\nmax_attempts: 1000000\ntimeout_seconds: 86400\n"}))
	}
	for i := range victims {
		require.NoError(t, s.victim.post(client, "SessionService/CreateSession", map[string]any{"sessionId": fmt.Sprintf("v%d", i), "agentId": "a", "policy": map[string]any{"name": "p"}}))
	}

	_, err = s.Secured.Certify("sink", strings.TrimSuffix(s.sink, ":7070"))
	require.NoError(t, err)
	file := filepath.Join(s.Secured.Folder, "sink", "node-sink")
	out := s.again(sinkVar + "=" + strings.Join([]string{s.sink, file + ".crt", file + ".key"}, ","))
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "listening\n", line)
	return s
}

func (s *scene) tokenOf(namespace string) string {
	token, err := s.Secured.NewToken(s.node, namespace, "agent,orchestrator,policy-author,operator")
	require.NoError(s.t, err)
	return token
}

// again starts the test's own program as something else until the test ends.
func (s *scene) again(as string) io.Reader {
	out, stop := s.start(as)
	s.t.Cleanup(stop)
	return out
}

func (s *scene) start(as string) (out io.Reader, stop func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), as)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, cmd.Start())
	return out, func() {
		_ = cmd.Process.Kill() // it runs until then
		_ = cmd.Wait()
	}
}

// attacked starts attackers of an address.
func (s *scene) attacked(a Attackers, address string) (stop func()) {
	a.Address, a.CA, a.Token = address, s.Secured.Authority(), s.tenant
	if os.Getenv(sameVar) == "" {
		a.From = s.from
	}
	text, err := json.Marshal(a)
	require.NoError(s.t, err)
	_, stop = s.start(attackersVar + "=" + string(text))
	return stop
}

// A use is what the node holds.
type use struct {
	goroutines, files, megabytes int
	seconds                      float64 // of the processor
}

func (u use) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d MB, %.1f s of the processor", u.goroutines, u.files, u.megabytes, u.seconds)
}

func (s *scene) use() (u use) {
	all := s.metrics()
	return use{int(all["go_goroutines"]), int(all["process_open_fds"]), int(all["process_resident_memory_bytes"] / 1e6), all["process_cpu_seconds_total"]}
}

// metrics are those of the node, each summed over its labels.
func (s *scene) metrics() map[string]float64 {
	s.t.Helper()
	res, err := (&http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + s.admin + "/metrics")
	require.NoError(s.t, err)
	defer func() { _ = res.Body.Close() }()
	all := map[string]float64{}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		name, _, _ := strings.Cut(fields[0], "{")
		if n, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
			all[name] += n
		}
	}
	return all
}

// during measures the victim while attackers are at work at an address, once they have
// begun in earnest, and returns the most that the node used.
func (s *scene) during(a Attackers, address string, warm, measured time.Duration) (fared said, most use) {
	ctx, cancel := context.WithTimeout(context.Background(), warm+measured)
	defer cancel()
	stop := s.attacked(a, address)
	defer stop()
	time.AfterFunc(warm, s.victim.forget)
	ended := make(chan struct{})
	go func() { defer close(ended); s.victim.run(ctx) }()
	for begun := s.use(); ctx.Err() == nil; wait(ctx, 500*time.Millisecond) {
		u := s.use()
		most = use{max(most.goroutines, u.goroutines), max(most.files, u.files), max(most.megabytes, u.megabytes), u.seconds - begun.seconds}
	}
	<-ended
	return s.victim.said(), most
}

// settled waits until the node holds no more than before, but for a few.
func (s *scene) settled(before use) {
	s.t.Helper()
	var now use
	if !assert.Eventually(s.t, func() bool {
		now = s.use()
		return now.goroutines <= before.goroutines+20 && now.files <= before.files+10
	}, 100*time.Second, 250*time.Millisecond) {
		s.t.Fatalf("the attackers have gone, and the node has %v; before it had %v", now, before)
	}
	s.t.Logf("before: %v; after: %v", before, now)
}

// all are the attackers of the judged mix.
func all() Attackers {
	return only(Attackers{Idle: 10_000, SlowHeaders: 200, SlowBodies: 200, Resets: 5_000, Frames: 10_000, Endless: 2_000, Sessions: 100_000 / 60 / 2, SessionsH2: 100_000 / 60 / 2})
}

// only keeps the fields that GOVNODE_ATTACK_ONLY names.
func only(a Attackers) Attackers {
	names := os.Getenv(onlyVar)
	if names == "" {
		return a
	}
	kept := map[string]any{}
	text, _ := json.Marshal(a)
	_ = json.Unmarshal(text, &kept)
	for name := range kept {
		if !slices.Contains(strings.Split(names, ","), name) {
			delete(kept, name)
		}
	}
	text, _ = json.Marshal(kept)
	a = Attackers{}
	_ = json.Unmarshal(text, &a)
	return a
}

func median(all []time.Duration) time.Duration { return quantile(all, 0.5) }

// measure compares, in rounds of both in turn, how a victim fares while attackers are at
// a node and at a sink.
func measure(t *testing.T, a Attackers) {
	s := newScene(t)
	before := s.use()
	const warm, measured = 6 * time.Second, 6 * time.Second
	rounds, err := strconv.Atoi(os.Getenv(longVar))
	require.NoError(t, err, longVar)
	var sink, node []time.Duration
	for range rounds {
		fared, most := s.during(a, s.sink, warm, measured)
		t.Logf("sink: %v; at most %v", fared, most)
		sink = append(sink, fared.p99)
		fared, most = s.during(a, s.node.API, warm, measured)
		t.Logf("node: %v; at most %v", fared, most)
		node = append(node, fared.p99)
		assert.Empty(t, fared.failed)
		s.settled(before)
	}
	ratio := float64(median(node)) / float64(median(sink))
	t.Logf("p99 is %v with attackers at the node and %v with them at the sink: %.2f times", median(node), median(sink), ratio)
	assert.Less(t, ratio, 2.0)
}

// Everything at once, in less than make attack-load has: the other tenant's calls are
// all answered, memory is bounded, and nothing is left when the attackers have gone.
func TestFloods(t *testing.T) {
	s := newScene(t)
	before := s.use()
	fared, most := s.during(Attackers{Idle: 1500, SlowHeaders: 50, SlowBodies: 50, Resets: 6_000, Frames: 4_000, Endless: 500, Sessions: 500, SessionsH2: 500},
		s.node.API, 3*time.Second, 4*time.Second)
	t.Logf("%v; at most %v", fared, most)
	require.Empty(t, fared.failed)
	require.Greater(t, fared.calls, 200)
	require.Positive(t, fared.fresh)
	require.Less(t, most.megabytes-before.megabytes, 300)
	all := s.metrics()
	require.Positive(t, all["gov_connections_slowed_total"])
	require.Positive(t, all["gov_sessions_delayed_total"])
	require.Positive(t, all["gov_quota_refused_total"])
	require.Less(t, most.goroutines-before.goroutines, 1500+2000)
	s.settled(before)
}

// Who guesses tokens is answered rarely, and the other tenant as always.
func TestWrongTokens(t *testing.T) {
	s := newScene(t)
	before := s.use()
	const sent, warm, measured = 10_000, 2 * time.Second, 4 * time.Second // a second
	fared, _ := s.during(Attackers{WrongTokens: sent}, s.node.API, warm, measured)
	t.Log(fared)
	require.Empty(t, fared.failed)
	require.Greater(t, fared.calls, 200)
	all := s.metrics()
	refused := all["gov_access_refused_total"]
	t.Logf("%v of some %v wrong tokens were looked at", refused, sent*(warm+measured).Seconds())
	require.Positive(t, refused)
	require.Less(t, refused, sent*(warm+measured).Seconds()/10)
	require.Positive(t, all["gov_connections_slowed_total"])
	s.settled(before)
}

// The measurement that make attack-load is for.
func TestMeasured(t *testing.T) {
	if os.Getenv(longVar) == "" {
		t.Skipf("%s is not set", longVar)
	}
	t.Run("everything", func(t *testing.T) { measure(t, all()) })
	t.Run("wrong tokens", func(t *testing.T) { measure(t, only(Attackers{WrongTokens: 10_000})) })
}
