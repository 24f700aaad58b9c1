package sim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/test/check"
)

// Values that are set under a condition, and lists. To the checks both are
// counters: who raises a value that he has read, and nobody else has written
// since, has added to it; and who appends adds to the length.
const (
	compared = "compared"
	list     = "list"
)

// appended is what a worker was told to have put into the list.
type appended struct {
	id       string
	from, to int64
}

// compareAndSet reads a number, and writes a larger one if it is still there.
func (w *worker) compareAndSet(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	was, err := w.node().Get(reading, &v1.GetRequest{Key: compared, Consistency: v1.Consistency(w.rng.IntN(len(v1.Consistency_name)))})
	if err != nil {
		return // nothing was asked for
	}
	n, _ := strconv.ParseInt(was.Value, 10, 64) // absent: 0
	o := check.Op{Client: w.name, Kind: check.Increment, Object: compared, ID: newID(), Amount: int64(1 + w.rng.IntN(9)), Call: w.recorder.now()}
	next := strconv.FormatInt(n+o.Amount, 10)
	w.recorder.begun(o)
	w.ask(ctx, o, func(ctx context.Context, o *check.Op) error {
		res, err := w.node().Set(ctx, &v1.SetRequest{Key: o.Object, Value: next, IfVersion: was.Version, RequestId: o.ID, Client: w.name})
		if err == nil {
			o.Index, o.Value = res.Index, n+o.Amount
		}
		return err
	})
}

// append puts items at the end of the list.
func (w *worker) append(ctx context.Context) {
	o := check.Op{Client: w.name, Kind: check.Increment, Object: list, ID: newID(), Amount: int64(1 + w.rng.IntN(5)), Call: w.recorder.now()}
	var items []string
	for i := range o.Amount {
		items = append(items, itemOf(o.ID, i))
	}
	w.recorder.begun(o)
	o = w.ask(ctx, o, func(ctx context.Context, o *check.Op) error {
		res, err := w.node().Append(ctx, &v1.AppendRequest{Key: o.Object, Items: items, Ttl: durationpb.New(session.MaxListTTL), RequestId: o.ID, Client: w.name})
		if err == nil {
			o.Index, o.Value = res.Index, res.Length
		}
		return err
	})
	if o.Outcome == check.Applied {
		w.appended = append(w.appended, appended{o.ID, o.Value - o.Amount, o.Value})
	}
}

func itemOf(id string, i int64) string { return fmt.Sprintf("%s.%d", id, i) }

// ask asks for something until it has an answer or has been asked for a few
// times, and records what is known of it.
func (w *worker) ask(ctx context.Context, o check.Op, ask func(context.Context, *check.Op) error) check.Op {
	tries := 1 + w.rng.IntN(3)
	for n := 0; n < tries && (n == 0 || ctx.Err() == nil); n++ {
		again := n > 0
		asking, cancel := context.WithTimeout(ctx, time.Duration(500+w.rng.IntN(4000))*time.Millisecond)
		from := w.recorder.now()
		err := ask(asking, &o)
		cancel()
		o.Return, o.Text = w.recorder.now(), text(err)
		w.recorder.took(from, o.Return, 0)
		switch {
		case err == nil:
			o.Outcome = check.Applied
		case conflicts(err):
			// Whoever had set it would be told so before the version is looked at,
			// and a value that only rises never has that version again.
			o.Outcome = check.NotApplied
		case again && o.Outcome == check.Unknown: // what an earlier one may have done no later one takes back
		case definite(err):
			o.Outcome = check.NotApplied
		default:
			o.Outcome = check.Unknown
		}
		if err == nil || conflicts(err) {
			break
		}
		_ = pause(ctx, time.Duration(w.rng.Int64N(int64(time.Second))))
	}
	w.recorder.done(o)
	return o
}

// readState reads the number, or a part of the list: anywhere, or where this worker
// has appended something. There are no holes in a list, and what was acknowledged is
// where it was put.
func (w *worker) readState(ctx context.Context) {
	if w.rng.IntN(3) == 0 {
		w.readAt(ctx, w.node(), compared)
		return
	}
	var mine appended
	from := int64(w.rng.IntN(1000))
	if len(w.appended) > 0 && w.rng.IntN(3) > 0 {
		mine = w.appended[w.rng.IntN(len(w.appended))]
		from = mine.from
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	o := check.Op{Client: w.name, Kind: check.Read, Object: list, Call: w.recorder.now()}
	res, err := w.node().Range(ctx, &v1.RangeRequest{Key: list, From: from, Limit: 10})
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, 0)
	if err != nil {
		return
	}
	o.Outcome, o.Index, o.Value = check.Applied, res.AppliedIndex, res.Length
	w.recorder.done(o)
	w.whole(from, res, mine)
}

// whole holds a part of the list to what was promised of it.
func (w *worker) whole(from int64, res *v1.RangeResponse, mine appended) {
	want := min(from, res.Length)
	for _, i := range res.Items {
		if i.Index != want {
			w.recorder.broke("lists", "item %d of the list is a hole: %v", want, res)
		}
		if mine.id != "" && want < mine.to && i.Value != itemOf(mine.id, want-mine.from) {
			w.recorder.broke("lists", "item %d is %q and was acknowledged as %q", want, i.Value, itemOf(mine.id, want-mine.from))
		}
		want++
	}
	if res.Next != want || mine.id != "" && want < mine.to {
		w.recorder.broke("lists", "items of the list from %d on end at %d: %v", from, want, res)
	}
}

// conflicts reports whether something is not as a request has named it.
func conflicts(err error) bool { return reasonOf(err) == client.ReasonVersionConflict }

// finalState reads what is left of both after all is over.
func (w *worker) finalState(ctx context.Context, out map[string]int64) error {
	res, err := w.node().Get(ctx, &v1.GetRequest{Key: compared})
	if err != nil {
		return fmt.Errorf("the number %s in the end: %w", compared, err)
	}
	if res.Found {
		if out[compared], err = strconv.ParseInt(res.Value, 10, 64); err != nil {
			return err
		}
	}
	for from := int64(0); ; {
		part, err := w.node().Range(ctx, &v1.RangeRequest{Key: list, From: from, Limit: 1000})
		if err != nil {
			return fmt.Errorf("the list in the end: %w", err)
		}
		w.whole(from, part, appended{})
		if out[list] = part.Length; part.Next >= part.Length {
			break
		}
		if part.Next <= from {
			return errors.New("the list in the end does not go on")
		}
		from = part.Next
	}
	if out[list] == 0 {
		delete(out, list)
	}
	return nil
}
