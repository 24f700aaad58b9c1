package session

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of commands; those that carry the id of a request come last.

// newCommand returns an empty command of a kind; nil if the kind is unknown.
func newCommand(kind protowire.Number) Command {
	switch kind {
	case 1:
		return new(Open)
	case 2:
		return new(roomyBegin).command()
	case 3:
		return new(roomyEnd).command()
	case 4:
		return new(Cancel)
	case 5:
		return new(Close)
	case 6:
		return new(Acquire)
	case 7:
		return new(Renew)
	case 8:
		return new(Release)
	case 9:
		return new(ForceRelease)
	case 10:
		return new(PutPool)
	case 11:
		return new(DeletePool)
	case 12:
		return new(PutPolicy)
	case 13:
		return new(DeletePolicy)
	case 14:
		return new(Set)
	case 15:
		return new(Delete)
	case 16:
		return new(Increment)
	case 17:
		return new(Tick)
	case 18:
		return new(Restore)
	case 19:
		return new(PutHash)
	case 20:
		return new(Repair)
	case 28:
		return new(PutRate)
	case 29:
		return new(DeleteRate)
	case 30:
		return new(TakeRate)
	case 31:
		return new(PutBudget)
	case 32:
		return new(AdjustBudget)
	case 33:
		return new(DeleteBudget)
	case 23:
		return new(Ask)
	case 24:
		return new(Decide)
	case 25:
		return new(CancelApproval)
	case 26:
		return new(PutStanding)
	case 27:
		return new(DeleteStanding)
	case 21:
		return new(Signal)
	case 22:
		return new(Swept)
	case 34:
		return new(Append)
	case 35:
		return new(DeleteList)
	case 36:
		return new(PutToken)
	case 37:
		return new(RevokeToken)
	case 38:
		return new(Deny)
	case 39:
		return new(Allow)
	case 40:
		return new(PutQuotas)
	case 41:
		return new(KeepKey)
	case 42:
		return new(UseToken)
	}
	return nil
}

// Most calls name the pool of their policy and at most one more. Room for
// those lies beside the command, so that it is one allocation.
type (
	roomyBegin struct {
		Begin
		pools [2]Want
		seen  [2]Premise
	}
	roomyEnd struct {
		End
		pools [2]string
	}
)

func (x *roomyBegin) command() Command {
	x.Pools, x.Seen = x.pools[:0], x.seen[:0]
	return &x.Begin
}

func (x *roomyEnd) command() Command {
	x.Pools = x.pools[:0]
	return &x.End
}

// trim makes lists nil for which room was kept and not used.
func trim(c Command) {
	switch c := c.(type) {
	case *Begin:
		if len(c.Pools) == 0 {
			c.Pools = nil
		}
		if len(c.Seen) == 0 {
			c.Seen = nil
		}
	case *End:
		if len(c.Pools) == 0 {
			c.Pools = nil
		}
	}
}

func (f *codec) commandFields(c Command) {
	switch c := c.(type) {
	case *Open:
		c.fields(f)
	case *Begin:
		c.fields(f)
	case *End:
		c.fields(f)
	case *Cancel:
		c.fields(f)
	case *Close:
		c.fields(f)
	case *Acquire:
		c.fields(f)
	case *Renew:
		c.fields(f)
	case *Release:
		c.fields(f)
	case *ForceRelease:
		c.fields(f)
	case *PutPool:
		c.fields(f)
	case *DeletePool:
		c.fields(f)
	case *PutPolicy:
		c.fields(f)
	case *DeletePolicy:
		c.fields(f)
	case *Set:
		c.fields(f)
	case *Delete:
		c.fields(f)
	case *Increment:
		c.fields(f)
	case *Tick:
		c.fields(f)
	case *Restore: // has no fields
	case *PutHash:
		c.fields(f)
	case *Repair:
		c.fields(f)
	case *PutRate:
		c.fields(f)
	case *DeleteRate:
		c.fields(f)
	case *TakeRate:
		c.fields(f)
	case *PutBudget:
		c.fields(f)
	case *AdjustBudget:
		c.fields(f)
	case *DeleteBudget:
		c.fields(f)
	case *Append:
		c.fields(f)
	case *DeleteList:
		c.fields(f)
	case *Ask:
		c.fields(f)
	case *Decide:
		c.fields(f)
	case *CancelApproval:
		c.fields(f)
	case *PutStanding:
		c.fields(f)
	case *DeleteStanding:
		c.fields(f)
	case *Signal:
		c.fields(f)
	case *Swept:
		c.fields(f)
	case *PutToken:
		c.fields(f)
	case *RevokeToken:
		c.fields(f)
	case *Deny:
		c.fields(f)
	case *Allow:
		c.fields(f)
	case *PutQuotas:
		c.fields(f)
	case *KeepKey:
		c.fields(f)
	case *UseToken:
		c.fields(f)
	default:
		panic(fmt.Sprintf("session: no encoding of %T", c))
	}
}

func (c *Open) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Session)
	f.fingerprint(3, &c.Content)
	f.Text(4, &c.Agent)
	f.Text(5, &c.Policy)
	f.digest(6, &c.Digest)
	f.Duration(7, &c.IdleTTL)
	f.Kept(8, &c.Parent)
	f.attributes(9, &c.Attributes)
	f.digest(10, &c.Over)
	f.digest(11, &c.Token)
}

func (f *codec) attributes(num protowire.Number, v *[]Attr) {
	for i, n := elements(f, num, v, MaxAttributes); i < n; i++ {
		for m := f.Message(num, true); f.Visit(&m); {
			f.Kept(1, &(*v)[i].Name)
			f.Kept(2, &(*v)[i].Value)
		}
	}
}

func (c *Begin) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Session)
	f.Text(3, &c.Call)
	f.fingerprint(4, &c.Content)
	f.Uint8(5, (*uint8)(&c.CallKind), uint8(Sampling))
	f.Text(6, &c.Tool)
	f.digest(7, &c.Digest)
	for i, n := elements(f, 8, &c.Seen, math.MaxInt); i < n; i++ {
		for m := f.Message(8, true); f.Visit(&m); {
			c.Seen[i].fields(f)
		}
	}
	f.Bool(9, &c.Verdict.Allow)
	f.Uint16(10, &c.Verdict.Rule)
	for i, n := elements(f, 11, &c.Pools, math.MaxInt); i < n; i++ {
		for m := f.Message(11, true); f.Visit(&m); {
			c.Pools[i].fields(f)
		}
	}
	f.Duration(12, &c.TTL)
	f.Duration(13, &c.MaxHold)
	f.Duration(14, &c.Wait)
	f.Sint32(15, &c.Priority)
	f.Sint64(16, &c.Tokens)
	f.asking(c)
	f.rateWants(&c.Rates)
	f.charges(24, &c.Budgets)
	f.Duration(25, &c.Opened)
	f.Uint64(26, &c.Hashes)
}

func (p *Premise) fields(f *codec) {
	f.Uint8(1, (*uint8)(&p.Fact), uint8(FactElapsed))
	f.Text(2, &p.Name)
	f.Sint64(3, &p.Lo)
	f.Sint64(4, &p.Hi)
}

func (w *Want) fields(f *codec) {
	f.Text(1, &w.Pool)
	f.Int32(2, &w.Weight)
}

func (c *End) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Session)
	f.Text(3, &c.Call)
	f.Texts(4, &c.Pools)
	f.Uint8(5, (*uint8)(&c.Status), uint8(Cancelled))
	f.Sint64(6, &c.Tokens)
	for m := f.Optional(7, c.Output != Output{}); f.Visit(&m); {
		c.Output.fields(f)
	}
	f.Texts(9, &c.Rates)
	f.bills(10, &c.Spent)
	f.Texts(11, &c.Budgets)
	f.fingerprint(12, &c.Content)
	f.Duration(13, &c.Opened)
}

func (o *Output) fields(f *codec) {
	f.digest(1, &o.Hash)
	f.digest(2, &o.Against)
	f.Sint64(3, &o.Score)
	f.Kept(4, &o.Text)
}

func (c *Cancel) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Session)
	f.Text(3, &c.Call)
	f.Text(4, &c.Client)
	f.Texts(5, &c.Pools)
	f.Bool(6, &c.Asked)
	f.Duration(7, &c.Opened)
	f.Duration(8, &c.Heard)
}

func (c *Close) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Session)
	f.Texts(3, &c.Pools)
	f.digest(4, &c.Digest)
	f.Bool(5, &c.Killed)
	f.Kept(6, &c.Reason)
	f.Texts(7, &c.Asked)
	f.Duration(8, &c.Opened)
}

func (c *Acquire) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Client)
	f.Text(3, &c.Slot)
	f.fingerprint(4, &c.Content)
	f.Text(5, &c.Pool)
	f.Int32(6, &c.Weight)
	f.Duration(7, &c.TTL)
	f.Duration(8, &c.MaxHold)
	f.Duration(9, &c.Wait)
	f.Sint32(10, &c.Priority)
	f.Text(11, &c.Label)
}

func (c *Renew) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Client)
	f.Text(3, &c.Session)
	f.Text(4, &c.ID)
	f.Texts(5, &c.Pools)
	f.Uint64(6, &c.Token)
	f.Duration(7, &c.TTL)
	f.Duration(8, &c.Opened)
}

func (c *Release) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Client)
	f.Text(3, &c.Slot)
	f.Text(4, &c.Pool)
	f.Uint64(5, &c.Token)
}

// The commands that carry the id of a request: see Maker.

// request is what they have in common: the namespace and whose request it is.
func (f *codec) request(ns *string, by *Maker) {
	f.Text(1, ns)
	for m := f.Optional(2, *by != Maker{}); f.Visit(&m); {
		f.Text(1, &by.Client)
		f.Text(2, &by.Request)
		f.fingerprint(3, &by.Content)
	}
}

func (c *ForceRelease) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Session)
	f.Text(4, &c.Holder)
	f.Text(5, &c.ID)
	f.Texts(6, &c.Pools)
}

func (c *PutPool) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Pool)
	f.Int32(4, &c.Slots)
	f.Int32(5, &c.Threshold)
	f.Int32(6, &c.Queue)
}

func (c *DeletePool) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Pool)
	f.Bool(4, &c.Force)
}

func (c *PutPolicy) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Kept(3, &c.Name)
	f.digest(4, &c.Digest)
	f.Blob(5, &c.Tree)
	f.limits(6, &c.Limits)
}

// limits is a message that is written even if it is empty, like every value of
// a type that has a list and so cannot be compared.
func (f *codec) limits(num protowire.Number, l *Limits) {
	f.Require(f.Field() == num, "limits are missing")
	for m := f.Message(num, true); f.Visit(&m); {
		f.Int64(1, &l.MaxTokens)
		f.Uint32(2, &l.MaxToolCalls)
		f.Uint32(3, &l.MaxAttempts)
		for i, n := elements(f, 4, &l.PerTool, MaxToolLimits); i < n; i++ {
			for m := f.Message(4, true); f.Visit(&m); {
				f.Kept(1, &l.PerTool[i].Tool)
				f.Uint32(2, &l.PerTool[i].Max)
			}
		}
		f.Duration(5, &l.Timeout)
		f.Int32(6, &l.MaxConcurrent)
		f.Int32(7, &l.Backpressure)
		f.Uint32(8, &l.Checkpoint)
		f.Int64(9, &l.Drift)
		for i, n := elements(f, 10, &l.Kinds, maxKinds); i < n; i++ {
			for m := f.Message(10, true); f.Visit(&m); {
				f.Uint8(1, (*uint8)(&l.Kinds[i].Kind), uint8(Sampling))
				f.Uint32(2, &l.Kinds[i].Max)
			}
		}
		f.Uint32(11, &l.MaxFailures)
		f.Duration(12, &l.BreakerReset)
	}
}

func (c *DeletePolicy) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Name)
	f.digest(4, &c.Digest)
	f.Texts(5, &c.Names)
}

func (c *Set) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Key)
	f.value(4, &c.Value)
	f.Duration(5, &c.TTL)
	f.Text(6, &c.IfVersion)
}

func (f *codec) value(num protowire.Number, v *Value) {
	for m := f.Optional(num, *v != Value{}); f.Visit(&m); {
		f.Bool(1, &v.Number)
		f.Sint64(2, &v.N)
		f.Kept(3, &v.Text)
	}
}

func (c *Delete) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Key)
	f.Text(4, &c.IfVersion)
}

func (c *Increment) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Key)
	f.Sint64(4, &c.Amount)
}

// The keys are copied: applying the command may store a record under the very
// string, and a map keeps it.
func (c *Tick) fields(f *codec) {
	for i, n := elements(f, 1, &c.Keys, math.MaxInt); i < n; i++ {
		f.KeptElement(1, (*string)(&c.Keys[i]))
	}
}

func (c *Repair) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Client)
	f.Uint64(4, &c.NewerThan)
}

func (c *PutHash) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Tool)
	f.Kept(4, &c.Hash)
}
