package quota

import (
	"context"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What ends something or gives it back costs nothing, and could be asked for without end
// where there is nothing. So what has found nothing to change is an operation afterwards,
// also a repeat and what has another token than its own, and a namespace that owes more
// than a second's worth of those is refused more of them. Who ends or gives back what he
// has is let in all the same.

// mostOwed is how many seconds' worth a namespace may owe: what was lost at once, as the
// leases of a node that was cut off, keeps nobody out for longer.
const mostOwed = 10

// ends reports whether a command ends, keeps or gives back something. Renewals come many
// together, and are looked at where they are judged.
func ends(cmd session.Command) bool {
	switch cmd.(type) {
	case *session.End, *session.Cancel, *session.Release, *session.ForceRelease, *session.Close,
		*session.Delete, *session.DeleteList, *session.CancelApproval:
		return true
	}
	return false
}

// endsOf is what such a command ends: a record, and what is open in it.
func endsOf(cmd session.Command) (k session.Key, id string) {
	switch c := cmd.(type) {
	case *session.End:
		return session.SessionKey(c.NS, c.Session), c.Call
	case *session.Cancel:
		if c.Session == "" {
			return session.ClientKey(c.NS, c.Client), c.Call
		}
		return session.SessionKey(c.NS, c.Session), c.Call
	case *session.Release:
		return session.ClientKey(c.NS, c.Client), c.Slot
	case *session.Renew:
		if c.Session == "" {
			return session.ClientKey(c.NS, c.Client), c.ID
		}
		return session.SessionKey(c.NS, c.Session), c.ID
	case *session.ForceRelease:
		if c.Session == "" {
			return session.ClientKey(c.NS, c.Holder), c.ID
		}
		return session.SessionKey(c.NS, c.Session), c.ID
	case *session.Close:
		return session.SessionKey(c.NS, c.Session), ""
	case *session.Delete:
		return session.CounterKey(c.NS, c.Key), ""
	case *session.DeleteList:
		return session.ListKey(c.NS, c.Key), ""
	case *session.CancelApproval:
		return session.ApprovalKey(c.NS, c.ID), ""
	}
	return "", ""
}

// changed reports whether a command that ends, keeps or gives back something has found it.
// What is judged anew has not been answered yet.
func changed(cmd session.Command, res *session.Result) bool {
	switch res.Code {
	case session.StalePremise, session.StaleAccess, session.StaleSession:
		return true
	}
	switch cmd.(type) {
	case *session.Renew:
		return res.Code == session.Renewed
	case *session.Delete, *session.DeleteList, *session.CancelApproval:
		return res.Value != 0 && !res.Repeat && !res.Code.Failure()
	}
	return !res.Repeat && res.Code != session.Fenced && !res.Code.Failure()
}

// Missed charges a namespace for a command that cost nothing and has changed nothing.
func (q *Quotas) Missed(ctx context.Context, cmd session.Command, res *session.Result) {
	if _, renews := cmd.(*session.Renew); !renews && !ends(cmd) || changed(cmd, res) {
		return
	}
	s := q.of(ctx, cmd.Namespace())
	defer q.mu.Unlock()
	if most := float64(s.quotas.Operations); most > 0 {
		s.operations.fill(time.Now(), most)
		s.operations.tokens = max(s.operations.tokens-1, -mostOwed*most)
	}
}

// A Debt is what a namespace owes of operations. The zero value is none.
type Debt struct {
	Wait time.Duration // until it may do one again; 0: it does not owe so much that it is refused

	quotas *Quotas
	ns     string
	most   int64
}

// Debt returns what a namespace owes, if that is more than a second's worth.
func (q *Quotas) Debt(ctx context.Context, ns string) Debt {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	most := float64(s.quotas.Operations)
	if most == 0 {
		return Debt{}
	}
	if s.operations.fill(time.Now(), most); s.operations.tokens >= -most {
		return Debt{}
	}
	return Debt{s.operations.away(most), q, ns, s.quotas.Operations}
}

// Refusal refuses what costs an operation, or has nothing to end, keep or give back, in a
// namespace that owes. It is counted.
func (d Debt) Refusal() error {
	return d.quotas.soon(d.ns, "operations a second", d.most, d.Wait)
}

// Has reports whether there is something for a command to end, keep or give back in a
// record, as it stands.
func Has(r session.Record, cmd session.Command) bool {
	_, id := endsOf(cmd)
	switch r := r.(type) {
	case nil:
		return false
	case *session.Session:
		if r == nil || id == "" {
			return r != nil && r.Phase == session.PhaseOpen
		}
		return hasHeld(r.Find(id), cmd)
	case *session.Client:
		return r != nil && hasHeld(r.Find(id), cmd)
	case *session.Approval:
		return r != nil && r.Open()
	case *session.Counter:
		c, ok := cmd.(*session.Delete)
		return r != nil && (!ok || c.IfVersion == "" || c.IfVersion == r.Value.Version())
	}
	return true
}

// hasHeld likewise, of what is open there under its id; nil is nothing.
func hasHeld(h *session.Held, cmd session.Command) bool {
	if h == nil {
		return false
	}
	switch c := cmd.(type) {
	case *session.Cancel:
		return h.Waiting()
	case *session.End:
		return !h.Waiting()
	case *session.ForceRelease:
		return !h.Parked()
	case *session.Release:
		return !h.Waiting() && h.HasToken(c.Token)
	case *session.Renew:
		return h.Waiting() || h.HasToken(c.Token)
	}
	return true
}

// admitEnd refuses a command that ends what is not open in a namespace that owes. What
// cannot be read now is let in.
func (q *Quotas) admitEnd(ctx context.Context, cmd session.Command) error {
	debt := q.Debt(ctx, cmd.Namespace())
	if debt.Wait == 0 {
		return nil
	}
	k, _ := endsOf(cmd)
	for _, read := range []storage.Read{storage.Nearby, storage.Latest} { // it may have begun at another node
		if found, err := q.store.Get(ctx, k, read); err != nil || Has(found.Record, cmd) {
			return nil
		}
	}
	return debt.Refusal()
}
