package sweep

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// How sessions are closed as killed: one, those of a KILL, and those of all KILLs
// that a node finds unfinished.

const (
	// page is how many sessions are closed in one go.
	page = 128
	// rounds bounds how often a session is closed again because it was not known
	// in which pools it has slots. Nothing new is admitted into it, so that the
	// second time is right unless two nodes close it.
	rounds = 8
	// every is about how often a node looks for KILLs that are not swept, and patience
	// how long it works on one before it looks anew.
	every    = time.Second
	patience = 30 * time.Second
)

// A Sweeper closes sessions that were killed.
type Sweeper struct {
	store  storage.Store
	log    *slog.Logger
	killed prometheus.Counter // sessions that were closed

	stop    context.CancelFunc
	stopped chan struct{}

	mu   sync.Mutex
	busy map[session.Key]int // records of signals that a request of this node sweeps
}

// New sweeps what others have left, until it is closed.
func New(store storage.Store, log *slog.Logger, killed prometheus.Counter) *Sweeper {
	ctx, stop := context.WithCancel(context.Background())
	s := &Sweeper{store: store, log: log, killed: killed, stop: stop, stopped: make(chan struct{}), busy: map[session.Key]int{}}
	go s.run(ctx)
	return s
}

// Close ends the work. What is left to be swept another node finds, or this one
// when it is started again.
func (s *Sweeper) Close() {
	s.stop()
	<-s.stopped
}

func (s *Sweeper) run(ctx context.Context) {
	defer close(s.stopped)
	left, ok := s.store.(storage.Sweeping)
	if !ok {
		return
	}
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		for _, k := range left.Unswept(ctx) {
			s.finish(ctx, k)
		}
		timer.Reset(every/2 + rand.N(every)) // so that nodes do not all look at once
	}
}

// finish sweeps the KILLs of a namespace that nobody has swept.
func (s *Sweeper) finish(ctx context.Context, k session.Key) {
	s.mu.Lock()
	busy := s.busy[k] > 0
	s.mu.Unlock()
	if busy {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := s.store.Get(ctx, k, storage.Nearby)
	x, _ := found.Record.(*session.Signals)
	if err != nil || x == nil {
		return // looked at again
	}
	for i := range x.Halts {
		if h := &x.Halts[i]; h.Signal == session.Kill && !h.Swept {
			if _, err := s.sweep(ctx, k.Namespace(), h); err != nil && ctx.Err() == nil {
				s.log.Warn("the sessions of a KILL are not all closed yet; it is tried again", "namespace", k.Namespace(), "error", err)
			}
		}
	}
}

// Done is what came of a sweep.
type Done struct {
	Closed   int   // sessions
	Released int64 // leases of theirs
}

// Sweep closes all sessions of a KILL that stands, and marks it as swept. With an
// error it is left to the next look of some node.
func (s *Sweeper) Sweep(ctx context.Context, ns string, h *session.Halt) (Done, error) {
	k := session.SignalsKey(ns)
	s.mu.Lock()
	s.busy[k]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy[k]--; s.busy[k] == 0 {
			delete(s.busy, k)
		}
	}()
	return s.sweep(ctx, ns, h)
}

// sweep lists the sessions from a state behind the KILL, so that there are none
// that it does not see: from the KILL on none is opened. One that cannot be closed keeps no
// other from it, and the KILL from being marked.
func (s *Sweeper) sweep(ctx context.Context, ns string, h *session.Halt) (done Done, err error) {
	read := storage.Latest
	if seeded.On(seeded.SweepEarly) {
		read = storage.Nearby
	}
	view, err := s.store.View(ctx, ns, read)
	if err != nil {
		return done, err
	}
	prefix := session.Prefix(session.KindSession, ns)
	keep := func(_ session.Key, r session.Record) bool {
		x := r.(*session.Session)
		return x.Phase == session.PhaseOpen && h.Target.Hits(x.Agent.Value(), x.Policy.Value())
	}
	for after := prefix; ; {
		found, unread := view.Find(prefix, after, page, keep)
		if unread != nil {
			return done, cmp.Or(err, unread)
		}
		// Asked behind the look: another node may have swept it since, and sessions been
		// opened behind a CONTINUE. While it stands unswept none are.
		if stands, unread := s.stands(ctx, ns, h); unread != nil || !stands {
			return done, cmp.Or(err, unread)
		}
		cmds := make([]*session.Close, len(found))
		for i, e := range found {
			cmds[i] = closing(e.Key, e.Record.(*session.Session), h.Reason)
		}
		err = cmp.Or(err, s.close(ctx, cmds, &done))
		if len(found) < page {
			break
		}
		if ctx.Err() != nil {
			return done, cmp.Or(err, ctx.Err())
		}
		after = found[len(found)-1].Key
	}
	if err != nil {
		return done, err
	}
	return done, s.apply(ctx, &session.Swept{NS: ns, Target: h.Target, Number: h.Number})
}

// stands reports whether a KILL has sessions to close still.
func (s *Sweeper) stands(ctx context.Context, ns string, h *session.Halt) (bool, error) {
	found, err := s.store.Get(ctx, session.SignalsKey(ns), storage.Latest)
	x, _ := found.Record.(*session.Signals)
	return x != nil && slices.ContainsFunc(x.Halts, func(now session.Halt) bool {
		return now.Signal == session.Kill && !now.Swept && now.Target == h.Target && now.Number == h.Number
	}), err
}

// Session closes one session that was killed.
func (s *Sweeper) Session(ctx context.Context, ns, id, reason string) (done Done, err error) {
	k := session.SessionKey(ns, id)
	found, err := s.store.Get(ctx, k, storage.Latest) // one that this node has not seen yet would be spared
	if err != nil {
		return done, err
	}
	x, _ := found.Record.(*session.Session)
	if x == nil {
		return done, nil
	}
	return done, s.close(ctx, []*session.Close{closing(k, x, reason)}, &done)
}

func closing(k session.Key, x *session.Session, reason string) *session.Close {
	return &session.Close{
		NS: k.Namespace(), Session: k.Name(), Opened: x.Opened, Digest: x.Pin.Digest, Pools: x.OpenPools(), Killed: true, Reason: reason, Asked: x.AskedCalls(),
	}
}

// close closes sessions until each is closed, or gone. Pools that a session turns
// out to have slots in are added to those that are named. Another session that has the id
// of one by then was opened behind the KILL, which is none of its own. The error is that of
// the first which could not be closed.
func (s *Sweeper) close(ctx context.Context, cmds []*session.Close, done *Done) (failed error) {
	for range rounds {
		if len(cmds) == 0 {
			return failed
		}
		all := make([]session.Command, len(cmds))
		for i, c := range cmds {
			all[i] = c
		}
		again := cmds[:0:0]
		for i, a := range s.store.Apply(ctx, all...) {
			switch res := &a.Result; {
			case a.Outcome != storage.Applied:
				failed = cmp.Or(failed, a.Failure())
			case res.Code == session.StalePremise:
				next := *cmds[i]
				next.Digest, next.Pools, next.Asked = res.Digest, slices.Clone(next.Pools), res.Names
				for _, p := range res.Pools {
					if !slices.Contains(next.Pools, p) {
						next.Pools = append(next.Pools, p)
					}
				}
				again = append(again, &next)
			case res.Code == session.Done && !res.Repeat:
				done.Closed++
				done.Released += res.Value
				s.killed.Inc()
			}
		}
		cmds = again
	}
	if len(cmds) > 0 {
		return cmp.Or(failed, errMoved)
	}
	return failed
}

var errMoved = errors.New("sweep: what the sessions hold kept changing")

func (s *Sweeper) apply(ctx context.Context, c session.Command) error {
	return s.store.Apply(ctx, c)[0].Failure()
}
