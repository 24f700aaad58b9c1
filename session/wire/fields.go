package wire

import (
	"math"
	"slices"
	"time"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
)

// The kinds of fields, each for both directions: see Coder.

// varint takes a number of at most most.
func (f *Coder) varint(most uint64) uint64 {
	if f.typ != protowire.VarintType {
		f.Fail("wrong wire type")
		return 0
	}
	v, n := uint64(0), 1
	if f.pos < f.end && f.b[f.pos] < 0x80 {
		v = uint64(f.b[f.pos])
	} else if v, n = protowire.ConsumeVarint(f.b[f.pos:f.end]); n < 0 {
		f.Fail("truncated")
		return 0
	}
	if v == 0 || n != protowire.SizeVarint(v) {
		f.Fail("a zero that is to be left out, or a number that has bytes to spare")
		return 0
	}
	if v > most {
		f.Fail("number is out of range")
		return 0
	}
	f.pos += n
	f.next()
	return v
}

func (f *Coder) putVarint(num protowire.Number, v uint64) {
	if v != 0 {
		f.b = protowire.AppendVarint(protowire.AppendTag(f.b, num, protowire.VarintType), v)
	}
}

// Uint8 is a number of at most most in every version.
func (f *Coder) Uint8(num protowire.Number, v *uint8, most uint8) {
	if f.write {
		f.putVarint(num, uint64(*v))
	} else if f.num == num {
		*v = uint8(f.varint(uint64(most)))
	}
}

// Uint16, Uint32 and Uint64 are numbers that are never negative.
func (f *Coder) Uint16(num protowire.Number, v *uint16) {
	if f.write {
		f.putVarint(num, uint64(*v))
	} else if f.num == num {
		*v = uint16(f.varint(math.MaxUint16))
	}
}

// Uint32 is a number; see Uint16.
func (f *Coder) Uint32(num protowire.Number, v *uint32) {
	if f.write {
		f.putVarint(num, uint64(*v))
	} else if f.num == num {
		*v = uint32(f.varint(math.MaxUint32))
	}
}

// Uint64 is a number; see Uint16.
func (f *Coder) Uint64(num protowire.Number, v *uint64) {
	if f.write {
		f.putVarint(num, *v)
	} else if f.num == num {
		*v = f.varint(math.MaxUint64)
	}
}

// Bool is true or left out.
func (f *Coder) Bool(num protowire.Number, v *bool) {
	if f.write {
		f.putVarint(num, protowire.EncodeBool(*v))
	} else if f.num == num {
		*v = f.varint(1) == 1
	}
}

// Int64 and Int32 are for numbers that are seldom negative, Sint64 and Sint32
// for the others.
func (f *Coder) Int64(num protowire.Number, v *int64) {
	if f.write {
		f.putVarint(num, uint64(*v))
	} else if f.num == num {
		*v = int64(f.varint(math.MaxUint64))
	}
}

// Duration is a number of nanoseconds.
func (f *Coder) Duration(num protowire.Number, v *time.Duration) { f.Int64(num, (*int64)(v)) }

// Sint64 is a number; see Int64.
func (f *Coder) Sint64(num protowire.Number, v *int64) {
	if f.write {
		f.putVarint(num, protowire.EncodeZigZag(*v))
	} else if f.num == num {
		*v = protowire.DecodeZigZag(f.varint(math.MaxUint64))
	}
}

// Int32 is a number; see Int64.
func (f *Coder) Int32(num protowire.Number, v *int32) {
	wide := int64(*v)
	f.Int64(num, &wide)
	f.narrow(wide, v)
}

// Sint32 is a number; see Int64.
func (f *Coder) Sint32(num protowire.Number, v *int32) {
	wide := int64(*v)
	f.Sint64(num, &wide)
	f.narrow(wide, v)
}

func (f *Coder) narrow(wide int64, v *int32) {
	if f.write {
		return // a record that is written is read by others, too
	}
	if wide < math.MinInt32 || wide > math.MaxInt32 {
		f.Fail("number is out of range")
		return
	}
	*v = int32(wide)
}

// Text is a string that is not kept: read, it may be a part of what it was read
// from.
func (f *Coder) Text(num protowire.Number, v *string) {
	if f.write {
		f.putText(num, *v)
	} else if f.num == num {
		if *v = f.textOf(); *v == "" {
			f.Fail("an empty field that is to be left out")
		}
	}
}

func (f *Coder) putText(num protowire.Number, v string) {
	if v != "" {
		f.b = protowire.AppendString(protowire.AppendTag(f.b, num, protowire.BytesType), v)
	}
}

func (f *Coder) textOf() string {
	i, j := f.span()
	if f.err != nil {
		return ""
	}
	f.pos = j
	f.next()
	if f.s != "" {
		return f.s[i:j]
	}
	return string(f.b[i:j])
}

// Kept is a string that the state keeps for longer than what it was read from.
func (f *Coder) Kept(num protowire.Number, v *string) {
	if f.write {
		f.putText(num, *v)
	} else if f.num == num {
		*v = string(f.some())
	}
}

// Name is a string of which there are few, kept once. The zero handle is
// written like the empty name, and read as the empty name, which has a value.
func (f *Coder) Name(num protowire.Number, v *unique.Handle[string]) {
	if f.write {
		if *v != (unique.Handle[string]{}) {
			f.putText(num, v.Value())
		}
		return
	}
	if f.num == num {
		*v = f.names.handle(f.some())
	} else if *v == (unique.Handle[string]{}) {
		*v = f.names.handle(nil)
	}
}

// Blob is a byte string; read, it is a copy.
func (f *Coder) Blob(num protowire.Number, v *[]byte) {
	if f.write {
		f.putBytes(num, *v)
	} else if f.num == num {
		*v = slices.Clone(f.some())
	}
}

// Room writes a byte string of n bytes, which are returned to be filled.
func (f *Coder) Room(num protowire.Number, n int) []byte {
	f.b = protowire.AppendVarint(protowire.AppendTag(f.b, num, protowire.BytesType), uint64(n))
	from := len(f.b)
	f.b = slices.Grow(f.b, n)[:from+n]
	return f.b[from:]
}

// View reads a byte string without a copy; nil if it is left out.
func (f *Coder) View(num protowire.Number) []byte {
	if f.num != num {
		return nil
	}
	return f.some()
}

func (f *Coder) putBytes(num protowire.Number, v []byte) {
	if len(v) > 0 {
		f.b = protowire.AppendBytes(protowire.AppendTag(f.b, num, protowire.BytesType), v)
	}
}

// Digest is a hash of 32 bytes.
func (f *Coder) Digest(num protowire.Number, v *[32]byte) {
	if f.write {
		if *v != ([32]byte{}) {
			f.putBytes(num, v[:])
		}
	} else if f.num == num {
		if b := f.bytesOf(); len(b) == len(v) {
			*v = [32]byte(b)
		}
		if *v == ([32]byte{}) {
			f.Fail("a digest has 32 bytes that are not all zero")
		}
	}
}

// Fingerprint is a hash of 8 bytes.
func (f *Coder) Fingerprint(num protowire.Number, v *[8]byte) {
	if f.write {
		if *v != ([8]byte{}) {
			f.b = append(protowire.AppendTag(f.b, num, protowire.Fixed64Type), v[:]...)
		}
	} else if f.num == num {
		if f.typ != protowire.Fixed64Type || f.end-f.pos < len(v) {
			f.Fail("a fingerprint has 8 bytes")
			return
		}
		if *v = [8]byte(f.b[f.pos:]); *v == ([8]byte{}) {
			f.Fail("a zero that is to be left out")
			return
		}
		f.pos += len(v)
		f.next()
	}
}

// Texts is a list of strings; see Text.
func (f *Coder) Texts(num protowire.Number, v *[]string) {
	if f.write {
		for _, text := range *v {
			f.b = protowire.AppendString(protowire.AppendTag(f.b, num, protowire.BytesType), text)
		}
		return
	}
	n := f.Run(num, math.MaxInt)
	from := len(*v)
	*v = slices.Grow(*v, n)[:from+n]
	for i := range n {
		(*v)[from+i] = f.textOf()
	}
}

// KeptElement is an element of a list of strings, which may be empty; see Kept.
func (f *Coder) KeptElement(num protowire.Number, v *string) {
	if f.write {
		f.b = protowire.AppendString(protowire.AppendTag(f.b, num, protowire.BytesType), *v)
	} else {
		*v = string(f.bytesOf())
	}
}

// Sint64s is a packed list of numbers.
func (f *Coder) Sint64s(num protowire.Number, v *[]int64) {
	if f.write {
		if len(*v) == 0 {
			return
		}
		size := 0
		for _, x := range *v {
			size += protowire.SizeVarint(protowire.EncodeZigZag(x))
		}
		f.b = protowire.AppendVarint(protowire.AppendTag(f.b, num, protowire.BytesType), uint64(size))
		for _, x := range *v {
			f.b = protowire.AppendVarint(f.b, protowire.EncodeZigZag(x))
		}
	} else if f.num == num {
		for b := f.some(); len(b) > 0; {
			x, n := protowire.ConsumeVarint(b)
			if n < 0 {
				f.Fail("truncated")
				return
			}
			if n != protowire.SizeVarint(x) {
				f.Fail("a number that has bytes to spare")
				return
			}
			*v = append(*v, protowire.DecodeZigZag(x))
			b = b[n:]
		}
	}
}
