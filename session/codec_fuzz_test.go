package session

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	logv1 "example.com/govnode/proto/govnode/log/v1"
)

func FuzzDecodeEntry(f *testing.F) {
	random := newFiller(6)
	for kind := range Version {
		f.Add(appendEntry(nil, time.Second, []Command{randomCommand(random, kind), typicalBegin()}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		at, cmds, err := DecodeEntry(sealEntry.seal(b, 0))
		if err != nil {
			return
		}
		once := EncodeEntry(at, cmds)
		at2, cmds2, err := DecodeEntry(once)
		require.NoError(t, err)
		require.Equal(t, at, at2)
		require.Equal(t, once, EncodeEntry(at2, cmds2))
		// Generated code reads the same, unless it refuses what is not UTF-8.
		var m logv1.Entry
		if err := proto.Unmarshal(b, &m); err == nil {
			require.Equal(t, int64(at), m.At)
			require.Len(t, m.Commands, len(cmds))
		}
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
		r, err := DecodeRecord(sealRecord.seal(b, 0))
		if err != nil {
			return
		}
		once := EncodeRecord(r)
		again, err := DecodeRecord(once)
		require.NoError(t, err)
		require.Equal(t, once, EncodeRecord(again))
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
		s.Put(key(kindOf(r), "ns", "x"), r)
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
			_, err = ReadSnapshot(bytes.NewReader(snapshot(t, s)))
			require.NoError(t, err)
		}
		l := Loader{state: NewPartial(), names: newInterner()}
		if l.Put(b) != nil {
			return
		}
		s, again := l.State(), Loader{state: NewPartial(), names: newInterner()}
		for k, r := range s.Snapshot().All() {
			payload := wire{write: true}
			for m := payload.message(1, true); payload.visit(&m); {
				payload.item(&k, &r)
			}
			require.NoError(t, again.Put(payload.b))
		}
		require.Equal(t, snapshot(t, s), snapshot(t, again.State()))
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
