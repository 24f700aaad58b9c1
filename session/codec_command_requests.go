package session

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

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
