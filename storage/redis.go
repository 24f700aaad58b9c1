package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
)

// Redis is a Store whose order is that of a Redis. Any number of nodes share
// one. It has no index of its own: Index is 0 in all answers.
//
// A node applies commands itself, to the records that they touch, and swaps the
// outcome in; swap.lua refuses if another node has changed one of them. So the
// rules stand in package session alone.
//
// What it promises is what Redis keeps. One primary with appendfsync always
// loses nothing that was acknowledged. With replicas that may become the
// primary, or appendfsync everysec, what was acknowledged last may be lost;
// this is noticed (see epoch), and then commands are refused for
// RedisConfig.Quarantine, so that no slot is given out twice. After that all
// leases have ended, the sessions from before are closed, and ids with a time
// from before are refused as stale. Texts and numbers of the storage protocol
// may have older values then. It is not noticed if all nodes end, the data is
// lost, and then a node starts.
type Redis struct {
	cfg     RedisConfig
	log     *slog.Logger
	metrics *redisMetrics
	client  redis.UniversalClient
	name    string // of this process: node and a random part
	draw    string // of this process, in its stamps

	cache  *cache
	rounds atomic.Uint64 // stamps given out
	lost   atomic.Uint64 // swaps lost to other nodes

	changed chan struct{}
	claims  atomic.Pointer[func(session.Key, *session.Pool) []Claim]
	waits   atomic.Int64 // until when this node has somebody who waits, in monotonic time
	hinted  atomic.Int64 // when another node last said that something changed
	refused atomic.Pointer[error]

	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup
	closed bool // guarded by mu

	mu      sync.Mutex
	lanes   map[string]*lane
	places  map[string]*place
	domains map[string]*domain // by tag
	listed  map[string]bool    // namespaces known to stand in the set of all
}

// OpenRedis connects to Redis and checks that it can keep the promise. The error
// says what is wrong with it, and the command that repairs it.
func OpenRedis(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	quiet.Do(func() { redis.SetLogger(libraryLog{cfg.Logger}) })
	client, err := cfg.client()
	if err != nil {
		return nil, err
	}
	draw := make([]byte, 8)
	rand.Read(draw)
	r := &Redis{
		cfg: cfg, log: cfg.Logger, client: client, draw: string(draw), name: cfg.Node + "/" + rand.Text(),
		metrics: newRedisMetrics(), cache: newCache(cfg.CacheBytes), changed: make(chan struct{}, 1),
		lanes: map[string]*lane{}, places: map[string]*place{}, domains: map[string]*domain{}, listed: map[string]bool{},
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	if cfg.Registry != nil {
		client.AddHook(scriptWatch{r.metrics})
		if err := r.metrics.register(cfg.Registry, r); err != nil {
			return nil, errors.Join(fmt.Errorf("storage: Redis: Registry: %w", err), r.Close())
		}
	}
	if err := r.check(ctx, true); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if !r.clustered() {
		if err := r.domain("").inspect(ctx, nil); err != nil {
			return nil, errors.Join(fmt.Errorf("storage: Redis: %w", err), r.Close())
		}
	}
	r.goWork(r.keepTime)
	r.goWork(r.keepHouse)
	r.goWork(r.keepChecking)
	r.goWork(r.listen)
	return r, nil
}

// quiet gives the lines that go-redis writes to standard error to the log of the
// first store: the library has one logger for all. They are about errors that it
// also returns.
var quiet sync.Once

type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(_ context.Context, format string, v ...any) {
	l.log.Debug("go-redis: " + fmt.Sprintf(format, v...))
}

func (r *Redis) clustered() bool { return len(r.cfg.Cluster) > 0 }

// goWork runs something until the store is closed.
func (r *Redis) goWork(f func()) {
	if r.begin() {
		go func() {
			defer r.work.Done()
			f()
		}()
	}
}

// begin counts something that Close waits for; false if it is too late.
func (r *Redis) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Add(1)
	return true
}

// Close implements Store. What is under way ends, answered not applied or
// unknown.
func (r *Redis) Close() error {
	r.mu.Lock()
	was := r.closed
	r.closed = true
	r.mu.Unlock()
	if was {
		return nil
	}
	r.stop()
	r.work.Wait()
	return r.client.Close()
}

// Changed implements Store. It is sent to after rounds of this node, when
// another node says that somebody's turn has come, and every 250 ms while
// somebody on this node waits, since what Redis passes on to others may be lost.
func (r *Redis) Changed() <-chan struct{} { return r.changed }

func (r *Redis) tell() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// domain returns the domain of a namespace.
func (r *Redis) domain(ns string) *domain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.domainLocked(ns)
}

func (r *Redis) domainLocked(ns string) *domain {
	tag := "{" + r.cfg.Prefix + "}"
	if r.clustered() {
		tag = r.cfg.tag(ns)
	} else {
		ns = ""
	}
	d := r.domains[tag]
	if d == nil {
		d = r.newDomain(tag, ns)
		r.domains[tag] = d
	}
	return d
}

func (r *Redis) allDomains() []*domain {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*domain, 0, len(r.domains))
	for _, d := range r.domains {
		all = append(all, d)
	}
	return all
}

func (r *Redis) place(ns string) *place {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.places[ns]
	if p == nil {
		p = &place{ns: ns, tag: r.cfg.tag(ns), d: r.domainLocked(ns)}
		r.places[ns] = p
	}
	return p
}

func (r *Redis) lane(ns string) *lane {
	p := r.place(ns)
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[ns]
	if l == nil {
		l = newLane(r, p)
		r.lanes[ns] = l
	}
	return l
}

// Get implements Store. It writes nothing. A Nearby read is of what this node saw last, at most 250 ms
// ago; a Latest read comes with all ids that the record remembers.
func (r *Redis) Get(ctx context.Context, k session.Key, read Read) (_ Found, err error) {
	defer func() { err = Unread(err) }()
	e, p, err := r.reads(ctx, k.Namespace())
	if err != nil || p == nil {
		return Found{Now: latest(r.allDomains())}, err
	}
	if read == Nearby {
		if x, ok := r.cache.get(k); ok && r.recent(x) {
			return foundAt(x.record, p), nil
		}
	}
	w := want{key: k}
	if read == Latest && session.HasParts(k) {
		w.parts = allParts
	}
	since := r.cfg.monotonic()
	found, err := r.loadAgain(ctx, p, e, []want{w}, true)
	if err != nil {
		return Found{}, err
	}
	x := found[0]
	r.cache.putRead(k, x, since)
	if read == Latest {
		whole(p, k, &x)
	}
	if x.bad != nil {
		r.setAside(p, e, k, x.bad)
		return Found{}, x.bad
	}
	return foundAt(x.record, p), nil
}

// whole puts the ids of a record together whose parts are all there.
func whole(p *place, k session.Key, x *entry) {
	if x.record == nil || x.bad != nil {
		return
	}
	r, err := session.Join(x.record)
	if err != nil {
		x.bad = &badRecord{p.record(k), err}
		return
	}
	x.record = r
}

// reads returns the place of a namespace, and the epoch under which it is read;
// no place if nothing was ever written there.
func (r *Redis) reads(ctx context.Context, ns string) (*epoch, *place, error) {
	if !r.clustered() { // else of which nothing is known before it is looked at
		if _, err := r.domain(ns).serving(ctx); err != nil {
			return nil, nil, err
		}
	}
	if known, err := r.know(ctx, ns); err != nil || !known {
		return nil, nil, err
	}
	p := r.place(ns)
	e, err := p.d.serving(ctx)
	return e, p, err
}

// GetAll implements Gatherer. It returns records of one namespace as they all
// stood at one instant, which reflects every change acknowledged before the
// call. They come without the ids that they remember.
func (r *Redis) GetAll(ctx context.Context, keys ...session.Key) (_ []Found, err error) {
	defer func() { err = Unread(err) }()
	out := make([]Found, len(keys))
	if len(keys) == 0 {
		return out, nil
	}
	wants := make([]want, len(keys))
	for i, k := range keys {
		if k.Namespace() != keys[0].Namespace() {
			return nil, Invalid(fmt.Errorf("%s and %s are in two namespaces; ask for those of one", keys[0], k))
		}
		wants[i].key = k
	}
	e, p, err := r.reads(ctx, keys[0].Namespace())
	if err != nil {
		return nil, err
	}
	if p == nil {
		for i := range out {
			out[i].Now = latest(r.allDomains())
		}
		return out, nil
	}
	found, err := r.loadAgain(ctx, p, e, wants, true)
	if err != nil {
		return nil, err
	}
	now, _ := p.d.clock.now()
	for i, x := range found {
		if x.bad != nil {
			r.setAside(p, e, keys[i], x.bad)
			return nil, x.bad
		}
		out[i].Now = now
		if x.record != nil {
			out[i].Record = x.record.At(now)
		}
	}
	return out, nil
}

// recent reports whether an entry is good enough for a read nearby.
func (r *Redis) recent(x entry) bool {
	return x.seen >= time.Duration(r.hinted.Load()) && r.cfg.monotonic()-x.seen < beatEvery
}

func foundAt(x session.Record, p *place) Found {
	now, _ := p.d.clock.now()
	f := Found{Now: now}
	if x != nil {
		f.Record = x.At(now)
	}
	return f
}

// loadAgain loads, and again under the epoch that holds if it has changed.
func (r *Redis) loadAgain(ctx context.Context, p *place, e *epoch, wants []want, strict bool) ([]entry, error) {
	for {
		trip, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		found, status, err := r.load(trip, p, e, wants, strict)
		cancel()
		if err != nil {
			if redisErrorKind(err, "WRONGTYPE") {
				r.reportTypes(p, wants)
			}
			return nil, err
		}
		if status == replyOK {
			return found, nil
		}
		if err := p.d.note(ctx, e, status); err != nil {
			return nil, err
		}
		if e, err = p.d.serving(ctx); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// Save implements Store; see save.
func (r *Redis) Save(ctx context.Context, w io.Writer) error {
	state, err := r.save(ctx)
	if err != nil {
		return Unread(err)
	}
	return session.WriteSnapshot(w, state.Snapshot())
}

// RedisStats counts what a node did since it was opened.
type RedisStats struct {
	Rounds uint64 // swaps made ready; those not sent were decided ahead of a lost one
	Lost   uint64 // how many came too late and were done again
}

// Stats returns the counts.
func (r *Redis) Stats() RedisStats { return RedisStats{Rounds: r.rounds.Load(), Lost: r.lost.Load()} }
