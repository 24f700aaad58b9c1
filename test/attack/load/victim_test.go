//go:build attack

package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	victims    = 10                     // sessions of the victim, with a connection each
	callEvery  = 100 * time.Millisecond // of each: a call is begun and ended
	freshEvery = 5                      // one call in so many is made over a new connection
	patience   = 10 * time.Second
)

// A victim makes calls at a rate that answers do not change.
type victim struct {
	url, token string
	secure     *tls.Config
	calls      atomic.Int64

	mu     sync.Mutex
	times  []time.Duration // of requests over connections that stand
	fresh  []time.Duration // of requests over new ones, with what it takes to open them
	failed []error
}

// run makes calls until ctx ends, and waits for their answers.
func (v *victim) run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range victims {
		client := v.client()
		all.Go(func() {
			defer client.CloseIdleConnections()
			t := time.NewTicker(callEvery)
			defer t.Stop()
			for n := i; ; n++ {
				select {
				case <-ctx.Done():
					return
				case due := <-t.C:
					all.Go(func() { v.call(client, i, due, n%freshEvery == 0) })
				}
			}
		})
	}
	all.Wait()
}

func (v *victim) client() *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: v.secure.Clone(), ForceAttemptHTTP2: true}}
}

// call begins a call and ends it. Its begin is measured from when it was due.
func (v *victim) call(client *http.Client, session int, due time.Time, fresh bool) {
	if fresh {
		client = v.client()
		defer client.CloseIdleConnections()
	}
	id := map[string]any{"sessionId": fmt.Sprintf("v%d", session), "callId": fmt.Sprintf("c%d", v.calls.Add(1))}
	begin := map[string]any{"tool": "search", "sessionId": id["sessionId"], "callId": id["callId"]}
	id["status"] = "STATUS_SUCCEEDED"
	for _, step := range []struct {
		method string
		body   any
	}{{"CallService/BeginCall", begin}, {"CallService/EndCall", id}} {
		err := v.post(client, step.method, step.body)
		took := time.Since(due)
		v.mu.Lock()
		switch {
		case err != nil:
			v.failed = append(v.failed, err)
		case fresh && step.method == "CallService/BeginCall":
			v.fresh = append(v.fresh, took)
		default:
			v.times = append(v.times, took)
		}
		v.mu.Unlock()
		if err != nil {
			return
		}
		due = time.Now()
	}
}

func (v *victim) post(client *http.Client, method string, body any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, v.url+"/govnode.v1."+method, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+v.token)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	content, err = io.ReadAll(res.Body)
	refused := method == "CallService/BeginCall" && !bytes.Contains(content, []byte("OUTCOME_ADMITTED"))
	if err == nil && (res.StatusCode != http.StatusOK || refused) {
		err = fmt.Errorf("%s: HTTP %d: %s", method, res.StatusCode, content)
	}
	return err
}

// forget begins to measure, and said returns what was measured since.
func (v *victim) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.times, v.fresh, v.failed = nil, nil, nil
}

// A said is how a victim fared.
type said struct {
	calls      int
	p50, p99   time.Duration
	fresh      int
	freshP50   time.Duration
	freshWorst time.Duration
	failed     []error
}

func (v *victim) said() said {
	v.mu.Lock()
	defer v.mu.Unlock()
	return said{
		calls: len(v.times), p50: quantile(v.times, 0.5), p99: quantile(v.times, 0.99),
		fresh: len(v.fresh), freshP50: quantile(v.fresh, 0.5), freshWorst: quantile(v.fresh, 1), failed: v.failed,
	}
}

func (s said) String() string {
	text := fmt.Sprintf("%d answers, p50 %v, p99 %v; %d over new connections, p50 %v, longest %v; %d failed",
		s.calls, s.p50.Round(10*time.Microsecond), s.p99.Round(10*time.Microsecond), s.fresh, s.freshP50.Round(10*time.Microsecond), s.freshWorst.Round(10*time.Microsecond), len(s.failed))
	if len(s.failed) > 0 {
		text += ": " + s.failed[0].Error()
	}
	return text
}

func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
