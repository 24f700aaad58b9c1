package session

import (
	"math"
	"slices"
	"time"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
)

// The kinds of fields, each for both directions: see codec.

// varint takes a number of at most most.
func (f *codec) varint(most uint64) uint64 {
	if f.typ != protowire.VarintType {
		f.fail("wrong wire type")
		return 0
	}
	v, n := uint64(0), 1
	if f.pos < f.end && f.b[f.pos] < 0x80 {
		v = uint64(f.b[f.pos])
	} else if v, n = protowire.ConsumeVarint(f.b[f.pos:f.end]); n < 0 {
		f.fail("truncated")
		return 0
	}
	if v == 0 || n != protowire.SizeVarint(v) {
		f.fail("a zero that is to be left out, or a number that has bytes to spare")
		return 0
	}
	if v > most {
		f.fail("number is out of range")
		return 0
	}
	f.pos += n
	f.next()
	return v
}

func (f *codec) putVarint(num protowire.Number, v uint64) {
	if v != 0 {
		f.b = protowire.AppendVarint(protowire.AppendTag(f.b, num, protowire.VarintType), v)
	}
}

// unsigned is a field that is a number of at most most in every version.
func unsigned[T ~uint8 | ~uint16 | ~uint32 | ~uint64](f *codec, num protowire.Number, v *T, most uint64) {
	if f.write {
		f.putVarint(num, uint64(*v))
	} else if f.num == num {
		*v = T(f.varint(most))
	}
}

func (f *codec) uint16(num protowire.Number, v *uint16) { unsigned(f, num, v, math.MaxUint16) }
func (f *codec) uint32(num protowire.Number, v *uint32) { unsigned(f, num, v, math.MaxUint32) }
func (f *codec) uint64(num protowire.Number, v *uint64) { unsigned(f, num, v, math.MaxUint64) }

func (f *codec) bool(num protowire.Number, v *bool) {
	if f.write {
		f.putVarint(num, protowire.EncodeBool(*v))
	} else if f.num == num {
		*v = f.varint(1) == 1
	}
}

// int64 is for numbers that are seldom negative, sint64 for the others.
func (f *codec) int64(num protowire.Number, v *int64) {
	if f.write {
		f.putVarint(num, uint64(*v))
	} else if f.num == num {
		*v = int64(f.varint(math.MaxUint64))
	}
}

func (f *codec) duration(num protowire.Number, v *time.Duration) { f.int64(num, (*int64)(v)) }

func (f *codec) sint64(num protowire.Number, v *int64) {
	if f.write {
		f.putVarint(num, protowire.EncodeZigZag(*v))
	} else if f.num == num {
		*v = protowire.DecodeZigZag(f.varint(math.MaxUint64))
	}
}

func (f *codec) int32(num protowire.Number, v *int32) {
	wide := int64(*v)
	f.int64(num, &wide)
	f.narrow(wide, v)
}

func (f *codec) sint32(num protowire.Number, v *int32) {
	wide := int64(*v)
	f.sint64(num, &wide)
	f.narrow(wide, v)
}

func (f *codec) narrow(wide int64, v *int32) {
	if f.write {
		return // a record that is written is read by others, too
	}
	if wide < math.MinInt32 || wide > math.MaxInt32 {
		f.fail("number is out of range")
		return
	}
	*v = int32(wide)
}

// text is a string that is not kept: read, it may be a part of what it was read
// from.
func (f *codec) text(num protowire.Number, v *string) {
	if f.write {
		f.putText(num, *v)
	} else if f.num == num {
		if *v = f.textOf(); *v == "" {
			f.fail("an empty field that is to be left out")
		}
	}
}

func (f *codec) putText(num protowire.Number, v string) {
	if v != "" {
		f.b = protowire.AppendString(protowire.AppendTag(f.b, num, protowire.BytesType), v)
	}
}

func (f *codec) textOf() string {
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

// kept is a string that the state keeps for longer than what it was read from.
func (f *codec) kept(num protowire.Number, v *string) {
	if f.write {
		f.putText(num, *v)
	} else if f.num == num {
		*v = string(f.some())
	}
}

// name is a string of which there are few, kept once. The zero handle is
// written like the empty name, and read as the empty name, which has a value.
func (f *codec) name(num protowire.Number, v *unique.Handle[string]) {
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

// blob is a byte string; read, it is a copy.
func (f *codec) blob(num protowire.Number, v *[]byte) {
	if f.write {
		f.putBytes(num, *v)
	} else if f.num == num {
		*v = slices.Clone(f.some())
	}
}

func (f *codec) putBytes(num protowire.Number, v []byte) {
	if len(v) > 0 {
		f.b = protowire.AppendBytes(protowire.AppendTag(f.b, num, protowire.BytesType), v)
	}
}

func (f *codec) digest(num protowire.Number, v *Digest) {
	if f.write {
		if *v != (Digest{}) {
			f.putBytes(num, v[:])
		}
	} else if f.num == num {
		if b := f.bytesOf(); len(b) == len(v) {
			*v = Digest(b)
		}
		if *v == (Digest{}) {
			f.fail("a digest has 32 bytes that are not all zero")
		}
	}
}

func (f *codec) fingerprint(num protowire.Number, v *Fingerprint) {
	if f.write {
		if *v != (Fingerprint{}) {
			f.b = append(protowire.AppendTag(f.b, num, protowire.Fixed64Type), v[:]...)
		}
	} else if f.num == num {
		if f.typ != protowire.Fixed64Type || f.end-f.pos < len(v) {
			f.fail("a fingerprint has 8 bytes")
			return
		}
		if *v = Fingerprint(f.b[f.pos:]); *v == (Fingerprint{}) {
			f.fail("a zero that is to be left out")
			return
		}
		f.pos += len(v)
		f.next()
	}
}

// texts is a list of strings; see text.
func (f *codec) texts(num protowire.Number, v *[]string) {
	for i, n := elements(f, num, v, math.MaxInt); i < n; i++ {
		if f.write {
			f.b = protowire.AppendString(protowire.AppendTag(f.b, num, protowire.BytesType), (*v)[i])
		} else {
			(*v)[i] = f.textOf()
		}
	}
}

// keptAll is a list of strings that the state keeps.
func (f *codec) keptAll(num protowire.Number, v *[]string) {
	for i, n := elements(f, num, v, math.MaxInt); i < n; i++ {
		if f.write {
			f.b = protowire.AppendString(protowire.AppendTag(f.b, num, protowire.BytesType), (*v)[i])
		} else {
			(*v)[i] = string(f.bytesOf())
		}
	}
}

// facts is a packed list of numbers.
func (f *codec) facts(num protowire.Number, v *[]int64) {
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
				f.fail("truncated")
				return
			}
			if n != protowire.SizeVarint(x) {
				f.fail("a number that has bytes to spare")
				return
			}
			*v = append(*v, protowire.DecodeZigZag(x))
			b = b[n:]
		}
	}
}
