package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
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
	text       string // as it is stored; derived
}

// The states of an epoch.
const (
	epochOpen = "open"
	// epochShut is quarantine, until the log time until.
	epochShut = "shut"
	// epochRestore is while a snapshot is being put in place. It ends with the
	// restore, or with the next one if that was cut off.
	epochRestore = "restore"
)

func (e epoch) String() string {
	return fmt.Sprintf("1 %s %s %d %s %s %d", e.state, e.id, e.generation, e.replid, e.runid, int64(e.until))
}

// with returns the epoch with its text.
func (e epoch) with() *epoch { e.text = e.String(); return &e }

func parseEpoch(text string) (*epoch, error) {
	f := strings.Split(text, " ")
	if len(f) != 7 || f[0] != "1" {
		return nil, fmt.Errorf("the epoch is %q, which this build cannot read", text)
	}
	generation, err := strconv.ParseUint(f[3], 10, 32)
	until, err2 := strconv.ParseInt(f[6], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("the epoch is %q: %w", text, err)
	}
	if f[1] != epochOpen && f[1] != epochShut && f[1] != epochRestore {
		return nil, fmt.Errorf("the epoch is %q: unknown state", text)
	}
	return &epoch{f[1], f[2], uint32(generation), f[4], f[5], time.Duration(until), text}, nil
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
	epoch *epoch // nil: none
	clock time.Duration
	seq   uint64
	other bool // there is other data of ours, or was, though no epoch
	primary
}

// A ruling is what follows from what was found: serve it, write another epoch,
// or refuse.
type ruling struct {
	epoch *epoch
	write bool
	why   string // acknowledged writes may be lost, and this tells it
	err   error
}

// judge decides whether the data is what this node knows. known is nil if it
// knows none yet; swaps is how many swaps it has seen.
func judge(f found, known *epoch, swaps uint64, now, quarantine time.Duration) ruling {
	if f.role != "master" {
		return ruling{err: fmt.Errorf("the Redis that answers is a %s; connect to the primary", f.role)}
	}
	fault := func(why string) ruling {
		e := epoch{state: epochShut, id: drawID(), replid: f.replid, runid: f.runid}
		e.until = max(now, f.clock) + max(quarantine, 0)
		for _, old := range []*epoch{known, f.epoch} {
			if old != nil {
				e.generation = max(e.generation, old.generation)
			}
		}
		return ruling{epoch: e.with(), write: true, why: why}
	}
	switch {
	case f.epoch == nil && known == nil && !f.other:
		return ruling{write: true, epoch: epoch{state: epochOpen, id: drawID(), replid: f.replid, runid: f.runid}.with()}
	case f.epoch == nil:
		return fault("the data is gone: the key of the epoch is missing")
	case known != nil && f.epoch.id != known.id && f.epoch.state == epochOpen && f.epoch.generation <= known.generation:
		// What follows on quarantine or restore has a generation above this.
		return fault("a node that knew nothing of the data has begun anew: it was emptied or replaced")
	case f.epoch.replid == f.replid && f.epoch.runid == f.runid:
		if known != nil && f.epoch.id == known.id && f.seq < swaps {
			return fault(fmt.Sprintf("the data is older than what this node has written: %d changes of %d", f.seq, swaps))
		}
		return ruling{epoch: f.epoch}
	case f.runid != f.epoch.runid && f.promoted():
		return fault("another Redis was made the primary; what had not reached it is lost")
	case f.replid != f.epoch.replid && f.promoted() && f.before == f.epoch.replid:
		return fault("the primary was a replica meanwhile; what it did not get again is lost")
	case known != nil && f.epoch.id == known.id && f.seq < swaps:
		return fault(fmt.Sprintf("Redis has lost changes: it has %d of %d", f.seq, swaps))
	}
	// The same data: the process was restarted with it, or has drawn another
	// replication id because its last replica is long gone.
	next := *f.epoch
	next.replid, next.runid = f.replid, f.runid
	return ruling{epoch: next.with(), write: true}
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
			return f, &badRecord{d.key("epoch"), err}
		}
	} else if !errors.Is(err, redis.Nil) {
		return f, err
	}
	clock, err := tx.Get(ctx, d.key("clock")).Result()
	if err == nil {
		if f.clock, f.seq, err = parseClock(clock); err != nil {
			return f, &badRecord{d.key("clock"), err}
		}
		f.other = true
	} else if !errors.Is(err, redis.Nil) {
		return f, err
	} else if f.epoch != nil {
		f.epoch, f.other = nil, true // without its clock it is not the data that it was
	}
	n, err := tx.Exists(ctx, d.key("due")).Result()
	if err != nil {
		return f, err
	}
	f.other = f.other || n > 0
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
