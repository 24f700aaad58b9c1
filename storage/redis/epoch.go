package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage/redis/internal/wire"
)

// An epoch says whose data this is: a number drawn when it began, and the
// primary that served it. Every script compares both, so that data that was
// emptied, replaced or rolled back by a failover is noticed before anything is
// read of it or written to it.
type epoch struct {
	state      string
	id         string
	generation uint32 // of fencing tokens
	replid     string // replication id of the primary
	runid      string // of its process
	until      time.Duration
	since      uint64 // swaps that the data had when that primary was first seen
	text       string // as it is stored; derived
}

// epochFormat is the format of all that is stored, which stands in its epoch: a
// build reads its own alone.
const epochFormat = 4

// The states of an epoch.
const (
	epochOpen = "open"
	// epochShut is quarantine, until the log time until.
	epochShut = "shut"
	// epochRestore is while a snapshot is being put in place. It ends with the
	// restore, or with the next one if that was cut off, or a part of it was lost.
	epochRestore = "restore"
)

func (e epoch) String() string {
	return fmt.Sprintf("%d %s %s %d %s %s %d %d", epochFormat, e.state, e.id, e.generation, e.replid, e.runid, int64(e.until), e.since)
}

// with returns the epoch with its text.
func (e epoch) with() *epoch { e.text = e.String(); return &e }

func parseEpoch(text string) (*epoch, error) {
	f := strings.Split(text, " ")
	format, err := strconv.Atoi(f[0])
	switch {
	case err == nil && format > epochFormat:
		return nil, fmt.Errorf("the data is of format %d, which a newer build wrote, and this one reads format %d: start that build, or one that is newer still", format, epochFormat)
	case err == nil && format < epochFormat:
		return nil, fmt.Errorf("the data is of format %d, which an older build wrote, and this one reads format %d alone and converts nothing: go on with that build, or use another prefix or an empty Redis", format, epochFormat)
	case err != nil || len(f) != 8:
		return nil, fmt.Errorf("the epoch is %q, which this build cannot read", text)
	}
	generation, err := strconv.ParseUint(f[3], 10, 32)
	until, err2 := strconv.ParseInt(f[6], 10, 64)
	since, err3 := strconv.ParseUint(f[7], 10, 64)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("the epoch is %q: %w", text, err)
	}
	if f[1] != epochOpen && f[1] != epochShut && f[1] != epochRestore {
		return nil, fmt.Errorf("the epoch is %q: unknown state", text)
	}
	return &epoch{f[1], f[2], uint32(generation), f[4], f[5], time.Duration(until), since, text}, nil
}

// A primary is what a server says of itself.
type primary struct {
	role, replid, before, runid, version string
}

// promoted reports whether it was a replica since its process began.
func (p primary) promoted() bool { return strings.Trim(p.before, "0") != "" }

func parseInfo(texts ...string) map[string]string {
	info := map[string]string{}
	for _, line := range strings.Split(strings.Join(texts, "\n"), "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// found is what a node sees of a domain when it looks whose data it is.
type found struct {
	epoch  *epoch // nil: none
	clock  time.Duration
	seq    uint64
	mark   uint64 // what this node has left among the marks
	other  bool   // there is other data of ours, or was, though no epoch
	maimed string // what of the data is gone, though there is an epoch
	primary
}

// A knowledge is what a node knows of a domain from before.
type knowledge struct {
	epoch *epoch // nil: nothing
	swaps uint64 // the most that it has seen
	mark  uint64 // what it was told that it has left among the marks
}

// A ruling is what follows from what was found: serve it, write another epoch,
// or refuse.
type ruling struct {
	epoch *epoch
	write bool
	why   string // acknowledged writes may be lost, and this tells it
	err   error
}

// judge decides whether the data is what this node knows. What was acknowledged
// and is not there is noticed by
//
//   - the number of swaps, if there are fewer than the node has seen;
//   - the number that there were at the last restart of Redis: the node may have
//     been away, and others, who had seen less, have written since;
//   - the node's mark, which each of its swaps and beats brings up to the number of
//     swaps: a copy from before has an older one, whatever was written since;
//   - the epoch: none, one of nobody who knew the data, or one from before;
//   - what the server says of itself: it was a replica, and may be behind.
func judge(f found, know knowledge, now, quarantine time.Duration) ruling {
	if f.role != "master" {
		return ruling{err: fmt.Errorf("the Redis that answers is a %s; connect to the primary", f.role)}
	}
	known := know.epoch
	fault := func(format string, args ...any) ruling {
		e := epoch{state: epochShut, id: drawID(), replid: f.replid, runid: f.runid, since: f.seq}
		e.until = max(now, f.clock) + max(quarantine, 0)
		if left := f.epoch; left != nil && left.state == epochRestore || left == nil && known != nil && known.state == epochRestore {
			// What is left is neither the old data nor the new, and waiting makes it neither.
			e.state = epochRestore
		}
		for _, old := range []*epoch{known, f.epoch} {
			if old != nil {
				e.generation = max(e.generation, old.generation)
			}
		}
		return ruling{epoch: e.with(), write: true, why: fmt.Sprintf(format, args...)}
	}
	if f.epoch == nil {
		if known == nil && !f.other {
			return ruling{write: true, epoch: epoch{state: epochOpen, id: drawID(), replid: f.replid, runid: f.runid}.with()}
		}
		return fault("the data is gone: the key of the epoch is missing, or the clock")
	}
	same := known != nil && f.epoch.id == known.id
	moved := known != nil && (f.epoch.replid != known.replid || f.epoch.runid != known.runid)
	switch {
	case known != nil && !same && f.epoch.state == epochOpen && f.epoch.generation == known.generation:
		// What follows on quarantine or restore has a generation above this.
		return fault("a node that knew nothing of the data has begun anew: it was emptied or replaced")
	case known != nil && !same && f.epoch.generation < known.generation:
		return fault("the data is of an epoch from before the one that this node knows: it was emptied or replaced")
	case same && f.seq < know.swaps:
		return fault("the data is older than what this node has seen: %d changes of %d", f.seq, know.swaps)
	case same && moved && f.epoch.since < know.swaps:
		return fault("Redis had lost changes when it was restarted: it had %d of %d", f.epoch.since, know.swaps)
	case same && f.mark < know.mark:
		return fault("the data was taken back to before a change that this node made: %d instead of %d", f.mark, know.mark)
	case f.epoch.state == epochOpen && f.maimed != "":
		return fault("%s", f.maimed)
	case f.epoch.replid == f.replid && f.epoch.runid == f.runid:
		return ruling{epoch: f.epoch}
	case f.runid != f.epoch.runid && f.promoted():
		return fault("another Redis was made the primary; what had not reached it is lost")
	case f.replid != f.epoch.replid && f.promoted():
		// By itself a primary draws another replication id only as it forgets the one before.
		return fault("the primary was a replica meanwhile; what it did not get again is lost")
	}
	// The same data: the process was restarted with it, or has drawn another
	// replication id because its last replica is long gone.
	next := *f.epoch
	next.replid, next.runid, next.since = f.replid, f.runid, f.seq
	return ruling{epoch: next.with(), write: true}
}

// DataID implements Store. It is the epoch, so that a loss that was noticed, and a
// restore, begin with another one. It is that which was found last, whatever answers
// now. In a Redis Cluster a namespace has one of its own from its first command on:
// before this node has looked at it there is nothing to name, and to ask makes none.
func (r *Store) DataID(ns string) string {
	if d := r.domainOf(ns); d != nil {
		if e := d.known.Load(); e != nil {
			return e.id
		}
	}
	return ""
}

func drawID() string { return strings.ToLower(rand.Text()) }

// faultGeneration returns a generation of tokens above all that were given out,
// also by nodes that knew of more generations than this one: beside the number
// that is known it looks at the minutes since 2025. They fit the 24 bits of a
// token until 2056.
func faultGeneration(known uint32) uint32 {
	minutes := time.Since(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)) / time.Minute
	return max(known+1, uint32(max(minutes, 0)))
}

// look reads what judge asks for, all of one connection.
func (d *domain) look(ctx context.Context, tx *redis.Tx) (f found, err error) {
	text, err := tx.Get(ctx, d.key("epoch")).Result()
	if err == nil {
		if f.epoch, err = parseEpoch(text); err != nil {
			return f, &wire.BadRecord{Key: d.key("epoch"), Err: err}
		}
	} else if !errors.Is(err, redis.Nil) {
		return f, err
	}
	clock, err := tx.Get(ctx, d.key("clock")).Result()
	if err == nil {
		f.other = true
		f.clock, f.seq, err = wire.ParseClock(clock)
	}
	if err != nil && !errors.Is(err, redis.Nil) && !errors.Is(err, wire.ErrClock) {
		return f, err
	} else if err != nil && f.epoch != nil {
		f.epoch, f.other = nil, true // without its clock it is not the data that it was
	}
	if f.mark, err = d.marked(ctx, tx); err != nil {
		return f, err
	}
	if err := d.lookAside(ctx, tx, &f); err != nil {
		return f, err
	}
	server, err := tx.Info(ctx, "server").Result()
	if err != nil {
		return f, err
	}
	replication, err := tx.Info(ctx, "replication").Result()
	if err != nil {
		return f, err
	}
	info := parseInfo(server, replication)
	f.primary = primary{info["role"], info["master_replid"], info["master_replid2"], info["run_id"], info["redis_version"]}
	if f.replid == "" || f.runid == "" {
		return f, errors.New("INFO does not tell run_id and master_replid; allow INFO to this user")
	}
	return f, nil
}

// marked returns what this node has left among the marks.
func (d *domain) marked(ctx context.Context, tx *redis.Tx) (uint64, error) {
	score, err := tx.ZScore(ctx, d.key("marks"), d.r.name).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return uint64(score), err
}

// lookAside looks at what there is beside the epoch and the clock.
func (d *domain) lookAside(ctx context.Context, tx *redis.Tx, f *found) error {
	beside := []string{d.key("due"), d.key("marks")}
	if !d.r.clustered() {
		n, err := tx.Exists(ctx, d.r.keys.Namespaces()).Result()
		if err != nil {
			return err
		}
		f.other = f.other || n > 0
		if n == 0 && f.seq > 0 {
			f.maimed = "the list of all namespaces is gone"
		}
	}
	n, err := tx.Exists(ctx, beside...).Result()
	f.other = f.other || n > 0
	return err
}
