package model

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"example.com/govnode/session"
)

// A Line is a line of a log as it was written down: an entry, or that the state
// after an earlier line was restored.
type Line struct {
	Step
	Restores bool
	Lines    int // what is restored is the state after so many
}

// ReadLog reads a log: each line has an encoded entry in hexadecimal, or the word
// restore with the number of the line after which the state was that is restored,
// and the log time in nanoseconds.
func ReadLog(r io.Reader) (all []Line, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var l Line
		if text, ok := strings.CutPrefix(lines.Text(), "restore "); ok {
			l.Restores = true
			if _, err := fmt.Sscan(text, &l.Lines, &l.At); err != nil || l.Lines < 0 || l.Lines > len(all) {
				return nil, fmt.Errorf("line %d: restore takes the number of a line before it and a log time: %q", len(all)+1, text)
			}
			l.Commands = []session.Command{&session.Restore{}}
		} else {
			b, err := hex.DecodeString(lines.Text())
			if err == nil {
				l.At, l.Commands, err = session.DecodeEntry(b)
			}
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", len(all)+1, err)
			}
		}
		all = append(all, l)
	}
	return all, lines.Err()
}

// Replay applies a log to the model and to replicas. To each it writes what each
// command was answered by the state machine, and the digest of what that left.
func Replay(log []Line, answers io.Writer) error {
	c, err := replay(log, answers)
	if err != nil {
		return err
	}
	return c.compareAll()
}

func replay(log []Line, answers io.Writer) (*Checker, error) {
	c, state := NewChecker(), session.New()
	for i, l := range log {
		if l.Restores {
			before, err := replay(log[:l.Lines], io.Discard)
			if err != nil {
				return nil, err
			}
			c.restored(before, l.At)
			state, err = c.reopen(c.whole.Snapshot())
			if err != nil {
				return nil, err
			}
			l.At = c.Model.Now
		}
		if err := c.Step(l.Step); err != nil {
			var f *Failure
			if errors.As(err, &f) {
				f.Step = i
			}
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		for j, r := range state.ApplyAll(l.At, l.Commands) {
			fmt.Fprintf(answers, "%d: at %v %s\n\t%s\n", i+1, l.At, Go(l.Commands[j]), Go(r))
		}
		if answers != io.Discard {
			digest, err := state.Snapshot().Digest(nil, nil)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(answers, "%d: %x\n", i+1, digest[:8])
		}
	}
	return c, nil
}

// restored puts another state in the place of all, with a clock and a generation
// of tokens that go on, and who may do what where that was known.
func (c *Checker) restored(before *Checker, at time.Duration) {
	now, generation := max(c.Model.Now, at), max(before.Model.Generation, c.Model.Generation)
	before.Model.Now, before.Model.Generation = now, generation
	for _, s := range c.Model.spaces {
		if s.access != nil {
			before.Model.space(s.name).access = s.access
		}
	}
	was := []*session.State{c.whole, c.cut, c.apart}
	for i, s := range []*session.State{before.whole, before.cut, before.apart} {
		s.SetClock(now, uint32(generation))
		s.KeepAccess(was[i])
	}
	c.Model, c.whole, c.cut, c.apart, c.late, c.laws = before.Model, before.whole, before.cut, before.apart, nil, before.laws
}
