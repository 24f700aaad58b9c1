package server

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
)

const (
	// leaderCheck is how often it is looked at whether a leader is known.
	leaderCheck = 250 * time.Millisecond
	// leaderlessRetry is when a caller that was refused for want of a leader may
	// ask again.
	leaderlessRetry = 2 * time.Second
)

// A leaderWatch refuses new work at a node that has known no leader for longer
// than an election takes: nothing was proposed, and to say so at once is more
// use than to let the caller wait for as long as it is prepared to. What gives
// something back or reads still waits for the next leader.
type leaderWatch struct {
	cluster  Cluster // nil where the store has no leader
	patience time.Duration
	log      *slog.Logger

	missing atomic.Pointer[string] // why there is none, once patience is over; else nil

	stop  chan struct{}
	once  sync.Once // closes stop
	ended sync.WaitGroup
}

// newLeaderWatch watches for the leader of a cluster until it is closed.
func newLeaderWatch(c Cluster, patience time.Duration, log *slog.Logger) *leaderWatch {
	w := &leaderWatch{cluster: c, patience: patience, log: log, stop: make(chan struct{})}
	if c != nil {
		w.ended.Go(w.watch)
	}
	return w
}

func (w *leaderWatch) watch() {
	t := time.NewTicker(leaderCheck)
	defer t.Stop()
	var since time.Time // when none was first found to be known; zero while one is
	for {
		select {
		case <-w.stop:
			return
		case <-t.C:
		}
		why, missing := w.look()
		switch {
		case !missing:
			since = time.Time{}
			if w.missing.Swap(nil) != nil {
				w.log.Info("there is a leader again: new work is taken")
			}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= w.patience:
			if w.missing.Swap(&why) == nil {
				w.log.Warn("no leader: new sessions, calls, slots, policies and values are refused until there is one; see whether a majority of the nodes runs and reaches each other", "for", w.patience, "health", why)
			}
		}
	}
}

// look reports whether no leader is known, and what the cluster says of that.
func (w *leaderWatch) look() (why string, missing bool) {
	if w.cluster.LeaderAPI() != "" {
		return "", false
	}
	// The leader may be known and its API address not be, yet.
	ctx, cancel := context.WithTimeout(context.Background(), leaderCheck)
	defer cancel()
	s, err := w.cluster.Status(ctx)
	return s.Health, err == nil && s.Leader == ""
}

// admit refuses new work while there is nobody to order it.
func (w *leaderWatch) admit() error {
	why := w.missing.Load()
	if why == nil || w.cluster.LeaderAPI() != "" { // it may just have come
		return nil
	}
	return newError(connect.CodeUnavailable, reasonNotApplied,
		"this node has known no leader for more than "+w.patience.String()+" ("+*why+") and takes nothing new; nothing was applied, send it again with the same id in "+leaderlessRetry.String()+", here or at another node").later(leaderlessRetry)
}

func (w *leaderWatch) close() {
	w.once.Do(func() { close(w.stop) })
	w.ended.Wait()
}
