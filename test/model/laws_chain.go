package model

import (
	"example.com/govnode/session"
)

// What holds of the chains of the audit: what changed something has a link in the chain
// of its record, what did not has none, each link follows from the one before, and what
// is dropped goes on in the namespace's.

// chained follows the links of one command.
func (l *laws) chained(generation uint32, c session.Command, r *session.Result) {
	for _, f := range r.Folds {
		ns := session.NamespaceKey(f.Key.Namespace())
		if was := l.chains[f.Key]; was == nil || *was != f.Chain {
			l.breaks("%s ended with the chain %+v, and had %+v", f.Key, f.Chain, was)
		}
		if next := l.chains[ns].Next(generation, session.Done, f.Audited()); *next != f.Into {
			l.breaks("the chain of %s ended in %+v, and in %+v by the rules", f.Key, f.Into, *next)
		}
		delete(l.chains, f.Key)
		l.chains[ns] = &f.Into
	}
	a := c.Authority()
	audited := a != nil && a.Audited != (session.Digest{})
	if r.Chain == nil {
		if audited && l.changes(c, r) {
			l.breaks("%s was answered %v and has no link", Go(c), r.Code)
		}
		return
	}
	k, ok := session.ChainOf(c)
	if !audited || !ok || r.Code.Failure() {
		l.breaks("%s was answered %v and has a link", Go(c), r.Code)
		return
	}
	if next := l.chains[k].Next(generation, r.Code, a.Audited); *next != *r.Chain {
		l.breaks("the chain of %s is %+v, and %+v by the rules", k, *r.Chain, *next)
	}
	l.chains[k] = r.Chain
}

// changes reports whether an answer says that something was changed, as all but a few do.
func (l *laws) changes(c session.Command, r *session.Result) bool {
	if _, ok := session.ChainOf(c); !ok || r.Code.Failure() || r.Repeat {
		return false
	}
	switch r.Code {
	case session.AttemptLimit, session.SessionClosed, session.Stopped, session.Killed, session.AlreadyEnded, session.AlreadyReleased, session.LeaseExpired, session.Fenced, session.LeaseLost:
		return false
	}
	switch c.(type) {
	case *session.Cancel:
		return r.Code == session.WaitCancelled
	case *session.Renew: // a slot may have been renewed until then already
		return false
	}
	return true
}

// heads holds the chain of the record of a command to what was followed.
func (l *laws) heads(s *session.State, c session.Command) {
	k, ok := session.ChainOf(c)
	if !ok {
		return
	}
	got, want := session.ChainOfRecord(s.Stored(k)), l.chains[k]
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		l.breaks("%s has the chain %+v, and was answered %+v", k, got, want)
	}
}

// unchained is a record as the model knows it.
func unchained(r session.Record) session.Record {
	switch x := r.(type) {
	case *session.Session:
		y := *x
		y.Chain = nil
		return &y
	case *session.Client:
		y := *x
		y.Chain = nil
		return &y
	case *session.Namespace:
		if x == nil {
			return nil
		}
		y := *x
		if y.Chain = nil; y == (session.Namespace{}) {
			return nil
		}
		return &y
	}
	return r
}
