package session

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

// A sealed is what the bytes under a seal are; none can be taken for another.
type sealed uint32

const (
	sealCommand sealed = iota + 1
	sealEntry
	sealResult
	sealRecord
	sealHead
	sealPart
)

// sealLen is how many bytes a seal takes.
const sealLen = 4

var sealNames = [...]string{
	sealCommand: "a command", sealEntry: "an entry", sealResult: "a result", sealRecord: "a record", sealHead: "the head of a record",
	sealPart: "a remembered id",
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal appends the seal of what stands in b from the index on.
func (s sealed) seal(b []byte, from int) []byte { return s.under("").seal(b, from) }

// open returns what is under a seal.
func (s sealed) open(b []byte) ([]byte, error) { return s.under("").open(b) }

// A bound seal is of what is stored for one key, and holds under no other.
type bound struct {
	sealed
	start uint32
}

func (s sealed) under(k Key) bound {
	return bound{s, crc32.Update(uint32(s), castagnoli, []byte(k))}
}

func (s bound) sum(b []byte) uint32 { return crc32.Update(s.start, castagnoli, b) }

func (s bound) seal(b []byte, from int) []byte {
	return binary.LittleEndian.AppendUint32(b, s.sum(b[from:]))
}

func (s bound) open(b []byte) ([]byte, error) {
	n := len(b) - sealLen
	if n < 0 {
		return nil, fmt.Errorf("%w: %s of %d bytes", ErrDamaged, sealNames[s.sealed], len(b))
	}
	if s.sum(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, fmt.Errorf("%w: the checksum of %s is wrong", ErrDamaged, sealNames[s.sealed])
	}
	return b[:n], nil
}
