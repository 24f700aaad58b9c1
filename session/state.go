package session

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"time"
	"unique"

	"example.com/govnode/internal/seeded"
)

// The state: where records are kept and found, and how an entry is applied to
// them.

const shardBits = 14 // 16,384 shards: a snapshot copies that many pointers

// State is everything govnode knows, or the part of it that some commands
// touch. It is not safe for concurrent use; what it returns is, since records
// are immutable between entries.
type State struct {
	now        time.Duration
	generation uint32 // of fencing tokens
	entry      uint64 // number of the entry under way
	epoch      uint64 // of snapshots: a shard of an older one is shared
	shards     []*shard
	due        []time.Duration // of each shard, no later than its first deadline; derived
	soonest    []time.Duration // the first of each dueBlock of these
	written    []writtenRecord // in the entry under way
	lapsed     []Lapse         // by the command under way
	folds      []Fold          // likewise
	link       linking         // likewise
	spare      []Grant         // for answers
	text       []byte          // of the key that is looked up
	latest     []*cell         // of each shard, that which a command looked for last; nil if it is not known
	places     [4]place        // where the latest records were found
	turn       uint            // which of them is next to be forgotten
	names      [nameSlots]unique.Handle[string]
	touched    map[Key]bool      // by the command under way, if footprints are guarded
	tallies    map[string]*Tally // of namespaces; derived
	signals    map[Key]bool      // records of signals, and whether a KILL in them is to be swept; derived
}

type shard struct {
	epoch   uint64
	records map[Key]*cell
	// The hash of the records, once a snapshot has made it: nothing is written
	// into a shard that a snapshot has. See Snapshot.Digest.
	hash   Digest
	hashed bool
}

// A cell is the place of a record in its shard, so that a record is replaced
// without its key being put together again. It has its key, so that the one that was
// looked for last is found without the map: each pointer on the way there is a cache miss.
type cell struct {
	key    Key
	record Record
}

// A place is where the record of a key was found: a command looks for the same few several
// times. It holds as long as its shard is that of the state, and the record is there.
type place struct {
	of    ref
	at    int // of the shard
	shard *shard
	cell  *cell
}

// New returns an empty state.
func New() *State { return newState(1 << shardBits) }

// NewPartial returns an empty state that is meant for few records.
func NewPartial() *State { return newState(1) }

func newState(n int) *State {
	s := &State{
		shards: make([]*shard, n), latest: make([]*cell, n),
		due: make([]time.Duration, n), soonest: make([]time.Duration, (n+dueBlock-1)/dueBlock),
	}
	empty := &shard{} // which nobody writes into
	for i := range s.shards {
		s.shards[i], s.due[i], s.soonest[i/dueBlock] = empty, never, never
	}
	return s
}

// dueBlock is how many shards are looked at together for what is due: most have
// nothing, and a leader looks several times a second.
const dueBlock = 128

// nameSlots is how many names are remembered lest they be looked up among all
// interned ones for every call: a fleet uses few tools, and some thousand pools at most.
const nameSlots = 4096

// name interns the name of a tool or a pool.
func (s *State) name(text string) unique.Handle[string] {
	h := uint32(len(text))
	for i := max(0, len(text)-8); i < len(text); i++ { // names tend to differ at their end
		h = h*31 + uint32(text[i])
	}
	slot := &s.names[h%nameSlots]
	if *slot == (unique.Handle[string]{}) || slot.Value() != text {
		*slot = unique.Make(text)
	}
	return *slot
}

// Now returns the time of the latest entry.
func (s *State) Now() time.Duration { return s.now }

// Generation returns the generation of fencing tokens; Restore raises it.
func (s *State) Generation() uint32 { return s.generation }

// SetClock sets time and generation, of a state that is being rebuilt.
func (s *State) SetClock(now time.Duration, generation uint32) {
	s.now, s.generation = max(s.now, now), max(s.generation, generation)
}

// Put installs a record that was decoded, or that this same state returned
// before; nil removes it. It is how a state is rebuilt, and nothing else.
func (s *State) Put(k Key, r Record) {
	if i := s.put(refOf(k), r); r != nil {
		s.noteDue(i, r)
	}
}

// Stored returns a record as it was last written, settled or not; nil if absent. It writes
// nothing, so that many may read at once.
func (s *State) Stored(k Key) Record {
	s.touch([]byte(k))
	i := s.shardOf([]byte(k))
	if c := s.latest[i]; c != nil && c.key == k {
		return c.record
	}
	if c := s.shards[i].records[k]; c != nil {
		return c.record
	}
	return nil
}

func (s *State) lookup(r ref) Record {
	if p := s.placed(r); p != nil {
		return p.cell.record
	}
	s.text = r.append(s.text[:0])
	s.touch(s.text)
	i := s.shardOf(s.text)
	sh := s.shards[i]
	c := s.latest[i]
	if c == nil || c.key != Key(s.text) {
		if c = sh.records[Key(s.text)]; c == nil {
			return nil
		}
		s.latest[i] = c
	}
	s.places[s.turn%uint(len(s.places))] = place{r, i, sh, c}
	s.turn++
	return c.record
}

// placed returns the place of a record that was just found; nil where it has to be looked for.
func (s *State) placed(r ref) *place {
	if s.touched != nil {
		return nil // each look is held to the footprint
	}
	for i := range uint(len(s.places)) { // the latest first, which is asked for most
		p := &s.places[(s.turn-1-i)%uint(len(s.places))]
		if p.of.kind == r.kind && p.of.name == r.name && p.of.ns == r.ns && p.shard == s.shards[p.at] {
			return p
		}
	}
	return nil
}

// Get returns the record named by k as it stands at Now; nil if it is absent
// or has lapsed.
func (s *State) Get(k Key) Record {
	if r := s.Stored(k); r != nil {
		return r.At(s.now)
	}
	return nil
}

// Len returns how many records are stored.
func (s *State) Len() (n int) {
	for _, sh := range s.shards {
		n += len(sh.records)
	}
	return n
}

// shardOf is the same on every node, since it decides the order of snapshots.
func (s *State) shardOf(key []byte) int { return placeOf(key) & (len(s.shards) - 1) }

// placeOf is the shard of a key in a whole state.
func placeOf(key []byte) int {
	const prime = 0x9E3779B97F4A7C15
	h := uint64(len(key)) * prime
	for ; len(key) >= 8; key = key[8:] {
		h = (h ^ binary.LittleEndian.Uint64(key)) * prime
		h ^= h >> 32
	}
	for _, b := range key {
		h = (h ^ uint64(b)) * prime
	}
	return int((h ^ h>>29) & (1<<shardBits - 1))
}

// put stores a record, and returns its shard. Its caller notes when the record is due: what
// an entry writes, once as the entry leaves it.
func (s *State) put(r ref, rec Record) int {
	if p := s.placed(r); p != nil && rec != nil && p.shard.epoch == s.epoch && r.kind != KindSignals {
		p.cell.record = rec
		return p.at
	}
	s.text = r.append(s.text[:0])
	s.touch(s.text)
	i := s.shardOf(s.text)
	sh := s.shards[i]
	if sh.epoch != s.epoch || sh.records == nil {
		sh = sh.clone(s.epoch)
		s.shards[i], s.latest[i] = sh, nil
	}
	if r.kind == KindSignals {
		s.noteSignals(Key(s.text), rec)
	}
	switch c := sh.records[Key(s.text)]; {
	case rec == nil:
		if c != nil {
			s.count(r, c.record, -1)
		}
		delete(sh.records, Key(s.text))
		s.latest[i] = nil
		s.places = [len(s.places)]place{}
		return i
	case c != nil:
		c.record = rec
	default:
		s.count(r, rec, 1)
		k := Key(s.text)
		sh.records[k] = &cell{k, rec}
	}
	return i
}

// clone returns a shard that may be written into; a snapshot has the other.
func (sh *shard) clone(epoch uint64) *shard {
	cells := make([]cell, 0, len(sh.records))
	c := &shard{epoch: epoch, records: make(map[Key]*cell, len(sh.records))}
	for k, from := range sh.records { // order-free: each goes to its own key
		cells = append(cells, *from)
		c.records[k] = &cells[len(cells)-1]
	}
	return c
}

func (s *State) noteDue(i int, r Record) {
	if at, ok := r.Due(); ok && at < s.due[i] {
		s.due[i], s.soonest[i/dueBlock] = at, min(at, s.soonest[i/dueBlock])
	}
}

// Due returns no later than the first instant at which a record will differ;
// ok is false if none ever will.
func (s *State) Due() (at time.Duration, ok bool) {
	at = slices.Min(s.soonest)
	return at, at != never
}

// DueKeys returns at most limit keys: those of records that have something to
// settle by Now, and those that a Tick needs beside them. It looks at a bounded
// number of shards; more is true if there may be others.
func (s *State) DueKeys(limit int) (keys []Key, more bool) {
	const shardsAtOnce = 1024
	seen := 0
	for i := 0; i < len(s.due); i++ {
		if i%dueBlock == 0 && s.soonest[i/dueBlock] > s.now {
			i += dueBlock - 1
			continue
		}
		if s.due[i] > s.now {
			continue
		}
		if seen++; seen > shardsAtOnce || more {
			more = true
			break
		}
		found, next := len(keys), never
		for k, c := range s.shards[i].records { // order-free: sorted below
			r := c.record
			if at, ok := r.Due(); ok && at <= s.now {
				needs := tickNeeds(k, r)
				if len(keys)+1+len(needs) > limit {
					more = true
					break
				}
				keys = append(append(keys, k), needs...)
			} else if ok {
				next = min(next, at)
			}
		}
		if len(keys) == found && !more {
			s.due[i] = next // what is found now stays due until it is settled
			block := i - i%dueBlock
			s.soonest[i/dueBlock] = slices.Min(s.due[block:min(block+dueBlock, len(s.due))])
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), more
}

// Snapshot returns the state as it stands between two entries. It copies only
// the pointers of the shards; what is written later goes to clones.
func (s *State) Snapshot() *Snapshot {
	if !seeded.On(seeded.SnapshotLive) {
		s.epoch++
	}
	return &Snapshot{now: s.now, generation: s.generation, shards: slices.Clone(s.shards)}
}

// A Snapshot is an immutable view of a State; safe for concurrent use, but see
// Digest.
type Snapshot struct {
	now        time.Duration
	generation uint32
	shards     []*shard
}

// Now returns the log time of the snapshot.
func (v *Snapshot) Now() time.Duration { return v.now }

// Generation returns the generation of fencing tokens.
func (v *Snapshot) Generation() uint32 { return v.generation }

// All iterates over the stored records in a fixed order, the same for equal
// states on all nodes. They are as they were written: see Record.At.
func (v *Snapshot) All() iter.Seq2[Key, Record] {
	return func(yield func(Key, Record) bool) {
		var keys []Key
		for _, sh := range v.shards {
			keys = v.keys(keys[:0], sh)
			for _, k := range keys {
				if !yield(k, sh.records[k].record) {
					return
				}
			}
		}
	}
}

// keys appends the keys of a shard in the order of snapshots, which is that of
// whole states.
func (v *Snapshot) keys(keys []Key, sh *shard) []Key {
	if len(sh.records) == 0 { // as most are where there is little
		return keys
	}
	for k := range sh.records { // order-free: sorted below
		keys = append(keys, k)
	}
	if len(v.shards) == 1<<shardBits {
		slices.Sort(keys)
	} else {
		slices.SortFunc(keys, func(a, b Key) int {
			return cmp.Or(cmp.Compare(placeOf([]byte(a)), placeOf([]byte(b))), cmp.Compare(a, b))
		})
	}
	return keys
}

// Find returns, in the order of keys, the first limit records after a key that
// have the prefix and that keep accepts, as they stand at the snapshot's time.
func (v *Snapshot) Find(prefix, after Key, limit int, keep func(Key, Record) bool) []Entry {
	var found []Entry
	for _, sh := range v.shards {
		if len(sh.records) == 0 {
			continue
		}
		for k, c := range sh.records { // order-free: sorted and cut
			if len(k) < len(prefix) || k[:len(prefix)] != prefix || k <= after {
				continue
			}
			if len(found) >= 2*limit {
				found = first(found, limit)
				if k > found[len(found)-1].Key {
					continue
				}
			}
			if r := c.record.At(v.now); r != nil && (keep == nil || keep(k, r)) {
				found = append(found, Entry{k, r})
			}
		}
	}
	return first(found, limit)
}

func first(found []Entry, limit int) []Entry {
	slices.SortFunc(found, func(a, b Entry) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return found[:min(limit, len(found))]
}

// An Entry is a record and its key.
type Entry struct {
	Key    Key
	Record Record
}

// ApplyAll applies the commands of one entry at a time, in order, and returns
// one result for each. Time never runs backwards: an earlier at counts as the
// time of the latest entry.
func (s *State) ApplyAll(at time.Duration, cmds []Command) []Result {
	return s.ApplyInto(nil, at, cmds)
}

// ApplyInto is ApplyAll whose results stand in room, if that has enough capacity:
// results are large, and of most entries nobody reads them.
func (s *State) ApplyInto(room []Result, at time.Duration, cmds []Command) []Result {
	if seeded.On(seeded.TimeInApply) {
		at += seeded.Now() % time.Second
	}
	s.now = max(s.now, at)
	s.entry++
	results := room
	if cap(results) < len(cmds) {
		results = make([]Result, len(cmds))
	} else {
		results = results[:len(cmds)]
		clear(results)
	}
	for i, c := range cmds {
		s.lapsed, s.folds = nil, nil
		s.guard(c)
		s.startLink(c)
		if !s.staleAccess(c, &results[i]) && !s.staleSession(c, &results[i]) {
			s.apply(c, &results[i])
			s.endLink(&results[i])
		}
		results[i].Lapsed, results[i].Folds = s.lapsed, s.folds
	}
	s.touched = nil
	for _, w := range s.written {
		s.noteDue(w.shard, w.record) // as the entry left it
	}
	clear(s.written)
	s.written = s.written[:0]
	return results
}

func (s *State) apply(c Command, r *Result) {
	switch c := c.(type) {
	case *Open:
		s.open(c, r)
	case *Begin:
		s.begin(c, r)
	case *End:
		s.end(c, r)
	case *Cancel:
		s.cancel(c, r)
	case *Close:
		s.close(c, r)
	case *Acquire:
		s.acquire(c, r)
	case *Renew:
		s.renew(c, r)
	case *Release:
		s.release(c, r)
	case *TakeRate:
		s.takeRate(c, r)
	case *Tick:
		s.tick(c)
	case *Swept:
		s.swept(c)
	case *Restore:
		s.restore()
	case request:
		s.request(c, r)
	default:
		// Diverging silently would be worse.
		panic(fmt.Sprintf("session: unknown command %T", c))
	}
}
