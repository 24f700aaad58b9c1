package wire

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

// A Script is carried out by Redis, which knows it by its hash.
type Script struct{ Name, Text, Hash string }

func newScript(name, text string) *Script {
	text = guardText + text
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return &Script{name, text, hex.EncodeToString(sum[:])}
}

// The scripts.
var (
	//go:embed guard.lua
	guardText string
	//go:embed load.lua
	loadText string
	//go:embed swap.lua
	swapText string
	//go:embed aside.lua
	asideText string

	LoadScript  = newScript("load", loadText)
	SwapScript  = newScript("swap", swapText)
	AsideScript = newScript("aside", asideText)
)

// What a script answers in its first place.
const (
	ReplyOK     = "ok"
	ReplyLost   = "lost"
	ReplyFrozen = "frozen"
	ReplyEpoch  = "epoch"
	ReplyServer = "server"
	ReplyAbsent = "absent"
	ReplyBehind = "behind"
	ReplyHalf   = "half"
	ReplyFull   = "full"
	ReplyMore   = "more"
)

// A Want is a record to be loaded, with parts of the ids that it remembers.
type Want struct {
	Key   session.Key
	Parts uint16 // bit by part
	Refs  int    // commands of the round that touch it
}

// AllParts are the bits of all parts.
const AllParts = 1<<session.ForgottenParts - 1

// PartsGone reports whether a record has lost ids that it remembered.
func PartsGone(found []Entry) bool {
	for i := range found {
		if bad := found[i].Bad; bad != nil && errors.Is(bad.Err, ErrPartGone) {
			return true
		}
	}
	return false
}

// AppendParts appends the keys of the parts that are wanted, in their order.
func AppendParts(keys []string, p *Place, wants []Want) []string {
	for _, w := range wants {
		for part := range session.ForgottenParts {
			if w.Parts&(1<<part) != 0 {
				keys = append(keys, p.Part(w.Key, part))
			}
		}
	}
	return keys
}

// Entries reads the values of records, and behind them those of parts. A number
// in the place of a value says that it is still what was known. Seen is when
// that is so.
func (p *Place) Entries(wants []Want, known []Entry, values []any, seen time.Duration) []Entry {
	found := make([]Entry, len(wants))
	next := len(wants)
	for i, w := range wants {
		if _, same := values[i].(int64); same && known != nil {
			found[i] = known[i]
			found[i].Seen = seen
			next += bits.OnesCount16(w.Parts)
			continue
		}
		n := next
		next += bits.OnesCount16(w.Parts)
		if values[i] == nil {
			found[i].Seen = seen
			continue
		}
		found[i] = p.Entry(w, values[i], values[n:next])
		found[i].Seen = seen
	}
	return found
}

// Entry reads the value of a record and those of its parts that are wanted.
func (p *Place) Entry(w Want, value any, parts []any) (e Entry) {
	fail := func(key string, err error) Entry {
		e.Bad = &BadRecord{key, err}
		return e
	}
	v, ok := value.(string)
	if !ok {
		return fail(p.Record(w.Key), ErrType)
	}
	e, err := DecodeValue(w.Key, v)
	if err != nil {
		return fail(p.Record(w.Key), err)
	}
	for part := range session.ForgottenParts {
		if w.Parts&(1<<part) == 0 {
			continue
		}
		v, ok := parts[0].(string)
		if parts[0] != nil && !ok {
			return fail(p.Part(w.Key, part), ErrType)
		}
		parts = parts[1:]
		known, err := session.WithPart(w.Key, e.Record, part, []byte(v))
		if err != nil && v == "" {
			err = fmt.Errorf("%w: %w", ErrPartGone, err)
		}
		if err != nil {
			return fail(p.Part(w.Key, part), err)
		}
		e.Record = known
		e.Size += len(v)
	}
	return e
}

// Care is what load.lua makes sure of.
type Care string

const (
	// Careless loads what it finds.
	Careless Care = "0"
	// Strict looks whether something is gone.
	Strict Care = "1"
	// Complete looks besides whether there is any record in the namespace beyond those
	// that are wanted.
	Complete Care = "2"
)

// CareOf returns Strict, or Careless.
func CareOf(strict bool) Care {
	if strict {
		return Strict
	}
	return Careless
}

// LoadCall returns the keys and arguments of load.lua.
func LoadCall(p *Place, epoch, replid string, wants []Want, care Care) (keys []string, args []any) {
	keys = make([]string, 0, 3+2*len(wants))
	args = make([]any, 0, 4+len(wants))
	keys = append(keys, p.first[0], p.first[2], p.Counts()) // epoch and clock
	args = append(args, epoch, replid, len(wants), string(care))
	for _, w := range wants {
		keys = append(keys, p.Record(w.Key), p.Index(w.Key.Kind()))
		args = append(args, w.Key.Name())
	}
	return AppendParts(keys, p, wants), args
}
