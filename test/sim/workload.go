package sim

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/oklog/ulid/v2"

	"example.com/govnode/client"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/alone"
	"example.com/govnode/test/check"
)

// What all clients share.
var (
	pools    = map[string]int{"narrow": 1, "wide": 3, victimPool: 2, heirPool: 1, till: 1}
	counters = []string{"a", "b", "c"}
	rates    = map[string]check.Rate{"slow": {Limit: 3, Per: 2 * time.Second}, "fast": {Limit: 20, Per: 500 * time.Millisecond}}
)

const (
	policyName = "fleet"
	policyText = "name: fleet\nmax_concurrent: 64\nbackpressure_threshold: 64\nmax_tool_calls: 1000000\n"
)

// A worker is one client on a host of its own, which works until it is told to
// stop. Its slots and calls go through the Go client; counters, for which that
// has nothing, by plain Connect to nodes in turn.
type worker struct {
	name      string
	fleet     *fleet
	rng       *rand.Rand
	recorder  *recorder
	client    *client.Client
	http      *http.Client
	people    map[string]*http.Client                 // of those who are known by what they show; none where they say their names
	counters  []govnodev1connect.CounterServiceClient // of each node
	sessions  []govnodev1connect.SessionServiceClient // likewise
	limits    []govnodev1connect.LimitServiceClient   // likewise
	approvals map[string][]approver                   // of each person, at each node
	governed  *client.OpenSession                     // in which people have to agree to each call; nil if there is none
	crowded   *client.OpenSession                     // in which calls are made together; nil if there is none
	alone     *alone.Client                           // of names that nobody else uses
	think     time.Duration                           // between two operations, on average
	turn      chan struct{}                           // held by an operation, and by who wants there to be none
	unclear   []check.Op                              // increments of which nobody knows what became of them
	appended  []appended                              // to the list, and acknowledged
	shows     func() string                           // what tells the nodes who it is; nil where nothing does
	log       *slog.Logger
	site      *site // where work is done; nil if holders only say when they worked
}

func newWorker(name string, f *fleet, rng *rand.Rand, rec *recorder, think time.Duration, log *slog.Logger) (*worker, error) {
	w := &worker{name: name, fleet: f, rng: rng, recorder: rec, think: think, http: f.httpClient(name), turn: make(chan struct{}, 1), log: log}
	c, err := client.New(client.Config{Addresses: f.apis(), Name: name, HTTPClient: w.http, Logger: log})
	if err != nil {
		return nil, err
	}
	w.client = c
	var urls []string
	for _, a := range f.apis() {
		urls = append(urls, "http://"+a)
	}
	w.reach(urls)
	w.alone.Guards = f.guards
	return w, nil
}

// reach makes what asks each node for itself.
func (w *worker) reach(urls []string) {
	w.approvals = map[string][]approver{}
	for _, a := range urls {
		w.counters = append(w.counters, govnodev1connect.NewCounterServiceClient(w.http, a))
		w.sessions = append(w.sessions, govnodev1connect.NewSessionServiceClient(w.http, a))
		for _, who := range People {
			w.approvals[who] = append(w.approvals[who], govnodev1connect.NewApprovalServiceClient(w.reaches(who), a))
		}
		w.limits = append(w.limits, govnodev1connect.NewLimitServiceClient(w.http, a))
	}
	people := map[string]*http.Client{}
	for _, who := range People {
		people[who] = w.people[who]
	}
	w.alone = alone.New(w.name, urls, w.http, w.client, people, w.rng, func(text string) { w.recorder.broke("alone", "%s", text) })
	w.alone.Shows = w.shows
}

// reaches is how what somebody decides gets to the nodes.
func (w *worker) reaches(who string) *http.Client {
	if c := w.people[who]; c != nil {
		return c
	}
	return w.http
}

// prepare makes what the workers share.
func (w *worker) prepare(ctx context.Context) error {
	for name, slots := range pools {
		if _, err := w.client.PutPool(ctx, client.Pool{Name: name, Slots: int32(slots)}); err != nil {
			return err
		}
	}
	for name, r := range rates {
		if _, err := w.client.PutRate(ctx, client.Rate{Name: name, Limit: int32(r.Limit), Per: r.Per}); err != nil {
			return err
		}
	}
	if err := w.putBudgets(ctx); err != nil {
		return err
	}
	if _, err := w.client.PutPolicy(ctx, askingPolicy, askingText); err != nil {
		return err
	}
	if _, err := w.client.PutPolicyTree(ctx, stepsTree()); err != nil {
		return err
	}
	_, err := w.client.PutPolicy(ctx, policyName, policyText)
	return err
}

// work does one thing after another until ctx is done, and ends what it began.
func (w *worker) work(ctx context.Context) {
	var session *client.OpenSession
	for ctx.Err() == nil {
		w.turn <- struct{}{}
		if session == nil {
			session = w.open(ctx)
		}
		session = w.one(ctx, session)
		<-w.turn
		_ = pause(ctx, time.Duration(w.rng.ExpFloat64()*float64(w.think)))
	}
}

// one does one thing, and returns the session to go on with; nil for a new one.
func (w *worker) one(ctx context.Context, session *client.OpenSession) *client.OpenSession {
	switch w.rng.IntN(38) {
	case 0:
		w.pinned(ctx)
	case 1, 2, 3:
		w.once(ctx)
	case 4:
		if session != nil && !w.denied(ctx, session) {
			return nil
		}
	case 5, 6, 7, 8, 9, 10:
		w.increment(ctx)
	case 11, 12, 13, 14:
		w.read(ctx)
	case 15, 16:
		if session != nil {
			w.look(ctx, session.ID())
		}
	case 19, 20:
		w.crowd(ctx)
	case 17, 18:
		w.slot(ctx)
	case 21:
		w.compareAndSet(ctx)
	case 22:
		w.append(ctx)
	case 23:
		w.readState(ctx)
	case 24:
		if session != nil && !w.stopped(ctx, session) {
			return nil
		}
	case 26, 27:
		w.take(ctx)
	case 25:
		w.killed(ctx)
	case 32, 33:
		w.spend(ctx)
	case 34:
		w.bill(ctx)
	case 35:
		w.asked(ctx)
	case 36:
		w.steps(ctx)
	case 37:
		w.recorder.alone(w.alone.Run(ctx))
	default:
		if session != nil && !w.call(ctx, session, w.short()) {
			return nil
		}
	}
	return session
}

// short is a time for something to last.
func (w *worker) short() time.Duration { return time.Duration(w.rng.Int64N(int64(w.think) + 1)) }

// close ends the client and its connections.
func (w *worker) close() error {
	err := w.client.Close()
	w.http.CloseIdleConnections()
	for _, c := range w.people {
		c.CloseIdleConnections()
	}
	return err
}

func newID() string { return ulid.Make().String() }

func (w *worker) node() govnodev1connect.CounterServiceClient {
	return w.counters[w.rng.IntN(len(w.counters))]
}
