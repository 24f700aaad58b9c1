package session

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sealedThings are encodings of everything that is sealed, of every kind, and
// what decodes them.
func sealedThings(t *testing.T) map[string]struct {
	b      []byte
	decode func([]byte) error
} {
	t.Helper()
	all := map[string]struct {
		b      []byte
		decode func([]byte) error
	}{}
	add := func(name string, b []byte, decode func([]byte) error) {
		require.NoError(t, decode(b), name)
		all[name] = struct {
			b      []byte
			decode func([]byte) error
		}{b, decode}
	}
	command := func(b []byte) error { _, err := DecodeCommand(b); return err }
	entry := func(b []byte) error { _, _, err := DecodeEntry(b); return err }
	result := func(b []byte) error { _, err := DecodeResult(b); return err }
	record := func(b []byte) error { _, err := DecodeRecord(b); return err }
	head := func(b []byte) error { _, err := Unpack(b); return err }

	var cmds []Command
	for name, c := range validCommands() {
		cmds = append(cmds, c)
		add("command "+name, EncodeCommand(c), command)
		add("entry with "+name, JoinEntry(nil, time.Minute, [][]byte{EncodeCommand(c), EncodeCommand(typicalEnd())}), entry)
	}
	require.Len(t, cmds, kinds)
	add("empty command", EncodeCommand(&Restore{}), command)
	add("empty entry", EncodeEntry(0, nil), entry)
	f := newFiller(11)
	for i, r := range allRecords() {
		name := reflect.TypeOf(r).Elem().Name()
		for r = randomRecord(f, i); len(EncodeRecord(r)) > 2000; {
			r = randomRecord(f, i)
		}
		add("record "+name, EncodeRecord(r), record)
		add("head of "+name, Pack("", r).Head, head)
	}
	add("empty result", EncodeResult(&Result{}), result)
	add("result", EncodeResult(&Result{
		Code: Admitted, Grants: []Grant{{"policy/research", 12, time.Minute}, {"browser", 13, time.Minute}},
		Counters: Counters{Attempts: 3, Calls: 2}, Digest: Digest{1}, Pools: []string{"p"}, Facts: []int64{1, -2},
	}), result)
	return all
}

// Every bit that flips alone, and every burst of up to 32 bits, is found and
// called damage. The bits of a byte count from the lowest, as on a wire.
func TestDamageIsFound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for name, x := range sealedThings(t) {
		b := bytes.Clone(x.b)
		flip := func(at int, pattern uint32) {
			for i := range 32 {
				if pattern>>i&1 == 1 {
					b[(at+i)/8] ^= 1 << ((at + i) % 8)
				}
			}
		}
		check := func(at int, pattern uint32) {
			flip(at, pattern)
			err := x.decode(b)
			if !errors.Is(err, ErrDamaged) { // not by require: it is asked a million times
				require.FailNow(t, "not found", "%s: bit %d of %d, pattern %08x: %v", name, at, 8*len(b), pattern, err)
			}
			flip(at, pattern)
		}
		for at := range 8 * len(b) {
			check(at, 1)
			for n := 2; n <= min(32, 8*len(b)-at); n++ {
				ends := uint32(1) | 1<<(n-1)
				check(at, ends)
				if n == 32 || n%8 == at%8 {
					check(at, ends|r.Uint32()&(1<<(n-1)-1))
					check(at, 1<<(n-1)|(1<<(n-1)-1)) // all of them
				}
			}
		}
		require.Equal(t, x.b, b)
	}
}

// A command that was damaged before it came into its entry is found, too.
func TestDamageBeforeTheEntryIsFound(t *testing.T) {
	good := EncodeCommand(typicalBegin())
	for at := range 8 * len(good) {
		bad := bytes.Clone(good)
		bad[at/8] ^= 1 << (at % 8)
		_, _, err := DecodeEntry(JoinEntry(nil, time.Second, [][]byte{good, bad, good}))
		require.ErrorIs(t, err, ErrDamaged, at)
	}
}

// What is lost at an end, zeroed, or taken for something else is found.
func TestWhatIsNotWhatWasSealed(t *testing.T) {
	all := sealedThings(t)
	for name, x := range all {
		for n := range x.b {
			require.ErrorIs(t, x.decode(x.b[:n]), ErrDamaged, "%s, the first %d bytes", name, n)
		}
		require.ErrorIs(t, x.decode(append(bytes.Clone(x.b), 0)), ErrDamaged, name)
		require.ErrorIs(t, x.decode(make([]byte, len(x.b))), ErrDamaged, "%s: zeros", name)
	}
	kind := func(name string) string {
		var word string
		_, _ = fmt.Sscan(name, &word)
		if word == "empty" {
			_, _ = fmt.Sscan(name, &word, &word)
		}
		return word
	}
	for name, x := range all {
		for other, y := range all {
			if kind(name) != kind(other) {
				require.ErrorIs(t, y.decode(x.b), ErrDamaged, "%s as %s", name, other)
			}
		}
	}
}
