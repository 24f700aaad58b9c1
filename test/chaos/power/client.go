package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
)

const (
	counterKeys = 8
	slotTTL     = 4 * time.Second
	think       = 3 * time.Millisecond
	// again is how many answers a client asks for again after each cut, and
	// againLast in the end: fewer than the ids that it is promised to be known by.
	again, againLast = 12, 60
)

// A fleet is the clients and what they saw.
type fleet struct {
	start   time.Time
	workers []*worker
	cuts    atomic.Int64 // after each of which clients ask again
	unsure  atomic.Int64 // operations of which nobody knew for a while what became of them
	asked   atomic.Int64 // acknowledged ones that were sent again

	mu     sync.Mutex
	ops    []check.Op
	holds  []check.Hold
	broken []check.Violation
}

func (f *fleet) now() time.Duration { return time.Since(f.start) }

func (f *fleet) violated(name, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = append(f.broken, check.Violation{Check: name, Text: fmt.Sprintf(format, args...)})
}

// A worker is one client. It knows what became of each of its operations before
// it goes on: it sends it again under the same id until somebody says.
type worker struct {
	name    string
	fleet   *fleet
	rng     *rand.Rand
	nodes   []connection
	at      int // the node that it asks
	http    *http.Client
	session string
	begun   int32 // calls that were admitted in it
	counted []check.Op
	cuts    int64 // after which it has asked again
}

func newFleet(r *Rig, clients int, rng *rand.Rand) (*fleet, error) {
	f := &fleet{start: time.Now()}
	r.audits.Start = f.start
	token, err := r.Secured.NewToken(r.Nodes[0], namespace, "agent,orchestrator")
	if err != nil {
		return nil, err
	}
	for i := range clients {
		w := &worker{name: fmt.Sprintf("w%d", i), fleet: f, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), http: &http.Client{
			Transport: processes.Holding(token, &http.Transport{
				DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, TLSClientConfig: r.Secured.TLS(),
			}),
		}}
		w.nodes = r.connect(w.http)
		f.workers = append(f.workers, w)
	}
	return f, nil
}

// run lets all clients work until ctx is done. What they have begun they end,
// for which hard gives them time.
func (f *fleet) run(ctx, hard context.Context) {
	var busy sync.WaitGroup
	for _, w := range f.workers {
		busy.Go(func() {
			defer w.http.CloseIdleConnections()
			for ctx.Err() == nil {
				w.one(hard)
				w.pause(hard, think)
			}
			w.last(hard)
		})
	}
	busy.Wait()
}

// one does one thing.
func (w *worker) one(ctx context.Context) {
	if cuts := w.fleet.cuts.Load(); cuts > w.cuts {
		w.cuts = cuts
		w.askAgain(ctx, again)
	}
	switch n := w.rng.IntN(20); {
	case n < 13:
		w.increment(ctx)
	case n < 15:
		w.read(ctx)
	case n < 17:
		w.slot(ctx)
	default:
		w.call(ctx)
	}
}

// send sends an operation until somebody says what became of it, or ctx is done.
// ask sends it once. What an earlier attempt may have done no later one takes
// back, and who is refused before anything was sent has not asked.
func (w *worker) send(ctx context.Context, o *check.Op, ask func(context.Context, connection) error) {
	o.Client, o.Call = w.name, w.fleet.now()
	mayBe := false
	for {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := ask(attempt, w.nodes[w.at])
		cancel()
		o.Return = w.fleet.now()
		switch {
		case err == nil:
			o.Outcome = check.Applied
		case definite(err):
			o.Outcome, o.Text = check.NotApplied, err.Error()
		case !unreachable(err):
			if !mayBe {
				mayBe = true
				w.fleet.unsure.Add(1)
			}
			o.Text = err.Error()
		}
		if err != nil {
			w.at = w.rng.IntN(len(w.nodes))
		}
		if o.Outcome == check.NotApplied && mayBe {
			o.Outcome = check.Unknown // because of an attempt before
		}
		if o.Outcome != check.Unknown || ctx.Err() != nil {
			return
		}
		w.pause(ctx, 30*time.Millisecond)
	}
}

func (w *worker) done(o check.Op) {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	w.fleet.ops = append(w.fleet.ops, o)
}

// pause waits for a while, on average as long as that.
func (w *worker) pause(ctx context.Context, average time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(w.rng.ExpFloat64() * float64(average))):
	}
}

func newID() string { return ulid.Make().String() }

func (w *worker) counter() string { return fmt.Sprint("sum", w.rng.IntN(counterKeys)) }

func (w *worker) increment(ctx context.Context) {
	o := check.Op{Kind: check.Increment, Object: w.counter(), ID: newID(), Amount: int64(1 + w.rng.IntN(9))}
	w.count(ctx, &o)
	w.done(o)
	if o.Outcome == check.Applied {
		if w.counted = append(w.counted, o); len(w.counted) > againLast {
			w.counted = w.counted[1:]
		}
	}
}

// count sends an increment.
func (w *worker) count(ctx context.Context, o *check.Op) {
	w.send(ctx, o, func(ctx context.Context, node connection) error {
		res, err := node.counters.Increment(ctx, &v1.IncrementRequest{Key: o.Object, Amount: strconv.FormatInt(o.Amount, 10), RequestId: o.ID, Client: w.name})
		if err == nil {
			o.Index = res.Index
			o.Value, err = strconv.ParseInt(res.Value, 10, 64)
		}
		return err
	})
}

// askAgain sends the last acknowledged increments again, which must have the
// answers that they had.
func (w *worker) askAgain(ctx context.Context, most int) {
	for _, o := range w.counted[max(0, len(w.counted)-most):] {
		repeat := check.Op{Kind: o.Kind, Object: o.Object, ID: o.ID, Amount: o.Amount}
		for repeat.Outcome != check.Applied {
			if ctx.Err() != nil {
				return
			}
			repeat.Outcome = check.Unknown // also where nothing was applied this time
			w.count(ctx, &repeat)
		}
		w.fleet.asked.Add(1)
		if repeat.Value != o.Value {
			w.fleet.violated("lost", "acknowledged: %v; and asked again: %v", o, repeat)
		}
	}
}

func (w *worker) read(ctx context.Context) {
	o := check.Op{Kind: check.Read, Object: w.counter()}
	w.send(ctx, &o, func(ctx context.Context, node connection) error {
		res, err := node.counters.Get(ctx, &v1.GetRequest{Key: o.Object})
		if err == nil && res.Found {
			o.Index = res.AppliedIndex
			o.Value, err = strconv.ParseInt(res.Value, 10, 64)
		}
		return err
	})
	if o.Outcome == check.Applied {
		w.done(o)
	}
}

// slot takes a slot of a pool that is too small for all, and gives it back after
// a while. Its lease begins, for its holder, when it was asked for.
func (w *worker) slot(ctx context.Context) {
	o := check.Op{Kind: check.Acquire, Object: poolName, ID: newID()}
	w.send(ctx, &o, func(ctx context.Context, node connection) error {
		res, err := node.slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: poolName, SlotId: o.ID, Client: w.name, Ttl: durationpb.New(slotTTL)})
		if err == nil {
			o.Granted, o.Token, o.Index = res.Outcome == v1.Outcome_OUTCOME_ADMITTED, res.Token, res.Index
		}
		return err
	})
	w.done(o)
	if !o.Granted {
		return
	}
	h := check.Hold{Pool: poolName, ID: o.ID, Weight: 1, Token: o.Token, From: o.Return}
	w.pause(ctx, 50*time.Millisecond)
	h.Until = min(w.fleet.now(), o.Call+slotTTL)
	w.fleet.mu.Lock()
	w.fleet.holds = append(w.fleet.holds, h)
	w.fleet.mu.Unlock()
	r := check.Op{Kind: check.Release, Object: poolName, ID: o.ID}
	w.send(ctx, &r, func(ctx context.Context, node connection) error {
		res, err := node.slots.ReleaseSlot(ctx, &v1.ReleaseSlotRequest{Pool: poolName, SlotId: o.ID, Client: w.name, Token: o.Token})
		if err == nil && res.Outcome == v1.Outcome_OUTCOME_NOT_FOUND {
			w.fleet.violated("lost", "a slot that was acknowledged and is not known: %v", o)
		}
		return err
	})
	w.done(r)
}

// call begins a call in the session of the client.
func (w *worker) call(ctx context.Context) {
	if w.session == "" {
		o := check.Op{ID: w.name + "-" + newID()}
		w.send(ctx, &o, func(ctx context.Context, node connection) error {
			_, err := node.sessions.CreateSession(ctx, &v1.CreateSessionRequest{SessionId: o.ID, AgentId: w.name, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: policyName}}})
			return err
		})
		if o.Outcome != check.Applied {
			return
		}
		w.session = o.ID
	}
	o, lost := check.Op{Kind: check.Begin, Object: w.session, ID: newID()}, false
	w.send(ctx, &o, func(ctx context.Context, node connection) error {
		res, err := node.calls.BeginCall(ctx, &v1.BeginCallRequest{SessionId: w.session, CallId: o.ID, Tool: "t", Ttl: durationpb.New(slotTTL)})
		if err == nil {
			if o.Granted, o.Index = res.Outcome == v1.Outcome_OUTCOME_ADMITTED, res.Index; !o.Granted {
				o.Text = res.Outcome.String() + " " + res.Reason
			}
			lost = res.Outcome == v1.Outcome_OUTCOME_LEASE_LOST // let in by an attempt before, and run out since
		}
		return err
	})
	w.done(o)
	if lost {
		w.begun++
	}
	if !o.Granted {
		return
	}
	w.begun++
	e := check.Op{Kind: check.End, Object: w.session, ID: o.ID}
	w.send(ctx, &e, func(ctx context.Context, node connection) error {
		_, err := node.calls.EndCall(ctx, &v1.EndCallRequest{SessionId: w.session, CallId: o.ID, Status: v1.Status_STATUS_SUCCEEDED})
		return err
	})
	w.done(e)
}

// last asks for the last answers of a client, and for its session, which
// has counted each of its calls once.
func (w *worker) last(ctx context.Context) {
	w.askAgain(ctx, againLast)
	if w.session == "" {
		return
	}
	o := check.Op{ID: w.session}
	var calls int32
	w.send(ctx, &o, func(ctx context.Context, node connection) error {
		res, err := node.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: w.session})
		if err == nil {
			calls = res.Session.Calls
		}
		return err
	})
	if o.Outcome == check.Unknown && ctx.Err() != nil {
		return
	}
	if o.Outcome != check.Applied || calls != w.begun {
		w.fleet.violated("lost", "the session %s has %d calls, and %d were acknowledged: %s", w.session, calls, w.begun, o.Text)
	}
}

// final reads the counters.
func (w *worker) final(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for i := range counterKeys {
		key := fmt.Sprint("sum", i)
		o := check.Op{}
		w.send(ctx, &o, func(ctx context.Context, node connection) error {
			res, err := node.counters.Get(ctx, &v1.GetRequest{Key: key})
			if err == nil && res.Found {
				out[key], err = strconv.ParseInt(res.Value, 10, 64)
			}
			return err
		})
		if o.Outcome != check.Applied {
			return nil, fmt.Errorf("%s in the end: %s", key, o.Text)
		}
	}
	return out, nil
}

// definite reports whether an error says that nothing was applied.
func definite(err error) bool {
	var ce *connect.Error
	if !errors.As(err, &ce) || !connect.IsWireError(err) {
		return false
	}
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if i, ok := m.(*errdetails.ErrorInfo); ok {
				return i.Reason != "OUTCOME_UNKNOWN"
			}
		}
	}
	return false
}
