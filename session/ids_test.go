package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// parted keeps a client as a backend does that stores parts on their own.
type parted struct {
	head  []byte
	parts [ForgottenParts][]byte
}

const partedKey = Key("cns/w")

func (p *parted) store(r Record) {
	packed := Pack(partedKey, r)
	p.head = packed.Head
	for _, c := range packed.Parts {
		if c.Whole {
			p.parts[c.Part] = nil
		}
		p.parts[c.Part] = append(p.parts[c.Part], c.Bytes...)[c.Drop:]
	}
}

// load returns the client with the parts that are named; nil stands for all.
func (p *parted) load(t *testing.T, parts ...int) *Client {
	t.Helper()
	r, err := Unpack(p.head)
	require.NoError(t, err)
	for part, b := range p.parts {
		for _, named := range parts {
			if part == named || named < 0 {
				r, err = WithPart(partedKey, r, part, b)
				require.NoError(t, err)
			}
		}
	}
	return r.(*Client)
}

func (p *parted) size() (n int) {
	for _, b := range p.parts {
		n += len(b)
	}
	return n
}

// finishedID is a ULID whose time rises.
func finishedID(i int) string { return fmt.Sprintf("01JE%06d%016d", i, i) }

// numberedFrom returns the ids of a maker that has finished some, the first of
// which had that number.
func numberedFrom(number uint64) IDs {
	var m IDs
	for i := range 1200 {
		m.add(remembered(finishedID(1<<20+i), Fingerprint{}, Ended, 0, 0))
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
			whole := &Client{}
			if before > 0 {
				whole.IDs = numberedFrom(before)
			}
			var p parted
			p.store(&Client{IDs: whole.IDs.detach()})
			for i := range 4000 {
				id := finishedID(i)
				apart := p.load(t, hashID(id).part())
				for range 1 + i%3 { // others are finished by the way
					r := remembered(id, Fingerprint{}, Ended, 0, uint64(i))
					whole.IDs.add(r)
					apart.IDs.add(r)
					id = fmt.Sprint(id, "-lapsed")
				}
				p.store(apart)
				require.Equal(t, whole.IDs.Len(), apart.IDs.Len())
				require.Equal(t, whole.IDs.newerThan(), apart.IDs.newerThan())
				if before > 0 {
					require.GreaterOrEqual(t, whole.IDs.Len(), MaxRemembered)
				}
				require.Less(t, whole.IDs.Len(), MaxRemembered+blockLen)
				if i%97 != 0 && i < 3990 {
					continue
				}
				apart = p.load(t, -1)
				require.Equal(t, whole.IDs.newest(), apart.IDs.newest())
				for j := max(0, i-1100); j <= i; j += 13 {
					require.Equal(t, whole.IDs.find(finishedID(j)), apart.IDs.find(finishedID(j)))
				}
				joined, err := Join(apart)
				require.NoError(t, err)
				require.Equal(t, EncodeRecord(whole), EncodeRecord(joined))
				back, err := DecodeRecord(EncodeRecord(whole))
				require.NoError(t, err)
				require.NotNil(t, back.(*Client).IDs.find(finishedID(i)))
			}
			require.NotZero(t, whole.IDs.newerThan())
		})
	}
}

// The last 1,024 are known, and an id that is not known is newer than what was
// forgotten, if it was never finished and is newer than all that were.
func TestTheLastIDsAreRemembered(t *testing.T) {
	var m IDs
	for i := range 5000 {
		m.add(remembered(finishedID(i), Fingerprint{}, Ended, 0, uint64(i)))
		if i%101 != 0 && i < 4990 {
			continue
		}
		for j := range i + 1 {
			r := m.find(finishedID(j))
			switch {
			case i-j < MaxRemembered:
				require.NotNil(t, r, "%d of %d", j, i)
				require.EqualValues(t, j, r.Value)
			case i-j >= MaxRemembered+blockLen:
				require.Nil(t, r, "%d of %d", j, i)
			}
			require.True(t, r != nil || IDTime(finishedID(j)) <= m.newerThan(), "%d of %d may run again", j, i)
		}
		require.Nil(t, m.find(finishedID(i+1)))
	}
}

// Parts that nobody looks at do not grow: a session whose calls all lapse, and
// which is settled by Ticks alone.
func TestPartsOfIDsThatOnlyLapseStaySmall(t *testing.T) {
	var p parted
	p.store(&Client{})
	most := 0
	for i := range 20_000 {
		c := p.load(t)
		c.Open = []Held{{
			Holder: holder(KindClient, "c", finishedID(i)), Deadline: time.Duration(i), Pools: []Hold{{Token: 1}},
		}}
		require.True(t, c.settle(time.Duration(i)))
		p.store(c)
		most = max(most, p.size())
	}
	require.LessOrEqual(t, most, (MaxRemembered+blockLen)*partEntryLen)
	c := p.load(t, -1)
	for i := range 20_000 {
		require.Equal(t, 20_000-i <= c.IDs.Len(), c.IDs.find(finishedID(i)) != nil, i)
	}
}

// A maker that was made to forget all its ids keeps the time of the newest.
func TestForgottenWithoutIDs(t *testing.T) {
	c := &Client{IDs: IDs{forgot: 1<<44 + 5}}
	var p parted
	p.store(c)
	require.Zero(t, p.size())
	require.Equal(t, c.IDs.newerThan(), p.load(t).IDs.newerThan())
	joined, err := Join(p.load(t, -1))
	require.NoError(t, err)
	require.Equal(t, EncodeRecord(c), EncodeRecord(joined))
	back, err := DecodeRecord(EncodeRecord(c))
	require.NoError(t, err)
	require.Equal(t, c, back)
	require.Equal(t, c.IDs.forgot, back.(*Client).IDs.newest())
}
