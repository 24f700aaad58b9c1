package redis

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
	"golang.org/x/sync/singleflight"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// A Store is a storage.Store whose order is that of a Redis. Any number of nodes share
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
// Config.Quarantine, so that no slot is given out twice. After that all
// leases have ended, the sessions from before are closed, and ids with a time
// from before are refused as stale. Texts and numbers of the storage protocol
// may have older values then. It is not noticed if all nodes end, the data is
// lost, and then a node starts.
type Store struct {
	storage.Lapses

	cfg     Config
	keys    wire.Prefix
	log     *slog.Logger
	metrics *metrics
	client  redis.UniversalClient
	name    string // of this process: node and a random part
	draw    string // of this process, in its stamps

	cache  *cache
	counts sync.Map      // of namespaces, by their names: *tallied
	rounds atomic.Uint64 // stamps given out
	lost   atomic.Uint64 // swaps lost to other nodes
	looks  singleflight.Group

	seen    seenList
	settled storage.Settled
	changed chan struct{}
	claims  atomic.Pointer[func(session.Key, *session.Pool) []storage.Claim]
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

// Open connects to Redis and checks that it can keep the promise. The error
// says what is wrong with it, and the command that repairs it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
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
	r := &Store{
		cfg: cfg, keys: wire.Prefix(cfg.Prefix), log: cfg.Logger, client: client, draw: string(draw), name: cfg.Node + "/" + rand.Text(),
		metrics: newMetrics(), cache: newCache(cfg.CacheBytes), changed: make(chan struct{}, 1),
		lanes: map[string]*lane{}, places: map[string]*place{}, domains: map[string]*domain{}, listed: map[string]bool{},
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	if cfg.Registry != nil {
		client.AddHook(scriptWatch{r.metrics})
		if err := r.metrics.register(cfg.Registry, r); err != nil {
			return nil, errors.Join(fmt.Errorf("redis: Registry: %w", err), r.Close())
		}
	}
	if err := r.check(ctx, true); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if !r.clustered() {
		if err := r.domain("").inspect(ctx, nil); err != nil {
			return nil, errors.Join(fmt.Errorf("redis: %w", err), r.Close())
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

func (r *Store) clustered() bool { return len(r.cfg.Cluster) > 0 }

// goWork runs something until the store is closed.
func (r *Store) goWork(f func()) {
	if r.begin() {
		go func() {
			defer r.work.Done()
			f()
		}()
	}
}

// begin counts something that Close waits for; false if it is too late.
func (r *Store) begin() bool {
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
func (r *Store) Close() error {
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
func (r *Store) Changed() <-chan struct{} { return r.changed }

func (r *Store) tell() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// domain returns the domain of a namespace.
func (r *Store) domain(ns string) *domain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.domainLocked(ns)
}

func (r *Store) domainLocked(ns string) *domain {
	tag := r.keys.Shared()
	if r.clustered() {
		tag = r.keys.Tag(ns)
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

func (r *Store) allDomains() []*domain {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*domain, 0, len(r.domains))
	for _, d := range r.domains {
		all = append(all, d)
	}
	return all
}

// domainOf returns the domain of a namespace, nil if this node has none. It makes
// none: that would be kept, and get an epoch, for each name that somebody asks for.
func (r *Store) domainOf(ns string) *domain {
	if !r.clustered() {
		return r.domain(ns)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.domains[r.keys.Tag(ns)]
}

// generation returns that at which a namespace stands; of one that there is not, the
// latest of all.
func (r *Store) generation(ns string) (latest uint32) {
	if d := r.domainOf(ns); d != nil {
		return d.current().generation
	}
	for _, d := range r.allDomains() {
		latest = max(latest, d.current().generation)
	}
	return latest
}

func (r *Store) place(ns string) *place {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.places[ns]
	if p == nil {
		d := r.domainLocked(ns)
		p = &place{wire.NewPlace(d.tag, ns, r.keys.Tag(ns)), d}
		r.places[ns] = p
	}
	return p
}

func (r *Store) lane(ns string) *lane {
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
func (r *Store) Get(ctx context.Context, k session.Key, read storage.Read) (_ storage.Found, err error) {
	defer func() { err = storage.Unread(err) }()
	e, p, err := r.reads(ctx, k.Namespace())
	if err != nil || p == nil {
		return storage.Found{Now: latest(r.allDomains()), Generation: r.generation(k.Namespace())}, err
	}
	if read == storage.Nearby {
		if x, ok := r.cache.get(k); ok && r.recent(x) {
			return foundAt(x.Record, p), nil
		}
	}
	w := wire.Want{Key: k}
	if read == storage.Latest && session.HasParts(k) {
		w.Parts = wire.AllParts
	}
	since := r.cfg.monotonic()
	found, err := r.loadAgain(ctx, p, e, []wire.Want{w}, true)
	if err != nil {
		return storage.Found{}, err
	}
	x := found[0]
	r.cache.putRead(k, x, since)
	if read == storage.Latest {
		whole(p, k, &x)
	}
	if x.Bad != nil {
		r.setAside(p, e, k, x.Bad)
		return storage.Found{}, x.Bad
	}
	return foundAt(x.Record, p), nil
}

// whole puts the ids of a record together whose parts are all there.
func whole(p *place, k session.Key, x *wire.Entry) {
	if x.Record == nil || x.Bad != nil {
		return
	}
	r, err := session.Join(x.Record)
	if err != nil {
		x.Bad = &wire.BadRecord{Key: p.Record(k), Err: err}
		return
	}
	x.Record = r
}

// reads returns the place of a namespace, and the epoch under which it is read;
// no place if nothing was ever written there.
func (r *Store) reads(ctx context.Context, ns string) (*epoch, *place, error) {
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
func (r *Store) GetAll(ctx context.Context, keys ...session.Key) (_ []storage.Found, err error) {
	defer func() { err = storage.Unread(err) }()
	out := make([]storage.Found, len(keys))
	if len(keys) == 0 {
		return out, nil
	}
	wants := make([]wire.Want, len(keys))
	for i, k := range keys {
		if k.Namespace() != keys[0].Namespace() {
			return nil, storage.Invalid(fmt.Errorf("%s and %s are in two namespaces; ask for those of one", keys[0], k))
		}
		wants[i].Key = k
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
		if x.Bad != nil {
			r.setAside(p, e, keys[i], x.Bad)
			return nil, x.Bad
		}
		out[i].Now = now
		if x.Record != nil {
			out[i].Record = x.Record.At(now)
		}
	}
	return out, nil
}

// recent reports whether an entry is good enough for a read nearby.
func (r *Store) recent(x wire.Entry) bool {
	return x.Seen >= time.Duration(r.hinted.Load()) && r.cfg.monotonic()-x.Seen < beatEvery
}

func foundAt(x session.Record, p *place) storage.Found {
	now, _ := p.d.clock.now()
	f := storage.Found{Now: now, Generation: p.d.current().generation}
	if x != nil {
		f.Record = x.At(now)
	}
	return f
}

// loadAgain loads, and again under the epoch that holds if it has changed.
func (r *Store) loadAgain(ctx context.Context, p *place, e *epoch, wants []wire.Want, strict bool) ([]wire.Entry, error) {
	found, _, err := r.loadAgainWith(ctx, p, e, wants, wire.CareOf(strict))
	return found, err
}

// loadAgainWith is loadAgain. Where it is to be looked at and there is more than is wanted,
// it is not complete, and nothing is found.
func (r *Store) loadAgainWith(ctx context.Context, p *place, e *epoch, wants []wire.Want, care wire.Care) (found []wire.Entry, complete bool, err error) {
	for {
		trip, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		found, status, err := r.loadWith(trip, p, e, wants, care)
		cancel()
		if err != nil {
			if errorKind(err, "WRONGTYPE") {
				r.reportTypes(p, wants)
			}
			return nil, false, err
		}
		if status == wire.ReplyOK || status == wire.ReplyMore {
			return found, status == wire.ReplyOK, nil
		}
		if err := p.d.note(ctx, e, status); err != nil {
			return nil, false, err
		}
		if e, err = p.d.serving(ctx); err != nil {
			return nil, false, err
		}
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
	}
}

// Save implements Store; see save.
func (r *Store) Save(ctx context.Context, w io.Writer) error {
	state, err := r.save(ctx)
	if err != nil {
		return storage.Unread(err)
	}
	return session.WriteSnapshot(w, state.Snapshot())
}

// Stats counts what a node did since it was opened.
type Stats struct {
	Rounds uint64 // swaps made ready; those not sent were decided ahead of a lost one
	Lost   uint64 // how many came too late and were done again
}

// Stats returns the counts.
func (r *Store) Stats() Stats { return Stats{Rounds: r.rounds.Load(), Lost: r.lost.Load()} }
