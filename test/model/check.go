package model

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session"
	"example.com/govnode/session/wire"
)

// A Failure is what a step showed to be wrong.
type Failure struct {
	Step  int
	Check string // one of the constants below
	What  string
}

func (f *Failure) Error() string { return fmt.Sprintf("step %d: %s: %s", f.Step, f.Check, f.What) }

// What is checked after each step, or as often as it can be.
const (
	CheckModel    = "model"    // answers and records are those of the model
	CheckReplicas = "replicas" // all that applied the same entries have the same
	CheckSnapshot = "snapshot" // one says what the state was when it was taken
	CheckLaws     = "laws"     // what is promised whatever the model says
	CheckUnknown  = "unknown"  // a command of another version is not passed over
	CheckSound    = "sound"    // nothing panics, and what is generated is valid
)

// Counts are what a run did.
type Counts struct {
	Commands map[string]int            // by kind
	Codes    map[string]map[string]int // by kind and answer
	Steps    int
	Cuts     int
	Digests  int
}

// NewCounts returns counts of nothing.
func NewCounts() *Counts {
	return &Counts{Commands: map[string]int{}, Codes: map[string]map[string]int{}}
}

// Add adds what another run did.
func (c *Counts) Add(o *Counts) {
	for kind, n := range o.Commands {
		c.Commands[kind] += n
	}
	for kind, codes := range o.Codes {
		for code, n := range codes {
			c.code(kind)[code] += n
		}
	}
	c.Steps, c.Cuts, c.Digests = c.Steps+o.Steps, c.Cuts+o.Cuts, c.Digests+o.Digests
}

func (c *Counts) code(kind string) map[string]int {
	if c.Codes[kind] == nil {
		c.Codes[kind] = map[string]int{}
	}
	return c.Codes[kind]
}

// All is how many commands there were.
func (c *Counts) All() (n int) {
	for _, k := range c.Commands {
		n += k
	}
	return n
}

// A Checker applies steps to a model and to replicas of the state machine:
// one that is kept, one that is cut now and then and gets its entries from the
// log's encoding, and one that gets each command in an entry of its own, stamped
// by a clock that goes backwards.
type Checker struct {
	Model  *Model
	Counts *Counts
	whole  *session.State
	cut    *session.State
	apart  *session.State
	late   *late
	laws   *laws
	a, b   []byte // of what is compared
}

// late is a snapshot of the replica that is kept, which is written only when
// more entries were applied, and those entries.
type late struct {
	of     *session.Snapshot
	digest session.Digest
	since  []Step
}

// lateBy is how many entries later that is.
const lateBy = 8

// digestEvery is after how many steps digests and all records are compared, at
// the latest.
const digestEvery = 128

// NewChecker returns a Checker of empty states.
func NewChecker() *Checker {
	return &Checker{
		Model: New(), Counts: NewCounts(), laws: newLaws(),
		whole: session.New(), cut: session.New(), apart: session.New(),
	}
}

// Check applies steps one after the other; the error is the first *Failure.
func Check(steps []Step) error {
	c := NewChecker()
	for _, s := range steps {
		if err := c.Step(s); err != nil {
			return err
		}
	}
	return c.compareAll()
}

// Step applies a step. An error is a *Failure; the Checker is of no use then.
func (c *Checker) Step(s Step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.fail(CheckSound, "panic: %v\n%s", p, debug.Stack())
		}
		c.Counts.Steps++
	}()
	for _, cmd := range s.Commands {
		if err := session.Validate(cmd); err != nil {
			return c.fail(CheckSound, "%T: %v", cmd, err)
		}
	}
	if err := c.cutBefore(s); err != nil {
		return err
	}
	at, cmds, err := session.DecodeEntry(session.EncodeEntry(s.At, s.Commands))
	if err != nil {
		return c.fail(CheckSound, "%v", err)
	}
	if at != s.At || !reflect.DeepEqual(cmds, s.Commands) && Go(cmds) != Go(s.Commands) { // what all forget they agree about
		return c.fail(CheckSound, "%s at %v is decoded as %s at %v", Go(s.Commands), s.At, Go(cmds), at)
	}
	want := c.Model.Apply(s.At, s.Commands)
	got := c.whole.ApplyAll(s.At, s.Commands)
	again := c.cut.ApplyAll(at, cmds)
	c.apart.ApplyAll(s.At, nil)
	for i, cmd := range s.Commands {
		alone := c.apart.ApplyAll(s.At-time.Duration(i)*time.Second, s.Commands[i:i+1])
		c.count(cmd, &got[i])
		for _, r := range []struct {
			check, of string
			got       *session.Result
		}{
			{CheckModel, "the state machine", &got[i]}, {CheckReplicas, "the replica that is cut", &again[i]},
			{CheckReplicas, "the replica with entries of one command", &alone[0]},
		} {
			if !c.same(&want[i], r.got) {
				return c.fail(r.check, "%s\n  the model:  %s\n  %s:  %s", Go(cmd), Go(want[i]), r.of, Go(*r.got))
			}
		}
	}
	var touched []session.Key
	for _, cmd := range s.Commands {
		touched = append(touched, session.Footprint(cmd)...)
	}
	slices.Sort(touched)
	for _, k := range slices.Compact(touched) {
		if large(c.whole.Stored(k)) && c.Counts.Steps%16 > 0 {
			continue // looking at it at every step would take all the time
		}
		if err := c.record(k); err != nil {
			return err
		}
	}
	if broken := c.laws.check(c.Model.Now, c.whole, s.Commands, got); broken != "" {
		return c.fail(CheckLaws, "%s", broken)
	}
	if c.Counts.Steps%digestEvery == 0 {
		return c.compareAll()
	}
	return nil
}

func large(r session.Record) bool {
	const many = 64
	switch r := r.(type) {
	case *session.Session:
		return len(r.Open)+len(r.Tools) > many
	case *session.Client:
		return len(r.Open) > many
	case *session.Pool:
		return len(r.Leases)+len(r.Queue) > many
	}
	return false
}

func (c *Checker) fail(check, format string, args ...any) error {
	return &Failure{c.Counts.Steps, check, fmt.Sprintf(format, args...)}
}

func (c *Checker) count(cmd session.Command, r *session.Result) {
	kind := Kind(cmd)
	c.Counts.Commands[kind]++
	code := r.Code.String()
	if r.Repeat {
		code += ", again"
	}
	c.Counts.code(kind)[code]++
}

// Kind is the name of a kind of commands.
func Kind(c session.Command) string { return fmt.Sprintf("%T", c)[len("*session."):] }

func (c *Checker) same(want, got *session.Result) bool {
	bare := *got
	bare.Chain, bare.Folds = nil, nil // the laws look at chains
	c.a, c.b = session.AppendResult(c.a[:0], want), session.AppendResult(c.b[:0], &bare)
	return bytes.Equal(c.a, c.b)
}

// record compares the record of a key with the model's.
func (c *Checker) record(k session.Key) error {
	want, got := c.Model.Record(k), unchained(c.whole.Get(k))
	if want == nil && got == nil {
		return nil
	}
	if want == nil || got == nil {
		return c.fail(CheckModel, "%s\n  the model:  %s\n  the state machine:  %s", k, Go(want), Go(got))
	}
	plain, ids := bare(got)
	c.a, c.b = session.AppendRecord(c.a[:0], want), session.AppendRecord(c.b[:0], plain)
	if !bytes.Equal(c.a, c.b) {
		return c.fail(CheckModel, "%s\n  the model:  %s\n  the state machine:  %s", k, Go(want), Go(plain))
	}
	if ids == nil {
		return nil
	}
	if n, newest, forgot := c.Model.Memory(k); n != ids.Len() || newest != ids.Newest() || forgot != ids.NewerThan() {
		return c.fail(CheckModel, "%s: the model remembers %d ids, the newest of %d, and has forgotten up to %d; the state machine %d, %d, %d",
			k, n, newest, forgot, ids.Len(), ids.Newest(), ids.NewerThan())
	}
	return nil
}

// unknown holds that an entry with a command that no version knows yet cannot be
// decoded: who passed it over would go on with another state than others.
func (c *Checker) unknown() error {
	next := protowire.AppendBytes(protowire.AppendTag(nil, session.Version+1, protowire.BytesType), nil)
	_, cmds, err := session.DecodeEntry(session.JoinEntry(nil, c.Model.Now, [][]byte{wire.Command.Seal(next, 0)}))
	if !errors.Is(err, session.ErrUnknownKind) {
		return c.fail(CheckUnknown, "an entry with a command of kind %d is decoded as %s: %v", session.Version+1, Go(cmds), err)
	}
	return nil
}

// compareAll compares all records with the model's, and replicas with each other.
func (c *Checker) compareAll() error {
	if err := c.unknown(); err != nil {
		return err
	}
	v := c.whole.Snapshot()
	keys := c.Model.Keys()
	all := c.Counts.Digests%16 == 0 // looking for keys takes longer than all else here
	stored, there := tallies{}, tallies{}
	if all {
		for k := range v.All() {
			keys = append(keys, k)
			stored.add(k)
		}
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		if err := c.record(k); err != nil {
			return err
		}
		if c.whole.Get(k) != nil {
			there.add(k)
		}
	}
	if err := c.counted(there, stored, all); err != nil {
		return err
	}
	want, err := v.Digest(nil, nil)
	if err != nil {
		return c.fail(CheckReplicas, "%v", err)
	}
	for of, s := range map[string]*session.State{"that is cut": c.cut, "with entries of one command": c.apart} {
		c.Counts.Digests++
		if got, err := s.Snapshot().Digest(nil, nil); err != nil || got != want {
			return c.fail(CheckReplicas, "the replica %s has another digest: %v", of, err)
		}
	}
	for _, ns := range namespaces { // which has been written and read, so that nothing of it is left out there
		k := session.AccessKey(ns)
		if want, got := fmt.Sprintf("%+v", c.Model.Record(k)), fmt.Sprintf("%+v", c.cut.Get(k)); got != want {
			return c.fail(CheckSnapshot, "%s\n  the model:  %s\n  the replica that is cut:  %s", k, want, got)
		}
	}
	return nil
}

// cutBefore does what a step says about the replica that is cut.
func (c *Checker) cutBefore(s Step) (err error) {
	if c.late != nil && len(c.late.since) == lateBy {
		if err := c.catchUp(); err != nil {
			return err
		}
	}
	switch {
	case s.Cut == CutOwn:
		if c.cut, err = c.reopen(c.cut.Snapshot()); err != nil {
			return err
		}
	case s.Cut == CutAnother && c.late == nil:
		c.late = &late{of: c.whole.Snapshot()}
		if c.late.digest, err = c.late.of.Digest(nil, nil); err != nil {
			return c.fail(CheckSnapshot, "%v", err)
		}
	}
	if c.late != nil {
		c.late.since = append(c.late.since, s)
	}
	if s.Cut == CutOwn {
		return c.compareAll()
	}
	return nil
}

// catchUp puts a state that began with the late snapshot in the place of the
// replica that is cut.
func (c *Checker) catchUp() error {
	s, err := c.reopen(c.late.of)
	if err != nil {
		return err
	}
	if d, err := s.Snapshot().Digest(nil, nil); err != nil || d != c.late.digest {
		return c.fail(CheckSnapshot, "a snapshot that was written later is another than it was: %v", err)
	}
	for _, step := range c.late.since {
		s.ApplyAll(step.At, step.Commands)
	}
	c.cut, c.late = s, nil
	return c.compareAll()
}

// reopen returns the state that a snapshot holds once it was written and read.
func (c *Checker) reopen(v *session.Snapshot) (*session.State, error) {
	var b bytes.Buffer
	if err := session.WriteSnapshot(&b, v); err != nil {
		return nil, c.fail(CheckSnapshot, "write a snapshot: %v", err)
	}
	s, err := session.ReadSnapshot(&b)
	if err != nil {
		return nil, c.fail(CheckSnapshot, "read a snapshot: %v", err)
	}
	c.Counts.Cuts++
	return s, nil
}
