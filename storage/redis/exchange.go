package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage/redis/internal/wire"
)

// What goes to Redis and comes back, and what a node learns of it whatever it
// asked for: the clock, the number of swaps, and whether they are still those
// that it knows.

// once is a command that the library sends once: in a Redis Cluster it would send
// a command again whose answer was lost.
type once struct{ *redis.Cmd }

// NoRetry tells the library so.
func (once) NoRetry() bool { return true }

// run calls a script, which Redis may have forgotten.
func (r *Store) run(ctx context.Context, s *wire.Script, keys []string, args []any) ([]any, error) {
	all := make([]any, 3, 3+len(keys)+len(args))
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	return r.runAll(ctx, s, len(keys), all)
}

// runAll calls a script with keys and arguments that stand behind three places
// for the command itself. The library finds the first key only if it is a string.
func (r *Store) runAll(ctx context.Context, s *wire.Script, keys int, all []any) ([]any, error) {
	all[0], all[1], all[2] = "evalsha", s.Hash, keys
	c := once{redis.NewCmd(ctx, all...)}
	err := r.client.Process(ctx, c)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		all[0], all[1] = "eval", s.Text
		c = once{redis.NewCmd(ctx, all...)}
		err = r.client.Process(ctx, c)
	}
	if err != nil {
		r.lookAround(ctx, err)
		return nil, err
	}
	reply, err := c.Slice()
	if err == nil && len(reply) == 0 {
		err = errors.New("a script gave no answer")
	}
	return reply, err
}

// lookAround lets the client of a Redis Cluster ask who serves which slots, once
// one of them does not answer: since nothing is sent twice, it would not by
// itself.
func (r *Store) lookAround(ctx context.Context, err error) {
	var reply redis.Error
	if c, ok := r.client.(*redis.ClusterClient); ok && !errors.As(err, &reply) {
		c.ReloadState(ctx)
	}
}

// load reads records as they stand at one instant. One that is damaged comes with
// the reason. If strict, a record or a part that is gone, and an index that has
// lost names, is answered as replyAbsent.
func (r *Store) load(ctx context.Context, p *place, e *epoch, wants []wire.Want, strict bool) (found []wire.Entry, status string, err error) {
	return r.loadWith(ctx, p, e, wants, wire.CareOf(strict))
}

// loadWith is load. If there is more than may be, that is answered as replyMore.
func (r *Store) loadWith(ctx context.Context, p *place, e *epoch, wants []wire.Want, care wire.Care) (found []wire.Entry, status string, err error) {
	keys, args := wire.LoadCall(&p.Place, e.text, e.replid, wants, care)
	swaps := p.d.clock.swaps()
	reply, err := r.run(ctx, wire.LoadScript, keys, args)
	if err != nil {
		return nil, "", err
	}
	status, _ = reply[0].(string)
	if status != wire.ReplyOK {
		return nil, status, nil
	}
	seq, err := p.d.read(e, reply[1])
	if err != nil {
		return nil, "", err
	}
	if seq < swaps {
		return nil, wire.ReplyServer, nil // older data: whose is it?
	}
	found = p.Entries(wants, nil, reply[2:], r.cfg.monotonic())
	if care != wire.Careless && wire.PartsGone(found) {
		return nil, wire.ReplyAbsent, nil
	}
	return found, status, nil
}

// A swapping is a swap under construction: of records of a place, under an epoch.
type swapping struct {
	wire.Swap
	p     *place
	e     *epoch
	waits string // what the reply says of turns
}

// beginSwap begins a swap that checks the stamps of the records wanted.
func (r *Store) beginSwap(p *place, e *epoch, wants []wire.Want) *swapping {
	return &swapping{Swap: wire.NewSwap(&p.Place, r.nextStamp(), wants), p: p, e: e}
}

// send carries the swap out at a time that now returned. If it is lost, found
// has the records as they are instead.
func (r *Store) send(ctx context.Context, s *swapping, was []wire.Entry, now, mono time.Duration) (found []wire.Entry, status string, err error) {
	all := s.Arguments(was, wire.Terms{
		Epoch: s.e.text, ReplID: s.e.replid, Now: now, Latest: now + maxBehind,
		Channel: r.keys.Hints(), Node: r.name, Mark: s.p.d.clock.marked(),
	})
	swaps := s.p.d.clock.swaps()
	reply, err := r.runAll(ctx, wire.SwapScript, len(s.Keys), all)
	if err != nil {
		return nil, "", err
	}
	status, _ = reply[0].(string)
	switch {
	case status == wire.ReplyHalf:
		return nil, "", fmt.Errorf("%w: %v", errHalf, reply[1:])
	case status == wire.ReplyFrozen && len(reply) > 1: // it says the time all the same
		if seq, err := s.p.d.read(s.e, reply[1]); err != nil {
			return nil, "", err
		} else if seq < swaps {
			return nil, wire.ReplyServer, nil // older data: whose is it?
		}
		return nil, status, nil
	case status != wire.ReplyOK && status != wire.ReplyLost:
		return nil, status, nil
	}
	if len(reply) < 3 {
		return nil, "", errors.New("a script gave half an answer")
	}
	s.waits, _ = reply[2].(string)
	if status == wire.ReplyOK && !s.Idle() {
		s.p.d.clock.wrote(now, mono)
	}
	seq, err := s.p.d.read(s.e, reply[1])
	switch {
	case err != nil:
		return nil, "", err
	case status == wire.ReplyLost && seq < swaps:
		return nil, wire.ReplyServer, nil // older data: whose is it?
	case status == wire.ReplyOK && (seq < swaps || seq == swaps && !s.Idle() && len(was) > 0):
		return nil, "", errOlder // it has counted this swap already
	case status == wire.ReplyLost:
		if found = s.p.Entries(s.Wants, was, reply[3:], r.cfg.monotonic()); wire.PartsGone(found) {
			return nil, wire.ReplyAbsent, nil
		}
	case !s.Idle():
		s.p.d.clock.left(seq, s.e.id)
	}
	return found, status, nil
}

// errHalf says that Redis stopped a swap between two writes, as it does if a
// command is forbidden to this user that only some swaps need.
var errHalf = errors.New("this Redis has stopped a swap half-way")

// errOlder says that a swap was applied to data that has lost what this node had
// written, so that nobody knows what it is worth.
var errOlder = errors.New("the data in Redis is older than what this node has written")

// read notes the clock that a script returned, and returns the number of swaps.
func (d *domain) read(e *epoch, v any) (seq uint64, err error) {
	at, seq, err := wire.ParseClock(v)
	if err != nil {
		return 0, &wire.BadRecord{Key: d.key("clock"), Err: err}
	}
	d.clock.read(at, seq, e.id)
	return seq, nil
}

// nextStamp returns a stamp that no round ever had.
func (r *Store) nextStamp() wire.Stamp {
	return wire.Stamp(binary.BigEndian.AppendUint64([]byte(r.draw), r.rounds.Add(1)))
}
