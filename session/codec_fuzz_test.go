package session

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	logv1 "example.com/govnode/proto/govnode/log/v1"
	"example.com/govnode/session/wire"
)

// The fuzzed bytes are what is under the seal, else nearly every run would end
// there; TestDamageIsFound is about seals. What is accepted is written again as
// the same bytes, so that no two replicas hold one thing in two forms.

func FuzzDecodeEntry(f *testing.F) {
	random := newFiller(6)
	for kind := range kinds {
		f.Add(appendEntry(nil, time.Second, []Command{randomCommand(random, kind), typicalBegin()}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = DecodeEntry(b)
		b = wire.Entry.Seal(b, 0)
		at, cmds, err := DecodeEntry(b)
		if err != nil {
			return
		}
		require.Equal(t, b, EncodeEntry(at, cmds))
		// Generated code reads the same.
		var m logv1.Entry
		require.NoError(t, proto.Unmarshal(b[:len(b)-wire.SealLen], &m))
		require.Equal(t, int64(at), m.At)
		require.Len(t, m.Commands, len(cmds))
	})
}

func FuzzDecodeCommand(f *testing.F) {
	random := newFiller(9)
	for i := range 4 * kinds {
		b := EncodeCommand(randomCommand(random, i%kinds))
		f.Add(b[:len(b)-wire.SealLen])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = DecodeCommand(b)
		b = wire.Command.Seal(b, 0)
		c, err := DecodeCommand(b)
		if err != nil {
			return
		}
		require.Equal(t, b, EncodeCommand(c))
		_, cmds, err := DecodeEntry(JoinEntry(nil, 1, [][]byte{b}))
		require.NoError(t, err)
		require.Equal(t, []Command{c}, cmds)
		// Generated code reads the same, unless it refuses what is not UTF-8.
		var m logv1.Command
		if err := proto.Unmarshal(b[:len(b)-wire.SealLen], &m); err == nil {
			require.Equal(t, marshal(t, oneof(t, c, &logv1.Command{})), b[:len(b)-wire.SealLen])
		}
	})
}

func FuzzDecodeResult(f *testing.F) {
	random := newFiller(10)
	for range 40 {
		var r Result
		random.fill(reflect.ValueOf(&r).Elem())
		b := EncodeResult(&r)
		f.Add(b[:len(b)-wire.SealLen])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = DecodeResult(b)
		b = wire.Result.Seal(b, 0)
		r, err := DecodeResult(b)
		if err != nil {
			return
		}
		require.Equal(t, b, EncodeResult(&r))
	})
}

func FuzzDecodeRecord(f *testing.F) {
	random := newFiller(7)
	for i := range 8 * len(allRecords()) {
		if b := appendRecord(nil, randomRecord(random, i%len(allRecords()))); len(b) < 2000 {
			f.Add(b) // large ones keep the fuzzer busy with making them small
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = DecodeRecord(b)
		b = wire.Record.Seal(b, 0)
		r, err := DecodeRecord(b)
		if err != nil {
			return
		}
		require.Equal(t, b, EncodeRecord(r))
		if at, ok := r.Due(); ok && at < 1<<62 {
			r.At(at) // settles what was read
		}
	})
}

func FuzzReadSnapshot(f *testing.F) {
	f.Add(snapshot(f, New()))
	random := newFiller(8)
	for i := range 4 * len(allRecords()) {
		s := NewPartial()
		r := randomRecord(random, i%len(allRecords()))
		s.Put(keyOf(r, "x"), r)
		if b := snapshot(f, s); len(b) < 2000 {
			f.Add(b)
			at := bytes.IndexByte(b[10:], frameChunk) + 10
			f.Add(b[at+frameHead : at+frameHead+int(b[at+1])+int(b[at+2])<<8])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// A sum that is wrong ends nearly every run at the first byte that
		// changed; so the bytes are tried as the payload of a chunk as well.
		if s, err := ReadSnapshot(bytes.NewReader(b)); err == nil {
			require.Equal(t, b, snapshot(t, s))
		}
		l := Loader{state: NewPartial(), names: wire.NewNames(), pins: pins{}}
		if l.Put(b) != nil {
			return
		}
		s := l.State()
		out := codec{Coder: wire.NewWriter(nil)}
		for k, r := range s.Snapshot().All() {
			for m := out.Message(1, true); out.Visit(&m); {
				out.item(&k, &r)
			}
		}
		require.Equal(t, string(b), string(out.Bytes()))
	})
}

func BenchmarkAppendEntry(b *testing.B) {
	buf, cmds := make([]byte, 0, 4096), []Command{typicalBegin(), typicalEnd()}
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendEntry(buf[:0], time.Minute, cmds)
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkDecodeEntry(b *testing.B) {
	buf := EncodeEntry(time.Minute, []Command{typicalBegin(), typicalEnd()})
	b.ReportAllocs()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, _, err := DecodeEntry(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBeginEntry is all that is encoded and decoded of a call on its way
// into the log and the state.
func BenchmarkBeginEntry(b *testing.B) {
	begin := typicalBegin()
	command, entry := make([]byte, 0, 1024), make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		command = AppendCommand(command[:0], begin)
		entry = JoinEntry(entry[:0], time.Minute, [][]byte{command})
		if _, _, err := DecodeEntry(entry); err != nil {
			b.Fatal(err)
		}
	}
}
