package session

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// The commands that carry the id of a request: see Maker.

// request is what they have in common: the namespace and whose request it is.
func (f *codec) request(ns *string, by *Maker) {
	f.text(1, ns)
	for m := f.optional(2, *by != Maker{}); f.visit(&m); {
		f.text(1, &by.Client)
		f.text(2, &by.Request)
		f.fingerprint(3, &by.Content)
	}
}

func (c *ForceRelease) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Session)
	f.text(4, &c.Holder)
	f.text(5, &c.ID)
	f.texts(6, &c.Pools)
}

func (c *PutPool) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Pool)
	f.int32(4, &c.Slots)
	f.int32(5, &c.Threshold)
	f.int32(6, &c.Queue)
}

func (c *DeletePool) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Pool)
	f.bool(4, &c.Force)
}

func (c *PutPolicy) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.kept(3, &c.Name)
	f.digest(4, &c.Digest)
	f.blob(5, &c.Tree)
	f.limits(6, &c.Limits)
}

// limits is a message that is written even if it is empty, like every value of
// a type that has a list and so cannot be compared.
func (f *codec) limits(num protowire.Number, l *Limits) {
	f.require(f.num == num, "limits are missing")
	for m := f.message(num, true); f.visit(&m); {
		f.int64(1, &l.MaxTokens)
		f.uint32(2, &l.MaxToolCalls)
		f.uint32(3, &l.MaxAttempts)
		for i, n := elements(f, 4, &l.PerTool, MaxToolLimits); i < n; i++ {
			for m := f.message(4, true); f.visit(&m); {
				f.kept(1, &l.PerTool[i].Tool)
				f.uint32(2, &l.PerTool[i].Max)
			}
		}
		f.duration(5, &l.Timeout)
		f.int32(6, &l.MaxConcurrent)
		f.int32(7, &l.Backpressure)
		f.uint32(8, &l.Checkpoint)
		f.int64(9, &l.Drift)
	}
}

func (c *DeletePolicy) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Name)
	f.digest(4, &c.Digest)
	f.texts(5, &c.Names)
}

func (c *Set) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Key)
	f.value(4, &c.Value)
	f.duration(5, &c.TTL)
}

func (f *codec) value(num protowire.Number, v *Value) {
	for m := f.optional(num, *v != Value{}); f.visit(&m); {
		f.bool(1, &v.Number)
		f.sint64(2, &v.N)
		f.kept(3, &v.Text)
	}
}

func (c *Delete) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Key)
}

func (c *Increment) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Key)
	f.sint64(4, &c.Amount)
}

// The keys are copied: applying the command may store a record under the very
// string, and a map keeps it.
func (c *Tick) fields(f *codec) {
	for i, n := elements(f, 1, &c.Keys, math.MaxInt); i < n; i++ {
		if f.write {
			f.b = protowire.AppendString(protowire.AppendTag(f.b, 1, protowire.BytesType), string(c.Keys[i]))
		} else {
			c.Keys[i] = Key(f.bytesOf())
		}
	}
}

func (c *Repair) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Client)
	f.uint64(4, &c.NewerThan)
}

func (c *PutHash) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.text(3, &c.Tool)
	f.kept(4, &c.Hash)
}
