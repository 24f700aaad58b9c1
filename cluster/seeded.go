package cluster

import (
	"sync"

	"example.com/govnode/session"
)

// What two seeded bugs need. All calls stand behind seeded.On, which is constant
// false without the tag seeded, so that the compiler and the linker leave this out
// of the program; a test of package seeded sees to it.

// seededClocks has the clock of each node's first leadership.
var seededClocks sync.Map // *Node to *clock

// seededClock returns the clock of an earlier leadership of the node.
func seededClock(n *Node, c *clock) *clock {
	first, _ := seededClocks.LoadOrStore(n, c)
	return first.(*clock)
}

// seededStates has what a leadership knows when it answers too early.
var seededStates sync.Map // *leadership to *fsm

func seededState(l *leadership, f *fsm) { seededStates.Store(l, f) }

// seededAnswer answers an entry by what it would come to now, before it is
// committed.
func seededAnswer(l *leadership, e *entry) bool {
	x, ok := seededStates.Load(l)
	if !ok {
		return false
	}
	var cmds []session.Command
	for _, raw := range e.commands {
		c, err := session.DecodeCommand(raw)
		if err != nil {
			return false
		}
		switch c.(type) {
		case *session.Tick, *session.Restore:
			return false
		case *session.PutPool, *session.PutRate, *session.PutBudget, *session.PutPolicy:
			return false // else clients do not get as far as to begin: each of these rests on others
		}
		cmds = append(cmds, c)
	}
	if len(cmds) == 0 {
		return false
	}
	f := x.(*fsm)
	f.mu.Lock()
	defer f.mu.Unlock()
	guess := session.NewPartial()
	guess.SetClock(f.state.Now(), f.state.Generation())
	for _, c := range cmds {
		for _, k := range session.Footprint(c) {
			if r := f.state.Stored(k); r != nil {
				own, err := session.DecodeRecord(session.EncodeRecord(r))
				if err != nil {
					return false
				}
				guess.Put(k, own)
			}
		}
	}
	e.answer(guess.ApplyAll(l.now(), cmds), f.index+1)
	return true
}
