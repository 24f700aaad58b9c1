package ids

import (
	"encoding/binary"
)

// An idIndex finds ids by hash. It is derived, kept by the newest version of a
// record alone, and rebuilt when it has filled with what is no longer there.
type idIndex struct {
	slots []uint16 // number modulo indexModulus, plus 1; 0 is empty
	free  int      // inserts until it is rebuilt
}

// indexModulus divides 2^32 and is far more than what is remembered.
const indexModulus = 1 << 15

// newIndex returns an index of all that is remembered.
func newIndex(m *Set) *idIndex {
	size := 64
	for size < 2*m.Len()+2*chunkLen {
		size *= 2
	}
	x := &idIndex{slots: make([]uint16, size), free: size * 3 / 4}
	for i := range m.Len() {
		x.insert(m.at(i))
	}
	return x
}

func (x *idIndex) insert(r *Remembered) {
	mask := uint32(len(x.slots) - 1)
	i := binary.LittleEndian.Uint32(r.ID[:]) & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = uint16(r.seq%indexModulus + 1)
	x.free--
}

// add adds an id that comes next.
func (x *idIndex) add(m *Set, r *Remembered) {
	if x.free <= 0 {
		*x = *newIndex(m)
	}
	x.insert(r)
}

func (x *idIndex) find(m *Set, h idHash) *Remembered {
	mask := uint32(len(x.slots) - 1)
	first := uint32(m.first())
	for i := binary.LittleEndian.Uint32(h[:]) & mask; x.slots[i] != 0; i = (i + 1) & mask {
		// The one number in the window that is equal modulo indexModulus.
		behind := int((uint32(x.slots[i]) - 1 - first) % indexModulus)
		if behind < m.Len() {
			if r := m.at(behind); r.ID == h {
				return r
			}
		}
	}
	return nil
}
