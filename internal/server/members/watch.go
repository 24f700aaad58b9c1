package members

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Watch refuses what needs a leader at a node that has known none for
// longer than an election takes: nothing was proposed, and to say so at once is
// more use than to let the caller wait for as long as it is prepared to.
type Watch struct {
	cluster  Cluster // nil where the store has no leader
	patience time.Duration
	log      *slog.Logger

	missing atomic.Pointer[string] // why there is none, once patience is over; else nil

	stop  chan struct{}
	once  sync.Once // closes stop
	ended sync.WaitGroup
}

const (
	// leaderCheck is how often it is looked at whether a leader is known.
	leaderCheck = 250 * time.Millisecond
	// leaderlessRetry is when a caller that was refused for want of a leader may
	// ask again.
	leaderlessRetry = 2 * time.Second
)

// NewWatch makes the watch of a cluster; of none, it refuses nothing.
func NewWatch(c Cluster, patience time.Duration, log *slog.Logger) *Watch {
	return &Watch{cluster: c, patience: patience, log: log, stop: make(chan struct{})}
}

// Start watches for the leader of a cluster until it is closed.
func (w *Watch) Start() {
	if w.cluster != nil {
		w.ended.Go(w.watch)
	}
}

func (w *Watch) watch() {
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
				w.log.Info("there is a leader again: requests are taken")
			}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= w.patience:
			if w.missing.Swap(&why) == nil {
				w.log.Warn("no leader: changes and reads of the latest state are refused until there is one"+w.advice(), "for", w.patience, "health", why)
			}
		}
	}
}

// advice is what to look at. Of a node that was removed its health says it.
func (w *Watch) advice() string {
	if r, ok := w.cluster.(interface{ Removed() bool }); ok && r.Removed() {
		return ""
	}
	return "; see whether a majority of the nodes runs and reaches each other"
}

// look reports whether no leader is known, and what the cluster says of that.
func (w *Watch) look() (why string, missing bool) {
	if w.cluster.LeaderAPI() != "" {
		return "", false
	}
	// The leader may be known and its API address not be, yet.
	ctx, cancel := context.WithTimeout(context.Background(), leaderCheck)
	defer cancel()
	s, err := w.cluster.Status(ctx)
	return s.Health, err == nil && s.Leader == ""
}

// Admit refuses what needs a leader while none is known. The error has no
// outcome: whoever asks says what was not done.
func (w *Watch) Admit() error {
	why := w.missing.Load()
	if why == nil || w.cluster.LeaderAPI() != "" { // it may just have come
		return nil
	}
	return w.refusal(*why)
}

// refusal is a fault, which is said as it is, whatever the store wraps it in.
func (w *Watch) refusal(why string) error {
	return fault.New(connect.CodeUnavailable, fault.ReasonNotApplied,
		"this node has known no leader for more than "+w.patience.String()+" ("+why+"), so it can change nothing and does not know the latest state; nothing was applied, send it again with the same id in "+leaderlessRetry.String()+", here or at another node").Later(leaderlessRetry)
}

// A led is the store of a cluster as handlers have it: what needs the leader is
// asked of the watch first. Reads of this node's own state need none.
type led struct {
	storage.Store
	leader *Watch
}

// Before is a store that asks the watch first.
func (w *Watch) Before(store storage.Store) storage.Store { return led{store, w} }

// Apply implements storage.Store.
func (l led) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	err := l.leader.Admit()
	if err == nil {
		return l.Store.Apply(ctx, cmds...)
	}
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = storage.Refused(err)
	}
	return answers
}

// Get implements storage.Store.
func (l led) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if err := l.admitRead(r); err != nil {
		return storage.Found{}, err
	}
	return l.Store.Get(ctx, k, r)
}

// View implements storage.Store.
func (l led) View(ctx context.Context, ns string, r storage.Read) (storage.View, error) {
	if err := l.admitRead(r); err != nil {
		return storage.View{}, err
	}
	return l.Store.View(ctx, ns, r)
}

// Save implements storage.Store.
func (l led) Save(ctx context.Context, w io.Writer) error {
	if err := l.admitRead(storage.Latest); err != nil {
		return err
	}
	return l.Store.Save(ctx, w)
}

// Restore implements storage.Store.
func (l led) Restore(ctx context.Context, r io.Reader) error {
	if err := l.leader.Admit(); err != nil {
		return storage.Fail(storage.NotApplied, err)
	}
	return l.Store.Restore(ctx, r)
}

func (l led) admitRead(r storage.Read) error {
	if r == storage.Nearby {
		return nil
	}
	return storage.Unread(l.leader.Admit())
}

// Close ends the watch.
func (w *Watch) Close() {
	w.once.Do(func() { close(w.stop) })
	w.ended.Wait()
}
