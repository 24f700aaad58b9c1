package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Commands, entries, results and records are sealed by who makes them: behind
// the bytes of the message stands their checksum, CRC-32C in little endian,
// which finds every change of up to 32 bits that follow each other. The seal of
// a command is made where the command is, goes with it from node to node and
// into the log, and is checked by whoever applies it: no disk, memory or wire
// between the two can change it unseen.

// ErrDamaged is wrapped by the error for bytes that are not those that were
// sealed. Another copy of them is good; this one means nothing.
var ErrDamaged = errors.New("session: damaged")

// A Kind is what the bytes under a seal are; none can be taken for another.
type Kind uint32

const (
	Command Kind = iota + 1
	Entry
	Result
	Record
	Head
	Part
)

// SealLen is how many bytes a seal takes.
const SealLen = 4

var kindNames = [...]string{
	Command: "a command", Entry: "an entry", Result: "a result", Record: "a record", Head: "the head of a record",
	Part: "a remembered id",
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal appends the seal of what stands in b from the index on.
func (k Kind) Seal(b []byte, from int) []byte { return Bound{k, uint32(k)}.Seal(b, from) }

// Open returns what is under a seal.
func (k Kind) Open(b []byte) ([]byte, error) { return Bound{k, uint32(k)}.Open(b) }

// A Bound seal is of what is stored for one key, and holds under no other.
type Bound struct {
	kind  Kind
	start uint32
}

// Under returns the seal of a kind that is bound to a key.
func (k Kind) Under(key string) Bound {
	return Bound{k, crc32.Update(uint32(k), castagnoli, []byte(key))}
}

func (s Bound) sum(b []byte) uint32 { return crc32.Update(s.start, castagnoli, b) }

// Seal appends the seal of what stands in b from the index on.
func (s Bound) Seal(b []byte, from int) []byte {
	return binary.LittleEndian.AppendUint32(b, s.sum(b[from:]))
}

// Open returns what is under a seal.
func (s Bound) Open(b []byte) ([]byte, error) {
	n := len(b) - SealLen
	if n < 0 {
		return nil, fmt.Errorf("%w: %s of %d bytes", ErrDamaged, kindNames[s.kind], len(b))
	}
	if s.sum(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, fmt.Errorf("%w: the checksum of %s is wrong", ErrDamaged, kindNames[s.kind])
	}
	return b[:n], nil
}
