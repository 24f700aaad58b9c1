package redis

import (
	"crypto/sha1" //nolint:gosec // as Redis knows it; nothing hangs on it
	_ "embed"     // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"example.com/govnode/session"
)

// A script is carried out by Redis, which knows it by its hash.
type script struct{ name, text, hash string }

func newScript(name, text string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return &script{name, text, hex.EncodeToString(sum[:])}
}

var (
	//go:embed load.lua
	loadText string
	//go:embed swap.lua
	swapText string
	//go:embed aside.lua
	asideText string

	loadScript  = newScript("load", loadText)
	swapScript  = newScript("swap", swapText)
	asideScript = newScript("aside", asideText)
)

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
func appendParts(keys []string, p *spot, wants []want) []string {
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
// in the place of a value says that it is still what was known. Seen is when
// that is so.
func (p *spot) entries(wants []want, known []entry, values []any, seen time.Duration) []entry {
	found := make([]entry, len(wants))
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
func (p *spot) entry(w want, value any, parts []any) (e entry) {
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

// loadCall returns the keys and arguments of load.lua.
func loadCall(p *spot, epoch, replid string, wants []want, strict bool) (keys []string, args []any) {
	keys = make([]string, 0, 3+2*len(wants))
	args = make([]any, 0, 4+len(wants))
	keys = append(keys, p.first[0], p.first[2], p.counts()) // epoch and clock
	args = append(args, epoch, replid, len(wants), "0")
	if strict {
		args[3] = "1"
	}
	for _, w := range wants {
		keys = append(keys, p.record(w.key), p.index(w.key.Kind()))
		args = append(args, w.key.Name())
	}
	return appendParts(keys, p, wants), args
}
