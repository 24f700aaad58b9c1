package storage

import (
	"sync/atomic"

	"example.com/govnode/session"
)

// Lapses is how a store tells of calls whose lease has run out, and of chains of the
// audit that have ended; see Store.OnLapse. The zero value tells nobody.
type Lapses struct {
	tell atomic.Pointer[func([]session.Lapse)]
	fold atomic.Pointer[func([]session.Fold)]
}

// OnFold implements Store.
func (l *Lapses) OnFold(tell func([]session.Fold)) {
	if tell == nil {
		l.fold.Store(nil)
		return
	}
	l.fold.Store(&tell)
}

// OnLapse implements Store.
func (l *Lapses) OnLapse(tell func([]session.Lapse)) {
	if tell == nil {
		l.tell.Store(nil)
		return
	}
	l.tell.Store(&tell)
}

// TellLapses tells of what the commands of an entry have found. The store calls it once
// for each entry that this node ordered, without a lock.
func (l *Lapses) TellLapses(results []session.Result) {
	tell, fold := l.tell.Load(), l.fold.Load()
	for i := range results {
		if calls := results[i].Lapsed; len(calls) > 0 && tell != nil {
			(*tell)(calls)
		}
		if folds := results[i].Folds; len(folds) > 0 && fold != nil {
			(*fold)(folds)
		}
	}
}
