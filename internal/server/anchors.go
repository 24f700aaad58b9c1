package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"example.com/govnode/engine"
	"example.com/govnode/internal/audit"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Where lines are chained a node says again and again where its chain stands, so that
// what is kept of that elsewhere holds everything before it; and digests of arguments
// have a key, so that nobody guesses a short argument from a line.

const (
	// anchorEvery is how often an anchor is written.
	anchorEvery = time.Minute
	// keyEvery is how often the key is looked for, and keyLate how soon again while it
	// is not known.
	keyEvery, keyLate = 30 * time.Second, 250 * time.Millisecond
	// keyPatience bounds one look.
	keyPatience = 5 * time.Second
)

// anchors writes an anchor when it begins, every so often, and when it is ended.
type anchors struct {
	audit *auditor
	state func() (index uint64, digest session.Digest) // nil where no digest is made
	by    func() *tls.Certificate                      // nil where there is none
	every time.Duration
	said  func(err error) // that an anchor has no signature

	stop, done chan struct{}
	ends       sync.Once
}

func (a *anchors) start() {
	a.stop, a.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(a.done)
		beat := time.NewTicker(a.every)
		defer beat.Stop()
		a.write()
		for {
			select {
			case <-a.stop:
				a.write()
				return
			case <-beat.C:
				a.write()
			}
		}
	}()
}

func (a *anchors) close() {
	a.ends.Do(func() { close(a.stop) })
	<-a.done
}

func (a *anchors) write() {
	var now audit.Anchor
	if a.state != nil {
		if index, digest := a.state(); index > 0 {
			now.Cluster = a.audit.store.DataID(session.ClusterNamespace)
			now.Index, now.State = index, hex.EncodeToString(digest[:])
		}
	}
	var by *tls.Certificate
	if a.by != nil {
		by = a.by()
	}
	var err error
	log := a.audit.log
	log.addSealed(func(l line) line { return l.stamp(a.audit.now()).text("event_type", audit.AnchorEvent) },
		func(lines []byte, from int) (sealed []byte) {
			sealed, err = log.chain.SealAnchor(lines, from, now, by)
			return sealed
		})
	a.audit.metrics.auditLines.Inc()
	log.push()
	if err != nil {
		a.said(err)
	}
}

// A digestKey is the key of the digests of arguments, which the state has.
type digestKey struct {
	store storage.Store
	newID func() string
	known atomic.Pointer[session.Digest]

	stop, done chan struct{}
	ends       sync.Once
}

func (k *digestKey) start() {
	k.stop, k.done = make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-k.stop
		cancel()
	}()
	go func() {
		defer close(k.done)
		for {
			k.look(ctx)
			next := keyEvery
			if k.known.Load() == nil {
				next = keyLate
			}
			select {
			case <-k.stop:
				return
			case <-time.After(next):
			}
		}
	}()
}

func (k *digestKey) close() {
	k.ends.Do(func() { close(k.stop) })
	<-k.done
}

// look takes the key that the state has. Where it has none this node draws one; of all
// nodes that do, one is first, and the next look tells which.
func (k *digestKey) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keyPatience)
	defer cancel()
	if k.take(ctx) {
		return
	}
	keep := &session.KeepKey{NS: session.ClusterNamespace, By: session.Maker{Client: "govnode", Request: k.newID()}}
	_, _ = rand.Read(keep.Key[:])
	if a := k.store.Apply(ctx, keep)[0]; a.Outcome == storage.Applied {
		k.take(ctx)
	}
}

func (k *digestKey) take(ctx context.Context) bool {
	found, err := k.store.Get(ctx, session.AccessKey(session.ClusterNamespace), storage.Nearby)
	x, _ := found.Record.(*session.Access)
	if err != nil || x == nil || x.Key == (session.Digest{}) {
		return false
	}
	if was := k.known.Load(); was == nil || *was != x.Key {
		k.known.Store(&x.Key)
	}
	return true
}

// of returns how contexts of a namespace are hashed: nobody who sees the lines of one
// can compare them with those of another.
func (k *digestKey) of(ns string) engine.ContextHash {
	if k == nil {
		return engine.ContextHash{}
	}
	return engine.ContextHash{Keyed: true, Key: k.derived(context.Background(), "govnode.context.1", ns)}
}

// derived is a key for one use in a namespace; nil while that of the state is not known.
func (k *digestKey) derived(ctx context.Context, use, ns string) []byte {
	key := k.known.Load()
	if key == nil && k.take(ctx) {
		key = k.known.Load()
	}
	if key == nil {
		return nil
	}
	mac := hmac.New(sha256.New, key[:])
	_, _ = mac.Write([]byte(use + "\x00" + ns))
	return mac.Sum(nil)
}
