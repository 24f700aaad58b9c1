package server

import (
	"context"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// admitForwarded decides about a command that another node passes on to this
// one as the leader: while this one has no room, as it decides about requests
// of its own. The node that passes it on may have more memory; but what it
// takes, the leader has to keep as well.
func (s *Server) admitForwarded(cmd session.Command) bool {
	if !s.memory.Sheds() || !grows(cmd) || s.begun(cmd) {
		return true
	}
	return s.memory.Admit() == nil
}

// grows says of a command what growsState says of a request.
func grows(cmd session.Command) bool {
	switch cmd.(type) {
	case *session.Open, *session.Begin, *session.Acquire, *session.PutPolicy, *session.PutHash, *session.Set, *session.Increment:
		return true
	}
	return false
}

// begun reports whether a command asks again for what is open or waits, as the
// claim of a waiter does: the other node has taken it before, and it has its
// room.
func (s *Server) begun(cmd session.Command) bool {
	switch c := cmd.(type) {
	case *session.Begin:
		found, err := s.store.Get(context.Background(), session.SessionKey(c.NS, c.Session), storage.Nearby)
		x, _ := found.Record.(*session.Session)
		return err == nil && x != nil && x.Find(c.Call) != nil
	case *session.Acquire:
		found, err := s.store.Get(context.Background(), session.ClientKey(c.NS, c.Client), storage.Nearby)
		x, _ := found.Record.(*session.Client)
		return err == nil && x != nil && x.Find(c.Slot) != nil
	}
	return false
}
