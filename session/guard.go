package session

import "fmt"

var guarded bool

// GuardFootprints is for the init of tests. From then on all states panic where
// a command reads or writes a record that its Touches does not name: a backend
// that fetches what is named alone would answer otherwise, and lose the write.
func GuardFootprints() { guarded = true }

func (s *State) guard(c Command) {
	s.touched = nil
	if _, whole := c.(*Restore); whole || !guarded {
		return
	}
	s.touched = make(map[Key]bool)
	for _, k := range c.Touches() {
		s.touched[k] = true
	}
}

func (s *State) touch(key []byte) {
	if s.touched != nil && !s.touched[Key(key)] {
		panic(fmt.Sprintf("session: %s is not in the footprint of the command", key))
	}
}
