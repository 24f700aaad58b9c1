package session

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// How entries are decoded that are applied one after the other.

// A Decoder decodes entries for whoever applies each before he asks for the next: its
// commands are put where those of the entry before stood. The zero value is ready.
//
// So nothing may keep a command that was applied, or a list that stands in one. States
// and results keep of a command its strings, which are never written into, and lists
// that were made for it alone.
type Decoder struct {
	cmds []Command
	room room
}

// Decode is DecodeEntry. What it returns is good until it is called again.
func (d *Decoder) Decode(b []byte) (at time.Duration, cmds []Command, err error) {
	d.room.clear()
	clear(d.cmds)
	at, cmds, err = decodeEntry(b, d.cmds[:0], &d.room)
	if d.cmds = cmds; len(cmds) > roomFor {
		d.cmds = nil
	}
	return at, cmds, err
}

// roomFor is for how many commands of a kind there is room, which is as many as nodes
// put into one entry.
const roomFor = 1024

// A room has commands of those kinds that come in great numbers, to be read into.
type room struct {
	begins shelf[roomyBegin]
	ends   shelf[roomyEnd]
}

func (r *room) clear() {
	r.begins.clear()
	r.ends.clear()
}

// newCommand returns an empty command of a kind; nil if the kind is unknown.
func (f *codec) newCommand(kind protowire.Number) Command {
	if f.room != nil {
		switch kind {
		case 2:
			return f.room.begins.take().command()
		case 3:
			return f.room.ends.take().command()
		}
	}
	return newCommand(kind)
}

// A shelf has values that are used again. Those that are not in use are zero, so that
// none keeps what it was read from.
type shelf[T any] struct {
	all  []*T
	used int
}

func (s *shelf[T]) take() *T {
	if s.used == roomFor {
		return new(T)
	}
	if s.used == len(s.all) {
		s.all = append(s.all, new(T))
	}
	s.used++
	return s.all[s.used-1]
}

func (s *shelf[T]) clear() {
	for _, x := range s.all[:s.used] {
		var zero T
		*x = zero
	}
	s.used = 0
}
