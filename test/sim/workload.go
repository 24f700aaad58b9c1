package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/check"
)

// What all clients share.
var (
	pools    = map[string]int{"narrow": 1, "wide": 3, victimPool: 2}
	counters = []string{"a", "b", "c"}
)

const (
	policyName = "fleet"
	policyText = "name: fleet\nmax_concurrent: 64\nbackpressure_threshold: 64\nmax_tool_calls: 1000000\n"
)

// A recorder keeps what clients saw.
type recorder struct {
	start time.Time

	note func(Line) // told of everything at once; may be nil

	mu     sync.Mutex
	ops    []check.Op
	holds  []check.Hold
	spans  []span            // that operations took, each attempt of those that are sent again here
	denied []check.Op        // that the policy refused, as somebody was told
	broken []check.Violation // by what an answer said
}

// begun is told of each change before it is sent.
func (r *recorder) begun(o check.Op) {
	if r.note != nil {
		r.note(Line{Begun: &o})
	}
}

func (r *recorder) now() time.Duration { return time.Since(r.start) }

func (r *recorder) done(o check.Op) {
	if r.note != nil {
		r.note(Line{Op: &o})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, o)
}

// took notes that something was asked for and answered, or given up.
func (r *recorder) took(from, to, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, span{from, to, wait})
}

func (r *recorder) held(h check.Hold) {
	if r.note != nil {
		r.note(Line{Hold: &h})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, h)
}

// A worker is one client on a host of its own, which works until it is told to
// stop. Its slots and calls go through the Go client; counters, for which that
// has nothing, by plain Connect to nodes in turn.
type worker struct {
	name     string
	fleet    *fleet
	rng      *rand.Rand
	recorder *recorder
	client   *client.Client
	http     *http.Client
	counters []govnodev1connect.CounterServiceClient // of each node
	sessions []govnodev1connect.SessionServiceClient // likewise
	crowded  *client.OpenSession                     // in which calls are made together; nil if there is none
	think    time.Duration                           // between two operations, on average
	turn     chan struct{}                           // held by an operation, and by who wants there to be none
	unclear  []check.Op                              // increments of which nobody knows what became of them
	appended []appended                              // to the list, and acknowledged
	log      *slog.Logger
	site     *site // where work is done; nil if holders only say when they worked
}

func newWorker(name string, f *fleet, rng *rand.Rand, rec *recorder, think time.Duration, log *slog.Logger) (*worker, error) {
	w := &worker{name: name, fleet: f, rng: rng, recorder: rec, think: think, http: f.httpClient(name), turn: make(chan struct{}, 1), log: log}
	c, err := client.New(client.Config{Addresses: f.apis(), Name: name, HTTPClient: w.http, Logger: log})
	if err != nil {
		return nil, err
	}
	w.client = c
	w.reach(f.apis())
	return w, nil
}

// reach makes what asks each node for itself.
func (w *worker) reach(apis []string) {
	for _, a := range apis {
		w.counters = append(w.counters, govnodev1connect.NewCounterServiceClient(w.http, "http://"+a))
		w.sessions = append(w.sessions, govnodev1connect.NewSessionServiceClient(w.http, "http://"+a))
	}
}

// prepare makes what the workers share.
func (w *worker) prepare(ctx context.Context) error {
	for name, slots := range pools {
		if _, err := w.client.PutPool(ctx, client.Pool{Name: name, Slots: int32(slots)}); err != nil {
			return err
		}
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
	switch w.rng.IntN(32) {
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
	case 25:
		w.killed(ctx)
	default:
		if session != nil && !w.call(ctx, session, w.short()) {
			return nil
		}
	}
	return session
}

// crowd makes some calls at once, which go together as far as they can: in a
// session of their own, since an answer that is given again tells of the calls that
// were begun meanwhile as well.
func (w *worker) crowd(ctx context.Context) {
	if w.crowded == nil {
		if w.crowded = w.open(ctx); w.crowded == nil {
			return
		}
	}
	var under sync.WaitGroup
	var over atomic.Bool
	for range 2 + w.rng.IntN(6) {
		lasts := w.short()
		under.Go(func() {
			if !w.call(ctx, w.crowded, lasts) {
				over.Store(true)
			}
		})
	}
	under.Wait()
	if over.Load() {
		w.crowded = nil
	}
}

// short is a time for something to last.
func (w *worker) short() time.Duration { return time.Duration(w.rng.Int64N(int64(w.think) + 1)) }

// close ends the client and its connections.
func (w *worker) close() error {
	err := w.client.Close()
	w.http.CloseIdleConnections()
	return err
}

func newID() string { return ulid.Make().String() }

// outcome says what an error of the Go client claims.
func outcome(err error) check.Outcome {
	switch {
	case err == nil:
		return check.Applied
	case errors.As(err, new(*client.Refused)), errors.Is(err, client.ErrLeaseLost):
		return check.Refused
	case errors.As(err, new(*client.Unavailable)), errors.As(err, new(*client.Error)):
		return check.NotApplied
	}
	return check.Unknown
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// open starts a session, or returns nil.
func (w *worker) open(ctx context.Context) *client.OpenSession {
	s, err := w.client.CreateSession(ctx, client.Session{ID: w.name + "-" + newID(), Agent: w.name, Policy: policyName})
	if err != nil {
		return nil
	}
	return s
}

// call begins a call and ends it. It reports whether the session goes on.
func (w *worker) call(ctx context.Context, s *client.OpenSession, lasts time.Duration) bool {
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, client.Call{ID: o.ID, Tool: "t", Wait: client.NoWait, TTL: 5 * time.Second})
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, 0)
	o.Outcome, o.Text = outcome(err), text(err)
	if err == nil {
		o.Granted, o.Index = true, call.Begun().GetIndex()
		if s != w.crowded {
			o.Value = int64(call.Begun().GetCounters().GetCalls())
		}
	}
	w.recorder.done(o)
	if err != nil {
		var no *client.Refused
		return !errors.As(err, &no) || no.Outcome == client.Stopped // else its time is over, most likely
	}
	_ = pause(ctx, lasts)
	e := check.Op{Client: w.name, Kind: check.End, Object: s.ID(), ID: o.ID, Call: w.recorder.now()}
	w.recorder.begun(e)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = call.End(ending, client.Succeeded)
	e.Return = w.recorder.now()
	w.recorder.took(e.Call, e.Return, 0)
	e.Outcome, e.Text = outcome(err), text(err)
	w.recorder.done(e)
	return true
}

// slot takes a slot, does its work for a while, and gives it back, or once in a
// while lets its lease lapse.
func (w *worker) slot(ctx context.Context) {
	pool := "narrow"
	if w.rng.IntN(2) == 0 {
		pool = "wide"
	}
	weight := 1 + w.rng.IntN(min(2, pools[pool]))
	ttl := time.Duration(1+w.rng.IntN(4)) * time.Second
	wait := client.NoWait
	if w.rng.IntN(2) == 0 {
		wait = time.Duration(1 + w.rng.Int64N(int64(longestWait)))
	}
	o := check.Op{Client: w.name, Kind: check.Acquire, Object: pool, ID: newID(), Call: w.recorder.now()}
	w.recorder.begun(o)
	s, err := w.client.Acquire(ctx, pool, client.SlotID(o.ID), client.Weight(weight), client.TTL(ttl), client.Wait(wait))
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, max(0, wait))
	o.Outcome, o.Text = outcome(err), text(err)
	if err == nil {
		o.Granted, o.Token = true, s.Token()
	}
	w.recorder.done(o)
	if err != nil {
		return
	}
	h := check.Hold{Pool: pool, ID: o.ID, Weight: weight, Token: s.Token(), From: o.Return}
	work := time.Duration(w.rng.Int64N(int64(6 * time.Second)))
	if w.rng.IntN(4) > 0 {
		work = time.Duration(w.rng.Int64N(int64(w.think) + 1))
	}
	end := time.Now().Add(work)
	admitted := w.enters(h, s)
	for ctx.Err() == nil && s.State() != client.Lost && time.Now().Before(end) {
		look := time.Until(end)
		if admitted {
			look = min(look, 100*time.Millisecond)
		}
		select {
		case <-s.Lost():
		case <-time.After(look):
		case <-ctx.Done():
		}
		if admitted && s.State() != client.Lost {
			broken, err := w.site.stay(h.Pool, h.Token, s.Deadline().Sub(w.recorder.start))
			w.atSite(broken, err)
		}
	}
	if admitted {
		w.atSite(nil, w.site.leave(h.Pool, h.Token))
	}
	// A lease is no longer trusted from its deadline on, whether anybody has
	// noticed or not.
	h.Until = min(w.recorder.now(), s.Deadline().Sub(w.recorder.start))
	w.recorder.held(h)
	r := check.Op{Client: w.name, Kind: check.Release, Object: pool, ID: o.ID, Call: w.recorder.now()}
	w.recorder.begun(r)
	err = s.Release()
	r.Return = w.recorder.now()
	w.recorder.took(r.Call, r.Return, 0)
	r.Outcome, r.Text = outcome(err), text(err)
	w.recorder.done(r)
}

// enters begins the work of a holder at the site, if there is one, and reports
// whether it was let in.
func (w *worker) enters(h check.Hold, s *client.Slot) bool {
	if w.site == nil {
		return false
	}
	admitted, broken, err := w.site.enter(h.Pool, pools[h.Pool], inside{h.Token, h.Weight, s.Deadline().Sub(w.recorder.start)})
	w.atSite(broken, err)
	return admitted && err == nil
}

func (w *worker) atSite(broken *check.Violation, err error) {
	if err != nil {
		w.recorder.broke("site", "%v", err)
	}
	if broken != nil {
		w.recorder.broke(broken.Check, "%s", broken.Text)
	}
}

// increment adds to a counter, and sends it again under the same id while nobody
// knows what became of it, or leaves that to the end.
func (w *worker) increment(ctx context.Context) {
	o := check.Op{
		Client: w.name, Kind: check.Increment, Object: counters[w.rng.IntN(len(counters))], ID: newID(),
		Amount: int64(1 + w.rng.IntN(9)), Call: w.recorder.now(),
	}
	w.recorder.begun(o)
	tries := 1 + w.rng.IntN(3)
	for n := range tries {
		o = w.send(ctx, o, n > 0)
		if o.Outcome == check.Applied || ctx.Err() != nil {
			break
		}
		_ = pause(ctx, time.Duration(w.rng.Int64N(int64(time.Second))))
	}
	if o.Outcome == check.Unknown {
		w.unclear = append(w.unclear, o)
		return
	}
	w.recorder.done(o)
}

// send sends an increment to any node. What an earlier attempt may have done no
// later one takes back.
func (w *worker) send(ctx context.Context, o check.Op, again bool) check.Op {
	return w.sendTo(ctx, w.node(), o, again)
}

func (w *worker) sendTo(ctx context.Context, node govnodev1connect.CounterServiceClient, o check.Op, again bool) check.Op {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(500+w.rng.IntN(4000))*time.Millisecond)
	defer cancel()
	from := w.recorder.now()
	res, err := node.Increment(ctx, &v1.IncrementRequest{Key: o.Object, Amount: strconv.FormatInt(o.Amount, 10), RequestId: o.ID, Client: w.name})
	o.Return = w.recorder.now()
	w.recorder.took(from, o.Return, 0)
	o.Text = text(err)
	switch {
	case err == nil:
		o.Outcome, o.Index = check.Applied, res.Index
		o.Value, err = strconv.ParseInt(res.Value, 10, 64)
		if err != nil {
			o.Text = err.Error()
		}
	case again && o.Outcome == check.Unknown:
	case definite(err):
		o.Outcome = check.NotApplied
	default:
		o.Outcome = check.Unknown
	}
	return o
}

// resolve asks once more for each increment of which nobody knows what became of
// it: sent again under the same id it has happened once. It reports whether it
// heard of all.
func (w *worker) resolve(ctx context.Context) bool {
	still := w.unclear[:0]
	for _, o := range w.unclear {
		for n := 0; n < 20 && o.Outcome == check.Unknown && ctx.Err() == nil; n++ {
			o = w.send(ctx, o, true)
			_ = pause(ctx, 100*time.Millisecond)
		}
		if o.Outcome == check.Unknown {
			still = append(still, o)
		} else {
			w.recorder.done(o)
		}
	}
	w.unclear = still
	return len(still) == 0
}

// end records what stays unknown.
func (w *worker) end() {
	for _, o := range w.unclear {
		w.recorder.done(o)
	}
	w.unclear = nil
}

// read reads a counter at any node.
func (w *worker) read(ctx context.Context) {
	w.readAt(ctx, w.node(), counters[w.rng.IntN(len(counters))])
}

func (w *worker) readAt(ctx context.Context, node govnodev1connect.CounterServiceClient, key string) {
	o := check.Op{Client: w.name, Kind: check.Read, Object: key, Call: w.recorder.now()}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	res, err := node.Get(ctx, &v1.GetRequest{Key: o.Object})
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, 0)
	if err != nil {
		return // it changes nothing, and says nothing
	}
	o.Outcome, o.Index = check.Applied, res.AppliedIndex
	if res.Found {
		if o.Value, err = strconv.ParseInt(res.Value, 10, 64); err != nil {
			o.Text = err.Error()
		}
	}
	w.recorder.done(o)
}

// look reads how many calls a session has had, at any node.
func (w *worker) look(ctx context.Context, session string) {
	node := w.sessions[w.rng.IntN(len(w.sessions))]
	o := check.Op{Client: w.name, Kind: check.Look, Object: session, Call: w.recorder.now()}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	res, err := node.GetSession(ctx, &v1.GetSessionRequest{SessionId: session})
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, 0)
	if err != nil {
		return // it changes nothing, and says nothing
	}
	o.Outcome, o.Index, o.Value = check.Applied, res.AppliedIndex, int64(res.Session.Calls)
	w.recorder.done(o)
}

func (w *worker) node() govnodev1connect.CounterServiceClient {
	return w.counters[w.rng.IntN(len(w.counters))]
}

// definite reports whether an error says that nothing was applied.
func definite(err error) bool {
	var ce *connect.Error
	if !errors.As(err, &ce) || !connect.IsWireError(err) {
		return false
	}
	reason := reasonOf(err)
	return reason != "" && reason != client.ReasonOutcomeUnknown
}

// reasonOf is the reason that a node has given in an error; empty if it has none.
func reasonOf(err error) client.Reason {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return ""
	}
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if i, ok := m.(*errdetails.ErrorInfo); ok {
				return client.Reason(i.Reason)
			}
		}
	}
	return ""
}

// final reads the counters after all is over.
func (w *worker) final(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for _, key := range counters {
		res, err := w.node().Get(ctx, &v1.GetRequest{Key: key})
		if err != nil {
			return nil, fmt.Errorf("counter %s in the end: %w", key, err)
		}
		if !res.Found {
			continue
		}
		if out[key], err = strconv.ParseInt(res.Value, 10, 64); err != nil {
			return nil, err
		}
	}
	return out, w.finalState(ctx, out)
}
