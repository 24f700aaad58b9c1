package ids

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	logv1 "example.com/govnode/proto/govnode/log/v1"
	"example.com/govnode/session/wire"
)

const ended = 15 // a code

const key = "cns/w"

// parted keeps ids as a backend does that stores parts on their own.
type parted struct {
	head  []byte
	parts [Parts][]byte
}

func (p *parted) store(m Set) {
	for _, c := range m.Store(key) {
		if c.Whole {
			p.parts[c.Part] = nil
		}
		p.parts[c.Part] = append(p.parts[c.Part], c.Bytes...)[c.Drop:]
	}
	p.head = m.AppendHead(nil)
}

// load returns the ids with the parts that are named; -1 stands for all.
func (p *parted) load(t *testing.T, parts ...int) Set {
	t.Helper()
	m, rest, ok := ReadHead(p.head)
	require.True(t, ok)
	require.Empty(t, rest)
	for part, b := range p.parts {
		for _, named := range parts {
			if part == named || named < 0 {
				require.NoError(t, m.Load(key, part, b))
			}
		}
	}
	return m
}

func (p *parted) size() (n int) {
	for _, b := range p.parts {
		n += len(b)
	}
	return n
}

// encode returns the ids as the first field of a message.
func encode(m *Set) []byte {
	f := wire.NewWriter(nil)
	for s := f.Top(); f.Visit(&s); {
		m.Field(&f, 1)
	}
	return f.Bytes()
}

func decode(t *testing.T, b []byte) (m Set) {
	t.Helper()
	f := wire.NewReader(b, nil)
	for s := f.Top(); f.Visit(&s); {
		m.Field(&f, 1)
	}
	require.NoError(t, f.Err())
	return m
}

// finishedID is a ULID whose time rises.
func finishedID(i int) string { return fmt.Sprintf("01JE%06d%016d", i, i) }

// numberedFrom returns the ids of a maker that has finished some, the first of
// which had that number.
func numberedFrom(number uint64) Set {
	var m Set
	for i := range 1200 {
		m.Add(New(finishedID(1<<20+i), [8]byte{}, ended, 0, 0))
	}
	m.n += number
	for i := range m.Len() {
		m.at(i).seq += uint32(number)
	}
	m.index = nil
	return m
}

// What is remembered and what is forgotten is the same where all ids stand in
// one piece and where they stand in parts, whichever of them are loaded, and on
// both sides of where the number that stands beside an id comes round.
func TestIDsInOnePieceAndInParts(t *testing.T) {
	for _, before := range []uint64{0, 1<<32 - 3*blockLen, 1<<32 - 20*blockLen, 1 << 32, 1 << 40} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			var whole Set
			if before > 0 {
				whole = numberedFrom(before)
			}
			var p parted
			p.store(whole.Detach())
			for i := range 4000 {
				id := finishedID(i)
				apart := p.load(t, hashID(id).part())
				for range 1 + i%3 { // others are finished by the way
					r := New(id, [8]byte{}, ended, 0, uint64(i))
					whole.Add(r)
					apart.Add(r)
					id = fmt.Sprint(id, "-lapsed")
				}
				p.store(apart)
				require.Equal(t, whole.Len(), apart.Len())
				require.Equal(t, whole.NewerThan(), apart.NewerThan())
				if before > 0 {
					require.GreaterOrEqual(t, whole.Len(), MaxRemembered)
				}
				require.Less(t, whole.Len(), MaxRemembered+blockLen)
				if i%97 != 0 && i < 3990 {
					continue
				}
				apart = p.load(t, -1)
				require.Equal(t, whole.Newest(), apart.Newest())
				for j := max(0, i-1100); j <= i; j += 13 {
					require.Equal(t, whole.Find(finishedID(j)), apart.Find(finishedID(j)))
				}
				joined, err := apart.Join()
				require.NoError(t, err)
				require.Equal(t, encode(&whole), encode(&joined))
				back := decode(t, encode(&whole))
				require.NotNil(t, back.Find(finishedID(i)))
			}
			require.NotZero(t, whole.NewerThan())
		})
	}
}

// The last 1,024 are known, and an id that is not known is newer than what was
// forgotten, if it was never finished and is newer than all that were.
func TestTheLastIDsAreRemembered(t *testing.T) {
	var m Set
	for i := range 5000 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, uint64(i)))
		if i%101 != 0 && i < 4990 {
			continue
		}
		for j := range i + 1 {
			r := m.Find(finishedID(j))
			switch {
			case i-j < MaxRemembered:
				require.NotNil(t, r, "%d of %d", j, i)
				require.EqualValues(t, j, r.Value)
			case i-j >= MaxRemembered+blockLen:
				require.Nil(t, r, "%d of %d", j, i)
			}
			require.True(t, r != nil || Time(finishedID(j)) <= m.NewerThan(), "%d of %d may run again", j, i)
		}
		require.Nil(t, m.Find(finishedID(i+1)))
	}
}

// Whatever order the times of ids come in, and if some have none: an id with a time
// that is forgotten is older than what a new one must be newer than, in one piece
// and in parts.
func TestWhatIsForgottenStaysOld(t *testing.T) {
	const n = 2000
	for name, id := range map[string]func(i int) string{
		"rising":              finishedID,
		"falling":             func(i int) string { return finishedID(n - i) },
		"the first is newest": func(i int) string { return finishedID((i + n - 1) % n) },
		"the later have none": func(i int) string {
			if i < blockLen {
				return finishedID(i)
			}
			return fmt.Sprint("id", i)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var whole Set
			var p parted
			p.store(Set{})
			for i := range n {
				r := New(id(i), [8]byte{}, ended, 0, 0)
				whole.Add(r)
				apart := p.load(t)
				apart.Add(r)
				p.store(apart)
				require.Equal(t, whole.NewerThan(), apart.NewerThan(), "after %d", i)
				if i%blockLen != 0 {
					continue
				}
				apart = p.load(t, -1)
				for _, m := range []*Set{&whole, &apart} {
					for j := range i + 1 {
						require.True(t, m.Find(id(j)) != nil || Time(id(j)) <= m.NewerThan(), "%d of %d may run again", j, i)
					}
				}
			}
		})
	}
}

// Parts that nobody looks at do not grow, where ids are finished by the way alone.
func TestPartsThatNobodyLoadsStaySmall(t *testing.T) {
	var p parted
	p.store(Set{})
	most := 0
	for i := range 20_000 {
		m := p.load(t)
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
		p.store(m)
		most = max(most, p.size())
	}
	require.LessOrEqual(t, most, (MaxRemembered+blockLen)*partEntryLen)
	m := p.load(t, -1)
	for i := range 20_000 {
		require.Equal(t, 20_000-i <= m.Len(), m.Find(finishedID(i)) != nil, i)
	}
}

// A maker that was made to forget all its ids keeps the time of the newest.
func TestForgottenWithoutIDs(t *testing.T) {
	m := Forgotten(1<<44 + 5)
	var p parted
	p.store(m)
	require.Zero(t, p.size())
	apart := p.load(t, -1)
	require.EqualValues(t, 1<<44+5, apart.NewerThan())
	joined, err := apart.Join()
	require.NoError(t, err)
	require.Equal(t, encode(&m), encode(&joined))
	require.Equal(t, m, decode(t, encode(&m)))
	require.EqualValues(t, 1<<44+5, m.Newest())
}

// What is written is message IDs of log.proto, and read as it was; an index is
// no part of it, and how many ids there were is.
func TestTheBytesAreThoseOfLogProto(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range []int{0, 1, 7, 8, 9, 31, 33, 40, MaxRemembered, MaxRemembered + 200} {
		for _, before := range []uint64{0, blockLen, 1 << 32} {
			var m Set
			if before > 0 {
				m = numberedFrom(before)
			}
			for i := range n {
				m.Add(New(finishedID(i), [8]byte{byte(i)}, ended, uint16(i), uint64(i)<<40))
			}
			want := &logv1.IDs{N: m.n, Forgot: m.forgot}
			for i := range m.Len() {
				r := m.at(i)
				want.Remembered = append(append(want.Remembered, r.ID[:]...), r.Content[:]...)
				for _, x := range []uint64{r.Value, r.meta} {
					for i := range 8 {
						want.Remembered = append(want.Remembered, byte(x>>(8*i)))
					}
				}
			}
			b := encode(&m)
			require.False(t, seen[string(b)])
			seen[string(b)] = true
			if m.n == 0 {
				require.Empty(t, b)
				continue
			}
			inner, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
			require.NoError(t, err)
			require.Equal(t, protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), inner), b)
			m.index = nil // derived
			require.Equal(t, b, encode(&m))
			back := decode(t, b)
			require.Equal(t, m, back)
			back.Add(New("next", [8]byte{}, ended, 0, 0))
			require.NotNil(t, back.Find("next"))
			if n > 0 {
				require.NotNil(t, back.Find(finishedID(n-1)))
			}
		}
	}
}

// There are never as many as do not fit into a number with a sign, so that numbers may be
// taken from each other.
func TestHowManyThereMayBe(t *testing.T) {
	m := numberedFrom(1<<63 - 40*blockLen)
	for i := 0; m.n < 1<<63; i++ {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
	}
	back := decode(t, encode(&m))
	require.Equal(t, m.n, back.n)
	var p parted
	p.store(m.Detach())
	apart := p.load(t, -1)
	require.Equal(t, m.n, apart.n)
	m.Add(New("next", [8]byte{}, ended, 0, 0))
	f := wire.NewReader(encode(&m), nil)
	for s := f.Top(); f.Visit(&s); {
		new(Set).Field(&f, 1)
	}
	require.ErrorContains(t, f.Err(), "out of range")
}

// Each id is found when it was just finished, whatever number is its own: also
// the last one before those that stand in an index come round.
func TestEveryNumberIsFound(t *testing.T) {
	var m Set
	for i := range 1<<17 + 2 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, uint64(i)))
		r := m.Find(finishedID(i))
		require.NotNil(t, r, i)
		require.EqualValues(t, i, r.Value)
	}
}

// Ids whose parts were stored are those that they were before, for whoever goes on
// with them, and of parts that nobody loaded nothing is kept.
func TestStoredIDsGoOn(t *testing.T) {
	for name, loaded := range map[string][]int{"all": {-1}, "some": {0, 3, 4, 15}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			var whole Set
			var p parted
			p.store(Set{})
			apart := p.load(t, loaded...)
			for i := range 3000 {
				r := New(finishedID(i), [8]byte{}, ended, 0, uint64(i))
				whole.Add(r)
				apart.Add(r)
				if i%3 != 0 {
					continue
				}
				apart.Store(key)
				if i%99 != 0 {
					continue
				}
				for part := range Parts {
					if !apart.Known(part) {
						require.Empty(t, apart.parts.loaded[part])
					}
				}
				for j := i; j >= max(0, i-1300); j -= 1 + (i-j)/8 { // the newest closely
					if apart.Known(Part(finishedID(j))) {
						require.Equal(t, whole.Find(finishedID(j)), apart.Find(finishedID(j)), j)
					}
				}
				if name == "all" {
					joined, err := apart.Join()
					require.NoError(t, err)
					require.Equal(t, encode(&whole), encode(&joined))
				}
			}
		})
	}
}

// The time in an id is that of a ULID or a UUIDv7, and of nothing that only looks
// like one.
func TestTimeOfAnID(t *testing.T) {
	const ulid, uuid = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "018f4d5c-7a1b-7c3d-8e4f-5a6b7c8d9e0f"
	for id, want := range map[string]uint64{
		ulid: 1469922850259, strings.ToLower(ulid): 1469922850259, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ": 17_592_186_044_415,
		"00000000010000000000000000": 1, "8ZZZZZZZZZZZZZZZZZZZZZZZZZ": 0,
		uuid: 0x018f4d5c7a1b, strings.ToUpper(uuid): 0x018f4d5c7a1b, "ffffffff-ffff-7fff-8fff-ffffffffffff": MaxTime,
		"00000000-0001-7000-8000-000000000000": 1, "018f4d5c-7a1b-4c3d-8e4f-5a6b7c8d9e0f": 0,
		"": 0, "an id": 0, ulid + "0": 0, ulid[1:]: 0, uuid + "0": 0, uuid[1:]: 0,
	} {
		require.Equal(t, want, Time(id), id)
	}
	for _, id := range []string{ulid, uuid} {
		for i := range id {
			require.Zero(t, Time(id[:i]+"!"+id[i+1:]), "%s with another byte %d", id, i)
			if id[i] == '-' {
				require.Zero(t, Time(id[:i]+"0"+id[i+1:]), "%s with another byte %d", id, i)
			}
		}
	}
}

// Two versions of one record each go on by themselves.
func TestDetachedIDsGoTheirOwnWay(t *testing.T) {
	for _, n := range []int{0, 1, chunkLen - 1, chunkLen, chunkLen + 1, 3 * chunkLen, 5 * chunkLen} {
		var m Set
		for i := range n {
			m.Add(New(fmt.Sprint("both", i), [8]byte{1}, ended, 0, 0))
		}
		d := m.Detach()
		d.Add(New("one", [8]byte{2}, ended, 0, 0))
		m.Add(New("other", [8]byte{3}, ended, 0, 0))
		require.Equal(t, [8]byte{2}, d.Find("one").Content, "after %d", n)
		require.Nil(t, d.Find("other"))
		require.Equal(t, [8]byte{3}, m.Find("other").Content, "after %d", n)
		require.Nil(t, m.Find("one"))
	}
}

// So it is where the ids stand in parts.
func TestDetachedIDsInPartsGoTheirOwnWay(t *testing.T) {
	for n := range 10 {
		var p parted
		p.store(Set{})
		m := p.load(t, -1)
		for i := range n {
			m.Add(New(fmt.Sprint("both", i), [8]byte{1}, ended, 0, 0))
		}
		d := m.Detach()
		d.Add(New("one", [8]byte{2}, ended, 0, 0))
		m.Add(New("other", [8]byte{3}, ended, 0, 0))
		require.NotNil(t, d.Find("one"), "after %d", n)
		require.Nil(t, d.Find("other"), "after %d", n)
		require.NotNil(t, m.Find("other"), "after %d", n)
		require.Nil(t, m.Find("one"), "after %d", n)
	}
}

// The last 1,024 are remembered, and up to 127 more: then the oldest 128 are forgotten.
func TestHowManyAreRemembered(t *testing.T) {
	var m Set
	for i := range 1151 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
	}
	require.Equal(t, 1151, m.Len())
	require.NotNil(t, m.Find(finishedID(0)))
	require.Zero(t, m.NewerThan())
	m.Add(New(finishedID(1151), [8]byte{}, ended, 0, 0))
	require.Equal(t, 1024, m.Len())
	require.Nil(t, m.Find(finishedID(127)))
	require.NotNil(t, m.Find(finishedID(128)))
	require.Equal(t, Time(finishedID(127)), m.NewerThan())
}

// What is remembered of an id does not run over into what stands beside it.
func TestWhatIsRememberedOfAnID(t *testing.T) {
	for _, tt := range []struct {
		id         string
		time       uint64
		code       uint8
		given, was uint16
	}{
		{"7ZZZZZZZZZZZZZZZZZZZZZZZZZ", 1<<44 - 1, 63, 1<<14 - 1, 1<<14 - 1},
		{"00000000010000000000000000", 1, 0, 1 << 14, 0},
		{"00000000010000000000000000", 1, 1, 1<<16 - 1, 1<<14 - 1},
		{"an id", 0, 42, 5, 5},
	} {
		r := New(tt.id, [8]byte{7}, tt.code, tt.given, 9)
		require.Equal(t, tt.time, r.Time(), tt.id)
		require.Equal(t, tt.code, r.Code(), tt.id)
		require.Equal(t, tt.was, r.Rule(), tt.id)
	}
}

// The part of an id never changes: what was stored stands there.
func TestThePartOfAnID(t *testing.T) {
	seen := map[int]bool{}
	for i := range 400 {
		sum := sha256.Sum256([]byte(finishedID(i)))
		require.Equal(t, int(sum[11])%16, Part(finishedID(i)))
		seen[Part(finishedID(i))] = true
	}
	require.Len(t, seen, 16)
}

// Ids that stand in one piece take the place of whatever was stored in parts.
func TestStoredIDsAreReplaced(t *testing.T) {
	var p parted
	var m Set
	for i := range 40 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
	}
	p.store(m)
	m = Forgotten(5)
	m.Add(New("another", [8]byte{}, ended, 0, 0))
	p.store(m)
	require.Equal(t, partEntryLen, p.size())
	apart := p.load(t, -1)
	require.NotNil(t, apart.Find("another"))
	require.Nil(t, apart.Find(finishedID(1)))
	joined, err := apart.Join()
	require.NoError(t, err)
	require.Equal(t, 1, joined.Len())
}

// A set tells which parts have ids, loaded or not, and which are known.
func TestWhichPartsThereAre(t *testing.T) {
	var m Set
	require.False(t, m.Has(0), "they stand here")
	require.True(t, m.Known(0))
	var p parted
	has := map[int]bool{}
	for i := 0; len(has) < Parts/2; i++ {
		if part := Part(finishedID(i)); part%2 == 0 {
			has[part] = true
			m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
		}
	}
	p.store(m)
	apart := p.load(t, 2, 3)
	for part := range Parts {
		require.Equal(t, part%2 == 0, apart.Has(part), part)
		require.Equal(t, part == 2 || part == 3, apart.Known(part), part)
	}
}

// Only who knows all parts, and has stored what was added, has the whole.
func TestJoinedIDsAreAllOfThem(t *testing.T) {
	var p parted
	var m Set
	for i := range 40 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
	}
	p.store(m)
	some := p.load(t, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
	_, err := some.Join()
	require.Error(t, err)
	all := p.load(t, -1)
	all.Add(New("more", [8]byte{}, ended, 0, 0))
	_, err = all.Join()
	require.Error(t, err)
	all.Store(key)
	joined, err := all.Join()
	require.NoError(t, err)
	require.Equal(t, 41, joined.Len())
}

// What is not the whole head of ids, or cannot be one, is none.
func TestHeadsThatAreNone(t *testing.T) {
	var m Set
	m.Add(New("7ZZZZZZZZZZZZZZZZZZZZZZZZZ", [8]byte{}, ended, 0, 0)) // the newest there can be
	for i := range 199 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
	}
	var p parted
	p.store(m)
	_, rest, ok := ReadHead(append(slices.Clone(p.head), "rest"...))
	require.True(t, ok)
	require.Equal(t, "rest", string(rest))
	for n := range p.head {
		_, _, ok := ReadHead(p.head[:n])
		require.False(t, ok, "the first %d bytes of %d", n, len(p.head))
	}
	at := len(p.head) - Parts // the counts of the last block
	for _, by := range []byte{1, 0xff} {
		b := slices.Clone(p.head)
		b[at] += by
		_, _, ok := ReadHead(b)
		require.False(t, ok, "another number of ids")
	}
	head := func(numbers ...uint64) (b []byte) {
		for _, n := range numbers {
			b = binary.AppendUvarint(b, n)
		}
		return b
	}
	one := append(make([]byte, Parts-1), 1)
	for name, b := range map[string][]byte{
		"more than there may be":       append(head(1<<63+1, 0), make([]byte, 400)...),
		"a time beyond all":            append(head(1, 0, MaxTime+1), one...),
		"a number with bytes to spare": append([]byte{0x81, 0, 0, 0}, one...),
		"a zero with bytes to spare":   {0x80, 0, 0},
		"no number at all":             {},
		"a number without an end":      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		_, _, ok := ReadHead(b)
		require.False(t, ok, name)
	}
	for name, b := range map[string][]byte{
		"none": head(0, 0), "all forgotten": head(0, 1<<64-1), "one": append(head(1, 0, MaxTime), one...),
	} {
		_, rest, ok := ReadHead(b)
		require.True(t, ok, name)
		require.Empty(t, rest, name)
	}
}

// A part is that of a record that has parts, and one of them.
func TestPartsThatAreNone(t *testing.T) {
	var m Set
	require.Error(t, m.Load("key", 0, nil), "it has none")
	p := parted{}
	for i := range 40 {
		m.Add(New(finishedID(i), [8]byte{}, ended, 0, 0))
	}
	p.store(m)
	m = p.load(t)
	for _, part := range []int{-1, Parts, Parts + 1} {
		require.Error(t, m.Load("key", part, nil), part)
	}
}
