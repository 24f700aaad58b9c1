package session

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A maker may finish more ids than their numbers count: what is remembered, in
// one piece and in parts, is the same on both sides of that.
func TestNumbersOfIDsComeRound(t *testing.T) {
	for _, before := range []uint32{0, 1<<29 - 200, 1<<29 - 1, 1 << 29} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			start := IDs{dropped: before, n: before * chunkLen}
			if before > 0 {
				start.forgot = new([ForgottenParts]uint64)
			}
			whole := &Client{IDs: start}
			parts := map[int][]byte{}
			store := func(r Record) (head []byte) {
				p := Pack(r)
				for _, c := range p.Parts {
					if c.Whole {
						parts[c.Part] = nil
					}
					parts[c.Part] = append(parts[c.Part], c.Bytes...)
				}
				return p.Head
			}
			load := func(head []byte) *Client {
				r, err := Unpack(head)
				require.NoError(t, err)
				for part, b := range parts {
					r, err = WithPart(r, part, b)
					require.NoError(t, err)
				}
				return r.(*Client)
			}
			apart := load(store(&Client{IDs: start}))
			id := func(i int) string { return fmt.Sprintf("01JE%022d", i) }
			for i := range 4000 {
				whole.IDs.add(remembered(id(i), Fingerprint{}, Ended, 0, uint64(i)))
				apart.IDs.add(remembered(id(i), Fingerprint{}, Ended, 0, uint64(i)))
				if i%7 == 0 || i > 3950 {
					apart = load(store(apart))
				}
				if i >= MaxRemembered {
					require.GreaterOrEqual(t, whole.IDs.Len(), MaxRemembered)
				} else {
					require.Equal(t, i+1, whole.IDs.Len())
				}
				if i%97 != 0 && i < 3990 {
					continue
				}
				apart = load(store(apart))
				require.Equal(t, whole.IDs.Len(), apart.IDs.Len())
				for j := max(0, i-1100); j <= i; j += 13 {
					w, a := whole.IDs.find(id(j)), apart.IDs.find(id(j))
					require.Equal(t, i-j < whole.IDs.Len(), w != nil, "%d of %d", j, i)
					require.Equal(t, w, a)
					require.Equal(t, whole.IDs.newerThan(id(j)), apart.IDs.newerThan(id(j)))
				}
				joined, err := Join(apart)
				require.NoError(t, err)
				require.Equal(t, EncodeRecord(whole), EncodeRecord(joined))
				back, err := DecodeRecord(EncodeRecord(whole))
				require.NoError(t, err)
				require.NotNil(t, back.(*Client).IDs.find(id(i)))
			}
		})
	}
}
