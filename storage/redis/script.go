package redis

import (
	"context"
	_ "embed" // the scripts
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
)

var (
	//go:embed load.lua
	loadText string
	//go:embed swap.lua
	swapText string

	//go:embed aside.lua
	asideText string

	loadScript  = redis.NewScript(loadText)
	swapScript  = redis.NewScript(swapText)
	asideScript = redis.NewScript(asideText)
	scriptText  = map[*redis.Script]string{loadScript: loadText, swapScript: swapText, asideScript: asideText}
)

// once is a command that the library sends once: in a Redis Cluster it would send
// a command again whose answer was lost.
type once struct{ *redis.Cmd }

// NoRetry tells the library so.
func (once) NoRetry() bool { return true }

// run calls a script, which Redis may have forgotten.
func (r *Store) run(ctx context.Context, script *redis.Script, keys []string, args []any) ([]any, error) {
	all := make([]any, 3, 3+len(keys)+len(args))
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	return r.runAll(ctx, script, len(keys), all)
}

// runAll calls a script with keys and arguments that stand behind three places
// for the command itself. The library finds the first key only if it is a string.
func (r *Store) runAll(ctx context.Context, script *redis.Script, keys int, all []any) ([]any, error) {
	all[0], all[1], all[2] = "evalsha", script.Hash(), keys
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
func (r *Store) lookAround(ctx context.Context, err error) {
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
	replyBehind = "behind"
	replyHalf   = "half"
)

// A want is a record to be loaded, with parts of the ids that it remembers.
type want struct {
	key   session.Key
	parts uint16 // bit by part
	refs  int    // commands of the round that touch it
}

const allParts = 1<<session.ForgottenParts - 1

// load reads records as they stand at one instant. One that is damaged comes with
// the reason. If strict, a record or a part that is gone, and an index that has
// lost names, is answered as replyAbsent.
func (r *Store) load(ctx context.Context, p *place, e *epoch, wants []want, strict bool) (found []entry, status string, err error) {
	keys := make([]string, 0, 3+2*len(wants))
	args := make([]any, 0, 4+len(wants))
	keys = append(keys, p.d.key("epoch"), p.d.key("clock"), p.counts())
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
	found = r.entries(p, wants, nil, reply[2:])
	if strict && partsGone(found) {
		return nil, replyAbsent, nil
	}
	return found, status, nil
}

// partsGone reports whether a record has lost ids that it remembered.
func partsGone(found []entry) bool {
	for i := range found {
		if bad := found[i].bad; bad != nil && errors.Is(bad.err, errPartGone) {
			return true
		}
	}
	return false
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

// entries reads the values of records, and behind them those of parts. A number
// in the place of a value says that it is still what was known.
func (r *Store) entries(p *place, wants []want, known []entry, values []any) []entry {
	found := make([]entry, len(wants))
	seen := r.cfg.monotonic()
	next := len(wants)
	for i, w := range wants {
		if _, same := values[i].(int64); same && known != nil {
			found[i] = known[i]
			found[i].seen = seen
			next += bits.OnesCount16(w.parts)
			continue
		}
		n := next
		next += bits.OnesCount16(w.parts)
		if values[i] == nil {
			found[i].seen = seen
			continue
		}
		found[i] = p.entry(w, values[i], values[n:next])
		found[i].seen = seen
	}
	return found
}

// entry reads the value of a record and those of its parts that are wanted.
func (p *place) entry(w want, value any, parts []any) (e entry) {
	fail := func(key string, err error) entry {
		e.bad = &badRecord{key, err}
		return e
	}
	v, ok := value.(string)
	if !ok {
		return fail(p.record(w.key), errType)
	}
	e, err := decodeValue(w.key, v)
	if err != nil {
		return fail(p.record(w.key), err)
	}
	for part := range session.ForgottenParts {
		if w.parts&(1<<part) == 0 {
			continue
		}
		v, ok := parts[0].(string)
		if parts[0] != nil && !ok {
			return fail(p.part(w.key, part), errType)
		}
		parts = parts[1:]
		known, err := session.WithPart(w.key, e.record, part, []byte(v))
		if err != nil && v == "" {
			err = fmt.Errorf("%w: %w", errPartGone, err)
		}
		if err != nil {
			return fail(p.part(w.key, part), err)
		}
		e.record = known
		e.size += len(v)
	}
	return e
}

// errType says that somebody has put something else there.
var errType = errors.New("it is no string")

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
func (r *Store) nextStamp() stamp {
	return stamp(binary.BigEndian.AppendUint64([]byte(r.draw), r.rounds.Add(1)))
}
