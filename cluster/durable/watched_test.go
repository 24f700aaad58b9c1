package durable

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// An entry that was acknowledged is on disk: nothing may ever turn that off.
func TestTheLogIsFlushed(t *testing.T) {
	o := boltOptions("")
	require.False(t, o.NoSync)
	require.False(t, o.BoltOptions.NoSync)
	require.False(t, o.BoltOptions.NoGrowSync)
}

// A faulty is a store whose writes hang, or fail.
type faulty struct {
	Store
	hold   chan struct{} // nil: open
	broken atomic.Bool
}

var errDisk = errors.New("input/output error")

func (f *faulty) StoreLogs(l []*raft.Log) error {
	if f.hold != nil {
		<-f.hold
	}
	if f.broken.Load() {
		return errDisk
	}
	return f.Store.StoreLogs(l)
}

func TestWatchedStore(t *testing.T) {
	var fatal []error
	var mu sync.Mutex
	failures := func() []error {
		mu.Lock()
		defer mu.Unlock()
		return fatal
	}
	open := func(limit time.Duration) (*Watched, *faulty) {
		fatal = nil
		g := &faulty{Store: struct {
			raft.LogStore
			raft.StableStore
			closer
		}{raft.NewInmemStore(), notFound{}, closer{}}}
		return &Watched{Store: g, Limit: limit, Appends: prometheus.NewHistogram(prometheus.HistogramOpts{}), Kept: func() uint64 { return 0 }, Fatal: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fatal = append(fatal, err)
		}}, g
	}

	w, _ := open(time.Minute)
	require.NoError(t, w.StoreLog(&raft.Log{Index: 1}))
	require.ErrorIs(t, w.GetLog(7, new(raft.Log)), raft.ErrLogNotFound)
	_, err := w.Get([]byte("absent"))
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualError(t, err, "not found", "Raft compares the text")
	require.Empty(t, failures(), "what is absent is no failure")

	w, g := open(time.Minute)
	g.broken.Store(true)
	require.ErrorIs(t, w.StoreLogs([]*raft.Log{{Index: 1}}), errDisk)
	g.broken.Store(false)
	require.ErrorIs(t, w.StoreLogs([]*raft.Log{{Index: 1}}), errDisk, "a disk that failed once is not trusted again")
	require.Len(t, failures(), 1)

	w, g = open(20 * time.Millisecond)
	g.hold = make(chan struct{})
	done := make(chan error)
	go func() { done <- w.StoreLogs([]*raft.Log{{Index: 1}}) }()
	require.Eventually(t, func() bool { return len(failures()) == 1 }, 5*time.Second, time.Millisecond)
	require.ErrorContains(t, failures()[0], "longer than 20ms")
	_, err = w.LastIndex()
	require.ErrorContains(t, err, "longer than 20ms")
	close(g.hold)
	<-done
}

// A process that was stopped finds the timer of an access long overdue when it
// goes on. That is one step and not the whole time: the disk had no part in it.
func TestAPauseIsNoFaultOfTheDisk(t *testing.T) {
	lost := 0
	p := newPatience(time.Hour*patienceSteps, func() { lost++ })
	p.pass() // the timer fires, however late
	require.Zero(t, lost, "one pause, as long as it may have been")
	for range patienceSteps - 2 {
		p.pass()
	}
	require.Zero(t, lost)
	p.pass()
	require.Equal(t, 1, lost)
	p.pass()
	require.Equal(t, 1, lost, "it is lost once")

	p = newPatience(time.Hour*patienceSteps, func() { lost++ })
	p.end()
	for range 2 * patienceSteps {
		p.pass() // a timer that had fired already when the access ended
	}
	require.Equal(t, 1, lost, "an access that has ended takes no time")

	synctest.Test(t, func(t *testing.T) {
		start, after := time.Now(), time.Duration(0)
		p := newPatience(10*time.Second, func() { after = time.Since(start) })
		time.Sleep(time.Minute)
		synctest.Wait()
		p.end()
		require.Equal(t, 10*time.Second, after, "without a pause it is the whole limit")
	})
}

type closer struct{}

func (closer) Close() error { return nil }

// notFound is a stable store with nothing in it.
type notFound struct{ raft.StableStore }

func (notFound) Get([]byte) ([]byte, error) { return nil, ErrNotFound }

// The end of the log may go down to what is kept, and the beginning may go as
// far as snapshots stand for it.
func TestWhatMayBeRemoved(t *testing.T) {
	for _, c := range []struct {
		from, to uint64
		allowed  bool
	}{
		{8, 10, true}, {10, 10, true}, {7, 10, false}, {1, 10, false}, {7, 20, false}, {11, 20, true},
		{1, 5, true}, {1, 7, true}, {1, 9, true},
	} {
		inner := raft.NewInmemStore()
		for i := range uint64(10) {
			require.NoError(t, inner.StoreLog(&raft.Log{Index: i + 1}))
		}
		var fatal error
		w := &Watched{Store: parts{inner, notFound{}, closer{}}, Limit: time.Minute, Appends: prometheus.NewHistogram(prometheus.HistogramOpts{}),
			Kept: func() uint64 { return 7 }, Fatal: func(err error) { fatal = err }}
		err := w.DeleteRange(c.from, c.to)
		require.Equal(t, c.allowed, err == nil, "%d to %d: %v", c.from, c.to, err)
		require.Equal(t, err, fatal)
	}
}

// A log is emptied for a snapshot whatever is kept of it, and nothing is removed of it any
// more: what Raft takes for its beginning is behind that snapshot.
func TestNothingIsRemovedOfAnEmptyLog(t *testing.T) {
	inner := raft.NewInmemStore()
	for i := range uint64(10) {
		require.NoError(t, inner.StoreLog(&raft.Log{Index: i + 1}))
	}
	w := &Watched{Store: parts{inner, notFound{}, closer{}}, Limit: time.Minute,
		Kept: func() uint64 { return 7 }, Fatal: func(err error) { t.Error(err) }}
	for _, before := range []uint64{10, 0} {
		last, err := w.Empty()
		require.NoError(t, err)
		require.Equal(t, before, last)
		last, err = w.LastIndex()
		require.NoError(t, err)
		require.Zero(t, last)
		require.NoError(t, w.DeleteRange(1, 5))
		require.NoError(t, w.DeleteRange(0, 0))
	}
}

// A watched store answers what the store does, and has all the time once it has
// answered.
func TestWhatIsWatchedIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := raft.NewInmemStore()
		w := &Watched{Store: parts{inner, inner, closer{}}, Limit: time.Second, Appends: prometheus.NewHistogram(prometheus.HistogramOpts{}),
			Kept: func() uint64 { return 0 }, Fatal: func(err error) { t.Error(err) }}
		require.NoError(t, w.StoreLogs([]*raft.Log{entryAt(3, 1, 5), entryAt(4, 1, 5)}))
		require.NoError(t, w.StoreLog(entryAt(5, 1, 5)))
		require.NoError(t, w.Set(keyNode, []byte("n1")))
		require.NoError(t, w.SetUint64(keyTerm, 7))
		require.NoError(t, w.DeleteRange(3, 3))
		first, err := w.FirstIndex()
		require.NoError(t, err)
		require.EqualValues(t, 4, first)
		last, err := w.LastIndex()
		require.NoError(t, err)
		require.EqualValues(t, 5, last)
		var l raft.Log
		require.NoError(t, w.GetLog(4, &l))
		require.Equal(t, entryAt(4, 1, 5), &l)
		node, err := w.Get(keyNode)
		require.NoError(t, err)
		require.Equal(t, "n1", string(node))
		term, err := w.GetUint64(keyTerm)
		require.NoError(t, err)
		require.EqualValues(t, 7, term)
		time.Sleep(time.Minute)
	})
}

// Whose disk is damaged is told what to do; whose disk fails may try again.
func TestWhatToDoAboutADisk(t *testing.T) {
	for what, c := range map[string]struct {
		read    func() error
		replace bool
	}{
		"it fails":      {func() error { return errDisk }, false},
		"it is damaged": {func() error { return ErrDamaged }, true},
		"it panics":     {func() error { panic("page 7") }, true},
	} {
		var told error
		w := &Watched{Store: parts{failing{read: c.read}, notFound{}, closer{}}, Limit: time.Minute, Fatal: func(err error) { told = err }}
		err := w.GetLog(1, new(raft.Log))
		require.ErrorContains(t, err, "cluster: disk: GetLog: ", what)
		require.Equal(t, c.replace, strings.Contains(err.Error(), AdviceReplace), what)
		require.Equal(t, err, told, what)
	}
}
