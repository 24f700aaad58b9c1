package quota

import "example.com/govnode/session"

// What each command adds to its namespace, and so by which quotas it may be refused. It is
// said here alone. What it costs in operations is another matter (see debts.go).

// A charge is what a command adds where it is carried out; the zero value is nothing.
type charge struct {
	client  string      // whom the state remembers for it
	request string      // under this id, unless it is something that he holds
	ends    session.Key // where this is open, it is let in whoever asks

	counts *counted
	own    session.Key // a record that it makes, unless it is there
	others int64       // records that it makes in any case
	bytes  int64
}

// A counted quota is one of how many records there are.
type counted struct {
	name string
	of   func(x *session.Quotas, t *session.Tally) (most, used int64)
}

var (
	sessions = &counted{"sessions", func(x *session.Quotas, t *session.Tally) (most, used int64) { return x.Sessions, t.Sessions }}
	pools    = &counted{"pools", func(x *session.Quotas, t *session.Tally) (most, used int64) { return x.Pools, t.Pools }}
	policies = &counted{"policies", func(x *session.Quotas, t *session.Tally) (most, used int64) { return x.Policies, t.Policies }}
	keys     = &counted{"keys", func(x *session.Quotas, t *session.Tally) (most, used int64) { return x.Keys, t.Keys }}
)

func chargeOf(cmd session.Command) (c charge) {
	// Nobody is remembered for a request that has no id.
	if by := session.MakerOf(cmd); by.Request != "" && !always(cmd) {
		c.client, c.request = by.Client, by.Request
	}
	switch cmd := cmd.(type) {
	case *session.Acquire:
		c.client = cmd.Client
	case *session.TakeRate:
		c.client = cmd.Client
	case *session.Open:
		c.makes(sessions, session.SessionKey(cmd.NS, cmd.Session), 0)
	case *session.PutPolicy:
		c.makes(policies, session.NameKey(cmd.NS, cmd.Name), len(cmd.Tree))
	case *session.PutPool:
		c.makes(pools, session.PoolKey(cmd.NS, cmd.Pool), 0)
	case *session.PutRate:
		c.makes(pools, session.PoolKey(cmd.NS, session.RatePool(cmd.Rate)), 0)
	case *session.Set:
		c.makes(keys, session.CounterKey(cmd.NS, cmd.Key), len(cmd.Value.Text))
	case *session.Increment:
		c.makes(keys, session.CounterKey(cmd.NS, cmd.Key), 0)
	case *session.Append:
		size := 0
		for _, item := range cmd.Items {
			size += len(item)
		}
		c.makes(keys, session.ListKey(cmd.NS, cmd.Key), size)
		c.others = int64(len(cmd.Items))
	case *session.PutBudget:
		c.makes(keys, session.BudgetKey(cmd.NS, cmd.Budget), 0)
	case *session.PutHash:
		if cmd.Hash != "" { // else it takes one away
			c.makes(keys, session.HashKey(cmd.NS, cmd.Tool), 0)
		}
	case *session.PutStanding:
		c.makes(keys, session.StandingKey(cmd.NS, cmd.Of.ID()), len(cmd.Shown))
	case *session.Ask:
		c.makes(keys, session.ApprovalKey(cmd.NS, cmd.ID), len(cmd.Preview)+len(cmd.Reason))
	case *session.Begin:
		if cmd.Asking != nil {
			c.makes(keys, session.ApprovalKey(cmd.NS, session.ApprovalID(cmd.NS, cmd.Session, cmd.Call)), len(cmd.Asking.Preview)+len(cmd.Asking.Reason))
		}
	case *session.CancelApproval:
		c.endsApproval(cmd.NS, cmd.ID)
	case *session.Decide:
		if !cmd.Approve {
			c.endsApproval(cmd.NS, cmd.ID)
		}
	}
	return c
}

func (c *charge) makes(counts *counted, own session.Key, bytes int) {
	c.counts, c.own, c.bytes = counts, own, int64(bytes)
}

// endsApproval lets in who ends an approval that is open, as often as there is one. Whoever
// says it of one that is not open is remembered as others are.
func (c *charge) endsApproval(ns, id string) {
	if c.client != "" {
		c.ends = session.ApprovalKey(ns, id)
	}
}

// always reports whether a command is let in whoever asks, though he is remembered: a
// namespace that has too much of everything is stopped, keeps people out, takes back what
// it allowed and gave, and is given more. Agents may ask for none of them.
func always(cmd session.Command) bool {
	switch cmd := cmd.(type) {
	case *session.Signal:
		return cmd.Signal == session.Stop || cmd.Signal == session.Kill
	case *session.ForceRelease, *session.DeleteStanding, *session.RevokeToken, *session.Deny, *session.PutQuotas:
		return true
	}
	return false
}

// asked are the approvals of which one has to be there for a command that asks for an
// approval to ask nobody anew: its own, or one that stands for the call.
func asked(cmd session.Command) (keys []session.Key) {
	switch cmd.(type) {
	case *session.Ask, *session.Begin:
		for _, k := range cmd.Touches() {
			if k.Kind() == session.KindApproval || k.Kind() == session.KindStanding {
				keys = append(keys, k)
			}
		}
	}
	return keys
}
