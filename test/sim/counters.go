package sim

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/check"
)

// Counters of workers.

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
	return w.sendFor(ctx, time.Duration(500+w.rng.IntN(4000))*time.Millisecond, node, o, again)
}

// sendFor gives up after some time.
func (w *worker) sendFor(ctx context.Context, most time.Duration, node govnodev1connect.CounterServiceClient, o check.Op, again bool) check.Op {
	ctx, cancel := context.WithTimeout(ctx, most)
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

// final reads the counters and the budgets after all is over.
func (w *worker) final(ctx context.Context, h *check.History) (err error) {
	h.Final = map[string]int64{}
	for _, key := range counters {
		res, err := w.node().Get(ctx, &v1.GetRequest{Key: key})
		if err != nil {
			return fmt.Errorf("counter %s in the end: %w", key, err)
		}
		if !res.Found {
			continue
		}
		if h.Final[key], err = strconv.ParseInt(res.Value, 10, 64); err != nil {
			return err
		}
	}
	if h.Spent, err = w.spent(ctx); err != nil {
		return err
	}
	return w.finalState(ctx, h.Final)
}
