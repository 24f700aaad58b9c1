package storage

import (
	"context"
	_ "embed" // the two scripts
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
)

var (
	//go:embed load.lua
	loadText string
	//go:embed swap.lua
	swapText string

	loadScript = redis.NewScript(loadText)
	swapScript = redis.NewScript(swapText)
	scriptText = map[*redis.Script]string{loadScript: loadText, swapScript: swapText}
)

// once is a command that the library sends once: in a Redis Cluster it would send
// a command again whose answer was lost.
type once struct{ *redis.Cmd }

// NoRetry tells the library so.
func (once) NoRetry() bool { return true }

// run calls a script, which Redis may have forgotten.
func (r *Redis) run(ctx context.Context, script *redis.Script, keys []string, args []any) ([]any, error) {
	all := make([]any, 3, 3+len(keys)+len(args))
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	all[0], all[1], all[2] = "evalsha", script.Hash(), len(keys)
	c := once{redis.NewCmd(ctx, all...)}
	err := r.client.Process(ctx, c)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		all[0], all[1] = "eval", scriptText[script]
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
func (r *Redis) lookAround(ctx context.Context, err error) {
	var reply redis.Error
	if c, ok := r.client.(*redis.ClusterClient); ok && !errors.As(err, &reply) {
		c.ReloadState(ctx)
	}
}

// What a script answers in its first place.
const (
	replyOK     = "ok"
	replyLost   = "lost"
	replyFrozen = "frozen"
	replyEpoch  = "epoch"
	replyServer = "server"
	replyAbsent = "absent"
)

// A want is a record to be loaded, with parts of the ids that it remembers.
type want struct {
	key   session.Key
	parts uint16 // bit by part
}

const allParts = 1<<session.ForgottenParts - 1

// A badRecord reports what stands under a key and is no record of govnode. It is
// never taken for an absent one.
type badRecord struct {
	key string
	err error
}

func (e *badRecord) Error() string {
	return fmt.Sprintf("the value of Redis key %q is damaged or not of govnode: %v", e.key, e.err)
}

// load reads records as they stand at one instant. If strict, a record that an
// index lists and that is not there is answered as replyAbsent.
func (r *Redis) load(ctx context.Context, p *place, e *epoch, wants []want, strict bool) (found []entry, status string, err error) {
	keys := make([]string, 0, 2+2*len(wants))
	args := make([]any, 0, 4+len(wants))
	keys = append(keys, p.d.key("epoch"), p.d.key("clock"))
	args = append(args, e.text, e.replid, len(wants), "0")
	if strict {
		args[3] = "1"
	}
	for _, w := range wants {
		keys = append(keys, p.record(w.key), p.index(w.key.Kind()))
		args = append(args, w.key.Name())
	}
	keys = appendParts(keys, p, wants)
	swaps := p.d.clock.swaps()
	reply, err := r.run(ctx, loadScript, keys, args)
	if err != nil {
		return nil, "", err
	}
	status, _ = reply[0].(string)
	if status != replyOK {
		return nil, status, nil
	}
	seq, err := p.d.read(e, reply[1])
	if err != nil {
		return nil, "", err
	}
	if seq < swaps {
		return nil, replyServer, nil // older data: whose is it?
	}
	found, err = r.entries(p, wants, reply[2:])
	return found, status, err
}

// appendParts appends the keys of the parts that are wanted, in their order.
func appendParts(keys []string, p *place, wants []want) []string {
	for _, w := range wants {
		for part := range session.ForgottenParts {
			if w.parts&(1<<part) != 0 {
				keys = append(keys, p.part(w.key, part))
			}
		}
	}
	return keys
}

// entries reads the values of records, and behind them those of parts.
func (r *Redis) entries(p *place, wants []want, values []any) ([]entry, error) {
	found := make([]entry, len(wants))
	seen := r.cfg.monotonic()
	next := len(wants)
	for i, w := range wants {
		if v, ok := values[i].(string); ok {
			e, err := decodeValue(v)
			if err == nil && !session.Belongs(w.key, e.record) {
				err = fmt.Errorf("it is a %T", e.record)
			}
			if err != nil {
				return nil, &badRecord{p.record(w.key), err}
			}
			found[i] = e
		}
		found[i].seen = seen
		for part := range session.ForgottenParts {
			if w.parts&(1<<part) == 0 {
				continue
			}
			v, _ := values[next].(string)
			next++
			if found[i].record == nil {
				continue
			}
			known, err := session.WithPart(found[i].record, part, []byte(v))
			if err != nil {
				return nil, &badRecord{p.part(w.key, part), err}
			}
			found[i].record = known
			found[i].size += len(v)
		}
	}
	return found, nil
}

// A swapping is one call of swap.lua under construction.
type swapping struct {
	p     *place
	e     *epoch
	wants []want
	keys  []string // records with their indexes, then parts
	parts map[string]int
	read  int // parts to return if the swap is lost
	ops   []any
	tell  bool // others may wait for what changes
	stamp stamp
}

// beginSwap begins a call that checks the stamps of the records wanted.
func (r *Redis) beginSwap(p *place, e *epoch, wants []want) *swapping {
	s := &swapping{p: p, e: e, wants: wants, parts: map[string]int{}, stamp: r.nextStamp()}
	s.keys = make([]string, 0, 4+4*len(wants))
	s.keys = append(s.keys, p.d.key("epoch"), p.d.key("frozen"), p.d.key("clock"), p.d.key("due"))
	for _, w := range wants {
		s.keys = append(s.keys, p.record(w.key), p.index(w.key.Kind()))
	}
	first := len(s.keys)
	s.keys = appendParts(s.keys, p, wants)
	s.read = len(s.keys) - first
	for i := first; i < len(s.keys); i++ {
		s.parts[s.keys[i]] = i + 1
	}
	return s
}

// recordKey and indexKey return the places of a record's keys, as Lua counts.
func (s *swapping) recordKey(i int) int { return 5 + 2*i }
func (s *swapping) indexKey(i int) int  { return 6 + 2*i }

func (s *swapping) partKey(k session.Key, part int) int {
	name := s.p.part(k, part)
	at, ok := s.parts[name]
	if !ok {
		s.keys = append(s.keys, name)
		at = len(s.keys)
		s.parts[name] = at
	}
	return at
}

// put adds what it takes to write a record in the place of another, and returns
// it as it will be found.
func (s *swapping) put(i int, was entry, after session.Record, now time.Duration) entry {
	k := s.wants[i].key
	if after == nil {
		s.remove(i, was)
		return entry{}
	}
	packed := session.Pack(after)
	next := entry{stamp: s.stamp, record: packed.Next, due: standing(after, was.due, now)}
	value := encodeValue(s.stamp, next.due, packed.Head)
	next.size = len(value) + was.size/2 // with what is known of its parts, roughly
	s.ops = append(s.ops, "S", s.recordKey(i), value)
	for _, c := range packed.Parts {
		switch {
		case !c.Whole:
			s.ops = append(s.ops, "A", s.partKey(k, c.Part), c.Bytes)
		case len(c.Bytes) > 0:
			s.ops = append(s.ops, "W", s.partKey(k, c.Part), c.Bytes)
		case was.record != nil:
			s.ops = append(s.ops, "X", s.partKey(k, c.Part))
		}
	}
	if was.record == nil {
		s.ops = append(s.ops, "I", s.indexKey(i), k.Name())
	}
	if next.due != was.due {
		if next.due == 0 {
			s.ops = append(s.ops, "R", string(k))
		} else {
			s.ops = append(s.ops, "Z", score(next.due), string(k))
		}
	}
	return next
}

func (s *swapping) remove(i int, was entry) {
	k := s.wants[i].key
	s.ops = append(s.ops, "D", s.recordKey(i), "J", s.indexKey(i), k.Name())
	if was.due != 0 {
		s.ops = append(s.ops, "R", string(k))
	}
	if session.HasParts(k) {
		for part := range session.ForgottenParts {
			s.ops = append(s.ops, "X", s.partKey(k, part))
		}
	}
}

// send carries the swap out at a time that now returned. If it is lost, found
// has the records as they are instead.
func (r *Redis) send(ctx context.Context, s *swapping, was []entry, now, mono time.Duration) (found []entry, status string, err error) {
	args := make([]any, 0, 8+2*len(was)+len(s.ops))
	channel, message := "", ""
	if s.tell {
		channel, message = r.cfg.hintsChannel(), r.name+" "+s.p.ns
	}
	args = append(args, s.e.text, s.e.replid, clockText(now), clockText(now+maxBehind),
		len(was), s.read, channel, message)
	for i := range was {
		args = append(args, string(was[i].stamp))
	}
	for i := range was {
		args = append(args, s.wants[i].key.Name())
	}
	args = append(args, s.ops...)
	swaps := s.p.d.clock.swaps()
	reply, err := r.run(ctx, swapScript, s.keys, args)
	if err != nil {
		return nil, "", err
	}
	if status, _ = reply[0].(string); status != replyOK && status != replyLost {
		return nil, status, nil
	}
	if status == replyOK && len(s.ops) > 0 {
		s.p.d.clock.wrote(now, mono)
	}
	seq, err := s.p.d.read(s.e, reply[1])
	switch {
	case err != nil:
		return nil, "", err
	case status == replyLost && seq < swaps:
		return nil, replyServer, nil // older data: whose is it?
	case status == replyOK && (seq < swaps || seq == swaps && len(s.ops) > 0 && len(was) > 0):
		return nil, "", errOlder // it has counted this swap already
	case status == replyLost:
		found, err = r.entries(s.p, s.wants, reply[2:])
	}
	return found, status, err
}

// errOlder says that a swap was applied to data that has lost what this node had
// written, so that nobody knows what it is worth.
var errOlder = errors.New("the data in Redis is older than what this node has written")

// read notes the clock that a script returned, and returns the number of swaps.
func (d *domain) read(e *epoch, v any) (seq uint64, err error) {
	at, seq, err := parseClock(v)
	if err != nil {
		return 0, &badRecord{d.key("clock"), err}
	}
	d.clock.read(at, seq, e.id)
	return seq, nil
}

// nextStamp returns a stamp that no round ever had.
func (r *Redis) nextStamp() stamp {
	return stamp(binary.BigEndian.AppendUint64([]byte(r.draw), r.rounds.Add(1)))
}
