package sim

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/client"
	"example.com/govnode/session"
	"example.com/govnode/test/check"
)

// The workload and the witness of this package also serve those who run real
// processes: there is one workload, and one way to read a log.

// A Line is one line of what a client writes down: a change that is about to be
// sent, what became of one, a time for which a slot was held, a script that was
// played, or a promise that was broken by an answer alone. Whose process ends has
// changes without an outcome.
type Line struct {
	Begun  *check.Op        `json:",omitempty"`
	Op     *check.Op        `json:",omitempty"`
	Hold   *check.Hold      `json:",omitempty"`
	Alone  *Played          `json:",omitempty"`
	Broken *check.Violation `json:",omitempty"` // by an answer alone
}

// A Played is a script of package alone, and how many of its steps were answered.
type Played struct {
	Script string
	Steps  int
}

// A Workload is clients in one process, in real time.
type Workload struct {
	Name      string
	Addresses []string // of the nodes' API
	Clients   int
	Seed      uint64
	Think     time.Duration
	Start     time.Time // from which times are counted, by the monotonic clock
	Site      string    // file that all processes share, where those who hold slots meet; "" if there is none
	// Authority is the file of those who vouch for the nodes, which then speak TLS;
	// "" where they speak plain text.
	Authority string
	// Token is the file of the token that the clients show, which may be another the
	// next time it is looked at; "" where nobody asks for one.
	Token string
	// Voters are such files of those who decide approvals, by their names.
	Voters map[string]string
}

// worker is the i-th of the clients.
func (l Workload) worker(i int, rec *recorder) (*worker, error) {
	w := &worker{
		name: fmt.Sprintf("%s-%d", l.Name, i), rng: rand.New(rand.NewPCG(l.Seed, uint64(i))), recorder: rec, think: l.Think,
		turn: make(chan struct{}, 1),
	}
	var err error
	if w.http, err = l.http(l.Token); err != nil {
		return nil, err
	}
	for who, token := range l.Voters {
		if w.people == nil {
			w.people = map[string]*http.Client{}
		}
		if w.people[who], err = l.http(token); err != nil {
			return nil, err
		}
	}
	var urls []string
	scheme := "http://"
	if l.Authority != "" {
		scheme = "https://"
	}
	for _, a := range l.Addresses {
		urls = append(urls, scheme+a)
	}
	c, err := client.New(client.Config{Addresses: urls, Name: w.name, HTTPClient: w.http, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	w.client = c
	if l.Token != "" {
		w.shows = func() string {
			token, _ := os.ReadFile(l.Token)
			return string(token)
		}
	}
	if l.Site != "" {
		w.site = &site{path: l.Site, start: l.Start}
	}
	w.reach(urls)
	w.alone.Hasty = true
	return w, nil
}

// http is how a client reaches the nodes, and the file of what it shows them.
func (l Workload) http(token string) (*http.Client, error) {
	to := &http.Transport{Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: 3 * time.Second}}
	if l.Authority == "" {
		to.Protocols.SetUnencryptedHTTP2(true)
	} else {
		pem, err := os.ReadFile(l.Authority)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("sim: %s has no certificate", l.Authority)
		}
		to.Protocols.SetHTTP2(true)
		to.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	}
	if token == "" {
		return &http.Client{Transport: to}, nil
	}
	return &http.Client{Transport: &shower{token, to}}, nil
}

// A shower shows the token of a file with each request that shows none.
type shower struct {
	path string
	to   *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (s *shower) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") != "" {
		return s.to.RoundTrip(r)
	}
	token, err := os.ReadFile(s.path)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(token))
	return s.to.RoundTrip(r)
}

// CloseIdleConnections is what http.Client asks for.
func (s *shower) CloseIdleConnections() { s.to.CloseIdleConnections() }

// Prepare makes the pools, the rates, the budgets and the policy that the clients use.
func (l Workload) Prepare(ctx context.Context) error {
	w, err := l.worker(0, &recorder{start: l.Start})
	if err != nil {
		return err
	}
	return errors.Join(w.prepare(ctx), w.close())
}

// Run works until ctx is done, then asks what became of what is unknown, for as
// long as it may take.
func (l Workload) Run(ctx context.Context, out io.Writer, settling time.Duration) error {
	var mu sync.Mutex
	var failed error
	buffered := bufio.NewWriter(out)
	lines := json.NewEncoder(buffered)
	rec := &recorder{start: l.Start, note: func(line Line) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, lines.Encode(line), buffered.Flush())
	}}
	var workers []*worker
	var busy sync.WaitGroup
	for i := range l.Clients {
		w, err := l.worker(i, rec)
		if err != nil {
			return err
		}
		workers = append(workers, w)
		busy.Go(func() {
			w.work(ctx)
			resolving, cancel := context.WithTimeout(context.WithoutCancel(ctx), settling)
			defer cancel()
			w.resolve(resolving)
			w.lift(resolving, w.name)
			w.lift(resolving, w.name+doomed)
			w.end()
		})
	}
	busy.Wait()
	for _, w := range workers {
		failed = errors.Join(failed, w.close())
	}
	return failed
}

// Final reads the counters and the budgets into a history, and says which slots are
// held or waited for.
func (l Workload) Final(ctx context.Context, h *check.History) (held error, err error) {
	w, err := l.worker(0, &recorder{start: l.Start})
	if err != nil {
		return nil, err
	}
	err = w.final(ctx, h)
	held = orphans(w)
	return held, errors.Join(err, w.close())
}

// Longest is for how long after the last change a slot may be held, or waited for:
// who went away while it waited stands in the queue for as long as it wanted to.
const Longest = waiterEnds

// ReadHistory puts together what clients wrote down. Of a change without an
// outcome nobody knows what became.
func ReadHistory(h *check.History, lines io.Reader) (broken []check.Violation, err error) {
	type key struct {
		kind check.Kind
		id   string
	}
	open := map[key]check.Op{}
	in := json.NewDecoder(lines)
	for {
		var l Line
		err := in.Decode(&l)
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) { // the last line of a process that was killed
			break
		}
		if err != nil {
			return broken, err
		}
		switch {
		case l.Begun != nil:
			open[key{l.Begun.Kind, l.Begun.ID}] = *l.Begun
		case l.Op != nil:
			delete(open, key{l.Op.Kind, l.Op.ID})
			h.Ops = append(h.Ops, *l.Op)
		case l.Hold != nil:
			h.Holds = append(h.Holds, *l.Hold)
		case l.Alone != nil:
			if h.Alone == nil {
				h.Alone = map[string]int{}
			}
			h.Alone[l.Alone.Script] += l.Alone.Steps
		case l.Broken != nil:
			broken = append(broken, *l.Broken)
		}
	}
	for _, o := range open {
		o.Outcome, o.Return, o.Text = check.Unknown, o.Call, "its client was killed"
		h.Ops = append(h.Ops, o)
	}
	h.Limits, h.Rates, h.Budgets = pools, rates, budgets
	return broken, nil
}

// merged is the log up to an index, as several nodes have it.
func merged(logs []map[uint64]*raft.Log, until uint64) ([]written, error) {
	log := make([]written, until+1)
	for i := uint64(1); i <= until; i++ {
		for _, has := range logs {
			switch l := has[i]; {
			case l == nil: // its folder was replaced meanwhile
			case log[i].log == nil:
				log[i].log = l
			case l.Term != log[i].log.Term || l.Type != log[i].log.Type || !bytes.Equal(l.Data, log[i].log.Data) || !bytes.Equal(l.Extensions, log[i].log.Extensions):
				return nil, fmt.Errorf("entry %d differs between nodes, and was committed", i)
			}
		}
		if log[i].log == nil {
			return nil, fmt.Errorf("no node has entry %d", i)
		}
	}
	return log, nil
}

// LogLines returns the log up to an index, as several nodes have it, as package
// model reads it again.
func LogLines(logs []map[uint64]*raft.Log, until uint64) ([]byte, error) {
	log, err := merged(logs, until)
	if err != nil {
		return nil, err
	}
	w, err := replay(log, time.Time{}, nil)
	if err != nil {
		return nil, err
	}
	return w.lines()
}

// Replay applies the log, as several nodes have it, up to an index to an empty
// state. It returns what changed, and the digests of the state at log times.
func Replay(logs []map[uint64]*raft.Log, until uint64, at []time.Duration) ([]check.Effect, map[time.Duration][]string, error) {
	log, err := merged(logs, until)
	if err != nil {
		return nil, nil, err
	}
	seen := make([]replica, len(at))
	for i := range at {
		seen[i].at = at[i]
	}
	w, err := replay(log, time.Time{}, seen)
	if err != nil {
		return nil, nil, err
	}
	return w.effects, w.digests, nil
}

// DigestOf is that of a snapshot, with its log time.
func DigestOf(snapshot io.Reader) (digest string, at time.Duration, err error) {
	state, err := session.ReadSnapshot(snapshot)
	if err != nil {
		return "", 0, err
	}
	digest, err = digestOf(state)
	return digest, state.Now(), err
}
