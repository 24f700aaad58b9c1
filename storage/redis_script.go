package storage

import (
	"context"
	_ "embed" // the two scripts
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
	return r.runAll(ctx, script, len(keys), all)
}

// runAll calls a script with keys and arguments that stand behind three places
// for the command itself. The library finds the first key only if it is a string.
func (r *Redis) runAll(ctx context.Context, script *redis.Script, keys int, all []any) ([]any, error) {
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
	refs  int    // commands of the round that touch it
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
	found, err = r.entries(p, wants, nil, reply[2:])
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

// entries reads the values of records, and behind them those of parts. A number
// in the place of a value says that it is still what was known.
func (r *Redis) entries(p *place, wants []want, known []entry, values []any) ([]entry, error) {
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
