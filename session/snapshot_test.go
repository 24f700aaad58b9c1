package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/limiter"
	logv1 "example.com/govnode/proto/govnode/log/v1"
	"example.com/govnode/session/budget"
	"example.com/govnode/session/wire"
)

func snapshot(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, WriteSnapshot(&b, s.Snapshot()))
	return b.Bytes()
}

// randomState has n records of all kinds.
func randomState(seed uint64, n int) *State {
	f := newFiller(seed)
	s := New()
	s.SetClock(time.Duration(seed)*time.Second, uint32(seed))
	for i := range n {
		r := randomRecord(f, i%len(allRecords()))
		s.Put(keyOf(r, fmt.Sprint(i)), r)
	}
	return s
}

func TestSnapshotIsTheWholeState(t *testing.T) {
	for _, n := range []int{0, 1, 10, 3000} {
		s := randomState(uint64(n), n)
		b := snapshot(t, s)
		got, err := ReadSnapshot(bytes.NewReader(b))
		require.NoError(t, err)
		require.Equal(t, s.Now(), got.Now())
		require.Equal(t, s.Generation(), got.Generation())
		require.Equal(t, n, got.Len())
		for k, r := range s.Snapshot().All() {
			require.Equal(t, r, got.Stored(k), k)
		}
		at, ok := s.Due()
		gotAt, gotOk := got.Due()
		require.Equal(t, at, gotAt)
		require.Equal(t, ok, gotOk)
		require.Equal(t, b, snapshot(t, got), "equal states have equal snapshots")
	}
}

// The payloads are messages of log.proto: another program can read them.
func TestSnapshotFramesAreThoseOfGeneratedCode(t *testing.T) {
	s := randomState(5, 2000)
	b := snapshot(t, s)
	require.Equal(t, "govnsnap", string(b[:8]))
	require.Equal(t, []byte{SnapshotFormat, 0}, b[8:10])
	at, records, chunks := 10, 0, 0
	for at < len(b) {
		kind, n := b[at], int(binary.LittleEndian.Uint32(b[at+1:]))
		payload := b[at+9 : at+9+n]
		switch kind {
		case 'H':
			var m logv1.SnapshotHeader
			require.NoError(t, proto.Unmarshal(payload, &m))
			require.Equal(t, int64(s.Now()), m.Now)
			require.Equal(t, s.Generation(), m.Generation)
			require.EqualValues(t, 2000, m.Count)
		case 'C':
			var m logv1.SnapshotChunk
			require.NoError(t, proto.Unmarshal(payload, &m))
			require.Equal(t, marshal(t, &m), payload)
			for _, item := range m.Items {
				want := appendRecord(nil, s.Stored(Key(item.Key)))
				require.Equal(t, want, marshal(t, item.Record))
			}
			records += len(m.Items)
			chunks++
		case 'T':
			var m logv1.SnapshotTrailer
			require.NoError(t, proto.Unmarshal(payload, &m))
			require.EqualValues(t, 2000, m.Count)
			sum := sha256.Sum256(b[:at])
			require.Equal(t, sum[:], m.Sha256)
		}
		at += 9 + n
	}
	require.Equal(t, len(b), at)
	require.Equal(t, 2000, records)
	require.Greater(t, chunks, 1, "the state of this test has to need more than one chunk")
}

// reframe puts a payload in place of the first frame of a kind, with the
// checksum made right again.
func reframe(b []byte, kind byte, change func(payload []byte) (byte, []byte)) []byte {
	for at := 10; ; {
		n := int(binary.LittleEndian.Uint32(b[at+1:]))
		if b[at] == kind {
			k, payload := change(bytes.Clone(b[at+9 : at+9+n]))
			head := binary.LittleEndian.AppendUint32([]byte{k}, uint32(len(payload)))
			head = binary.LittleEndian.AppendUint32(head, frameSum(head, payload))
			return append(append(append(bytes.Clone(b[:at]), head...), payload...), b[at+9+n:]...)
		}
		at += 9 + n
	}
}

// resum puts a right trailer behind whatever stands before it.
func resum(b []byte, count uint64) []byte {
	at := 10
	for b[at] != 'T' {
		at += 9 + int(binary.LittleEndian.Uint32(b[at+1:]))
	}
	sum := sha256.Sum256(b[:at])
	return reframe(b, 'T', func([]byte) (byte, []byte) {
		m, _ := proto.Marshal(&logv1.SnapshotTrailer{Count: count, Sha256: sum[:]})
		return 'T', m
	})
}

func TestDamagedSnapshots(t *testing.T) {
	good := snapshot(t, randomState(1, 20))
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	chunk := func(m *logv1.SnapshotChunk) []byte {
		return resum(reframe(good, 'C', func([]byte) (byte, []byte) { b, _ := proto.Marshal(m); return 'C', b }), 20)
	}
	pins := &logv1.Record{Record: &logv1.Record_Pins{Pins: &logv1.Pins{N: 1}}}
	one := func(key string, r *logv1.Record) []byte {
		return chunk(&logv1.SnapshotChunk{Items: []*logv1.SnapshotItem{{Key: key, Record: r}}})
	}
	early := bytes.Clone(good) // the same chunk once more
	at := 10 + 9 + int(binary.LittleEndian.Uint32(good[11:]))
	early = slices.Insert(early, at, good[at:at+9+int(binary.LittleEndian.Uint32(good[at+1:]))]...)
	sooner, later := "ins/1", "ins/2"
	if placeOf([]byte(sooner)) > placeOf([]byte(later)) {
		sooner, later = later, sooner
	}
	huge := append(bytes.Clone(good[:10]), 'H', 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0)
	keepKind := func(k byte) func([]byte) (byte, []byte) {
		return func(p []byte) (byte, []byte) { return k, p }
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "truncated"},
		{"something else", []byte("PK\x03\x04 something else"), "not a snapshot"},
		{"future version", flip(8), "unknown kind or version"},
		{"damaged header", flip(20), "checksum"},
		{"damaged chunk", flip(len(good) / 2), "checksum"},
		{"damaged trailer", flip(len(good) - 1), "checksum"},
		{"a frame of 2 GiB", huge, "above the cap"},
		{"more behind it", append(bytes.Clone(good), 0), "behind the trailer"},
		{"chunk first", reframe(good, 'H', keepKind('C')), "where the header"},
		{"two headers", reframe(good, 'C', keepKind('H')), "where a chunk"},
		{"header that is no message", reframe(good, 'H', func([]byte) (byte, []byte) { return 'H', []byte{8} }), "truncated"},
		{"another header", reframe(good, 'H', func(p []byte) (byte, []byte) { p[1]++; return 'H', p }), "SHA-256"},
		{"wrong count in the header", resum(reframe(good, 'H', func([]byte) (byte, []byte) {
			b, _ := proto.Marshal(&logv1.SnapshotHeader{Now: 1, Count: 19})
			return 'H', b
		}), 20), "its header says 19"},
		{"wrong count", resum(good, 19), "20 records under different keys"},
		{"wrong key", one("pns/x", pins), "does not belong to its key"},
		{"no key", one("", pins), "does not belong to its key"},
		{"key without a namespace", one("i/x", pins), "does not belong to its key"},
		{"no record", one("ins/x", nil), "does not belong to its key"},
		{"record of no kind", one("ins/x", &logv1.Record{}), "does not belong to its key"},
		{"key twice", chunk(&logv1.SnapshotChunk{Items: []*logv1.SnapshotItem{{Key: "ins/x", Record: pins}, {Key: "ins/x", Record: pins}}}), "out of its order"},
		{"records missing", one("ins/x", pins), "1 records under different keys"},
		{"records in another order", chunk(&logv1.SnapshotChunk{Items: []*logv1.SnapshotItem{{Key: later, Record: pins}, {Key: sooner, Record: pins}}}), "out of its order"},
		{"chunk closed too early", resum(early, 20), "behind the last one"},
		{"empty chunk", chunk(&logv1.SnapshotChunk{}), "behind the last one"},
		{"negative time", resum(reframe(good, 'H', func([]byte) (byte, []byte) {
			b, _ := proto.Marshal(&logv1.SnapshotHeader{Now: -1, Count: 20})
			return 'H', b
		}), 20), "time is negative"},
		{"record that is not valid", one("sns/x", &logv1.Record{Record: &logv1.Record_Session{Session: &logv1.Session{}}}), "without a pin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ReadSnapshot(bytes.NewReader(tt.b))
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, s)
		})
	}
	for n := 0; n < len(good); n += 1 + n/8 {
		_, err := ReadSnapshot(bytes.NewReader(good[:n]))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
	}
}

var errDisk = errors.New("disk")

type brokenDisk struct{ left int }

func (d *brokenDisk) Write(b []byte) (int, error) {
	if d.left -= len(b); d.left < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

func (d *brokenDisk) Read([]byte) (int, error) { return 0, errDisk }

func TestSnapshotErrorsOfTheDisk(t *testing.T) {
	s := randomState(1, 20)
	b := snapshot(t, s)
	for n := 0; n < len(b); n += 1 + n/8 {
		require.ErrorIs(t, WriteSnapshot(&brokenDisk{n}, s.Snapshot()), errDisk)
		_, err := ReadSnapshot(io.MultiReader(bytes.NewReader(b[:n]), &brokenDisk{}))
		require.ErrorIs(t, err, errDisk)
	}
	_, err := ReadSnapshot(io.MultiReader(bytes.NewReader(b), &brokenDisk{}))
	require.ErrorIs(t, err, errDisk)
}

// The largest record there can be fits a frame, or a state could be saved and
// not restored.
func TestTheLargestRecordsFitAFrame(t *testing.T) {
	id := func(i int) string { return fmt.Sprintf("%0*d", MaxID, i) }
	pool := &Pool{Put: true, MaxQueue: MaxQueue}
	pool.Last = 1 << 63
	for i := range MaxSlots {
		pool.Leases = append(pool.Leases, limiter.Lease{
			Holder: holder('s', id(i), id(i)), Label: unique.Make(id(i)), Token: 1<<62 + uint64(i), Since: 1 << 60,
			Expires: 1 << 61, HoldUntil: 1 << 61, Weight: MaxSlots, Claim: true,
			Place: &limiter.Place{Until: 1 << 61, Seen: 1 << 60, Slots: MaxSlots, Priority: -1 << 31},
		})
	}
	for i := range MaxQueue {
		pool.Queue = append(pool.Queue, limiter.Ticket{
			Holder: holder('s', id(i), id(i)), Label: unique.Make(id(i)), Weight: MaxSlots,
			Place: limiter.Place{Until: 1 << 61, Seen: 1 << 60, Slots: MaxSlots, Priority: -1 << 31},
		})
	}
	pool.Index()
	sess := &Session{Pin: &Pin{}, Agent: unique.Make(id(0)), Policy: unique.Make(id(0))}
	for i := range MaxToolLimits {
		sess.Pin.Limits.PerTool = append(sess.Pin.Limits.PerTool, ToolLimit{id(i), 1 << 31})
	}
	for i := range MaxTools {
		sess.Tools = append(sess.Tools, ToolCount{unique.Make(id(i)), 1 << 31, 1 << 31})
	}
	for i := range MaxOpen {
		h := Held{Holder: holder('s', id(i), id(i)), Started: 1 << 60, Deadline: 1 << 61, Tokens: MaxCallTokens, Tool: unique.Make(id(i)), Rule: MaxRule}
		for j := range MaxPools + 1 {
			h.Pools = append(h.Pools, Hold{unique.Make(policyPrefix + id(j)), 1<<62 + uint64(i), MaxSlots})
		}
		h.Gates = &HeldGates{Request: Digest{1}, Owner: Principal{1}}
		for j := range MaxRates {
			rate := RatePool(PolicyRate(id(i), id(j)[:MaxRateName], id(i)))
			h.Gates.Rates = append(h.Gates.Rates, Spent{unique.Make(rate), 1<<62 + uint64(i), MaxRate, MaxPer})
		}
		for j := range MaxBudgets {
			h.Gates.Charges = append(h.Gates.Charges, Charged{unique.Make(id(j)), unique.Make(id(j)), budget.MaxAmount, 1 << 62, 1 << 61})
		}
		sess.Open = append(sess.Open, h)
	}
	s := New()
	s.Put("pns/large", pool)
	s.Put("sns/large", sess)
	got, err := ReadSnapshot(bytes.NewReader(snapshot(t, s)))
	require.NoError(t, err)
	require.Equal(t, pool, got.Stored("pns/large"))
	require.Equal(t, sess, got.Stored("sns/large"))
	require.Less(t, chunkFull+len(EncodeRecord(pool)), maxFrame)
	require.Less(t, chunkFull+len(EncodeRecord(sess)), maxFrame)
}

// What a snapshot says about lengths and counts allocates nothing.
func TestCraftedLengthsAllocateNothing(t *testing.T) {
	good := snapshot(t, New())
	crafted := reframe(good, 'H', func([]byte) (byte, []byte) {
		b, _ := proto.Marshal(&logv1.SnapshotHeader{Count: 1 << 60})
		return 'H', b
	})
	length := append(bytes.Clone(good[:10]), 'H', 0, 0, 0xc0, 0, 0, 0, 0, 0)
	for _, b := range [][]byte{crafted, length} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadSnapshot(bytes.NewReader(b))
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxFrame+(4<<20)))
	}
}

// manySessions is a state like that of a busy deployment: sessions of one
// policy, each with 4 tools, 8 finished calls and one open call, in pools of
// 1,000 slots.
func manySessions(n int) *State {
	s := New()
	s.SetClock(time.Hour, 1)
	pin := Pin{Digest{1}, Limits{MaxTokens: 1e6, MaxToolCalls: 100, MaxAttempts: 500, Timeout: time.Hour, MaxConcurrent: 4096, Backpressure: 3000}}
	shared := &pin
	var pool *Pool
	for i := range n {
		if i%1000 == 0 {
			pool = &Pool{Put: true, MaxQueue: 1024}
			pool.Slots = 1000
		}
		name := fmt.Sprintf("pool-%04d", i/1000)
		id := fmt.Sprintf("01JD%022d", i)
		h := Held{
			Holder: holder(KindSession, id, fmt.Sprintf("01JE%022d", i)), Content: Fingerprint{1, byte(i)}, Started: time.Hour,
			Deadline: time.Hour + time.Duration(i), Tokens: 500, Tool: unique.Make("web.search"), Rule: 3,
			Pools: []Hold{{unique.Make(name), uint64(1 + i%1000), 1}},
		}
		x := &Session{
			Agent: unique.Make(fmt.Sprintf("agent-%03d", i%500)), Policy: unique.Make("research"), Version: 2, Pinned: true,
			Pin: shared, Content: Fingerprint{byte(i)}, Opened: time.Minute, IdleTTL: 24 * time.Hour, Used: time.Hour,
			Attempts: 9, Calls: 9, Executions: 8, Tokens: 12345, Reserved: 500, Open: []Held{h},
		}
		for j, tool := range []string{"web.search", "shell.run", "file.read", "file.write"} {
			x.Tools = append(x.Tools, ToolCount{Tool: unique.Make(tool), Calls: uint32(j + 1)})
		}
		for j := range 8 {
			x.IDs.Add(remembered(fmt.Sprintf("01JE%021d%d", i, j), Fingerprint{byte(j)}, Ended, 3, 1))
		}
		s.Put(SessionKey("default", id), x)
		pool.Last++
		pool.Leases = append(pool.Leases, limiter.Lease{
			Holder: h.Holder, Label: unique.Make(""), Token: pool.Last, Since: time.Hour, Expires: h.Deadline, Weight: 1,
		})
		if i%1000 == 999 || i == n-1 {
			pool.Index()
			s.Put(PoolKey("default", name), pool)
		}
	}
	return s
}

func BenchmarkWriteSnapshot(b *testing.B) {
	v := manySessions(benchmarkSessions(b)).Snapshot()
	runtime.GC()
	b.ReportAllocs()
	for b.Loop() {
		if err := WriteSnapshot(io.Discard, v); err != nil {
			b.Fatal(err)
		}
	}
}

// benchmarkSessions is how many sessions the snapshot benchmarks have: 20,000,
// or as many as the environment says. For a million:
//
//	GOVNODE_SESSIONS=1000000 go test -run '^$' -bench Snapshot -benchtime 1x
func benchmarkSessions(b *testing.B) int {
	s := os.Getenv("GOVNODE_SESSIONS")
	if s == "" {
		return 20_000
	}
	n, err := strconv.Atoi(s)
	require.NoError(b, err)
	return n
}

func BenchmarkReadSnapshot(b *testing.B) {
	n := benchmarkSessions(b)
	var buf bytes.Buffer
	if err := WriteSnapshot(&buf, manySessions(n).Snapshot()); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	b.ReportAllocs()
	b.SetBytes(int64(buf.Len()))
	for b.Loop() {
		s, err := ReadSnapshot(bytes.NewReader(buf.Bytes()))
		if err != nil {
			b.Fatal(err)
		}
		runtime.KeepAlive(s)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/session")
}

// texts is a state of two texts in one chunk or in two: with a first of so many bytes in
// the chunk, before the second.
func texts(t *testing.T, first int) *State {
	t.Helper()
	s := New()
	one, two := BaselineKey("ns", "1"), BaselineKey("ns", "2")
	if placeOf([]byte(one)) > placeOf([]byte(two)) {
		one, two = two, one
	}
	size := func(n int) int {
		f := codec{Coder: wire.NewWriter(nil)}
		var r Record = &Baseline{Text: text(n)}
		for m := f.Message(1, true); f.Visit(&m); {
			f.item(&one, &r)
		}
		return len(f.Bytes())
	}
	s.Put(one, &Baseline{Text: text(first - (size(first) - first))})
	s.Put(two, &Baseline{Text: "two"})
	return s
}

// chunksOf returns the payloads of a snapshot's chunks.
func chunksOf(t *testing.T, b []byte) (chunks [][]byte) {
	t.Helper()
	require.NoError(t, ReadChunks(bytes.NewReader(b), func(time.Duration, uint32) error { return nil }, func(chunk []byte) error {
		chunks = append(chunks, bytes.Clone(chunk))
		return nil
	}))
	return chunks
}

// A chunk is closed with the record that fills a mebibyte, and not before; a reader holds
// to that, so that equal states are equal bytes.
func TestChunksAreClosedWhenTheyAreFull(t *testing.T) {
	const full = 1 << 20
	for _, tt := range []struct{ first, chunks int }{{full - 1, 1}, {full, 2}, {full + 1, 2}} {
		s := texts(t, tt.first)
		b := snapshot(t, s)
		chunks := chunksOf(t, b)
		require.Len(t, chunks, tt.chunks, tt.first)
		if tt.chunks == 2 {
			require.Len(t, chunks[0], tt.first)
		}
		back, err := ReadSnapshot(bytes.NewReader(b))
		require.NoError(t, err, tt.first)
		require.Equal(t, b, snapshot(t, back))
	}
	chunks := chunksOf(t, snapshot(t, texts(t, full)))
	err := NewLoader(0, 0).Put(slices.Concat(chunks...))
	require.ErrorContains(t, err, "to be closed before")
}

// A frame may have 12 MiB, written and read, and not one byte more.
func TestTheLongestFrame(t *testing.T) {
	const most = 12 << 20
	var b bytes.Buffer
	out := snapshotWriter{w: &b, sum: sha256.New()}
	require.NoError(t, out.close(frameChunk, make([]byte, frameHead+most)))
	in := snapshotReader{r: &b, sum: sha256.New()}
	kind, payload, err := in.frame()
	require.NoError(t, err)
	require.EqualValues(t, frameChunk, kind)
	require.Len(t, payload, most)
	require.Equal(t, out.sum.Sum(nil), in.sum.Sum(nil))

	b.Reset()
	require.ErrorContains(t, out.close(frameChunk, make([]byte, frameHead+most+1)), "above the cap")
	require.Zero(t, b.Len())
	head := binary.LittleEndian.AppendUint32([]byte{frameChunk}, most+1)
	in = snapshotReader{r: bytes.NewReader(append(head, 0, 0, 0, 0)), sum: sha256.New()}
	_, _, err = in.frame()
	require.ErrorContains(t, err, "above the cap")
}

// Who takes a snapshot chunk by chunk comes to the same state; what he cannot take ends
// the reading, and so does what is wrong with the snapshot.
func TestReadChunks(t *testing.T) {
	s := randomState(5, 2000)
	b := snapshot(t, s)
	var l *Loader
	begin := func(now time.Duration, generation uint32) error {
		require.Nil(t, l, "once, before all chunks")
		l = NewLoader(now, generation)
		return nil
	}
	require.NoError(t, ReadChunks(bytes.NewReader(b), begin, func(chunk []byte) error { return l.Put(chunk) }))
	require.Equal(t, b, snapshot(t, l.State()))
	require.Equal(t, s.Now(), l.State().Now())
	require.Equal(t, s.Generation(), l.State().Generation())

	errFull := errors.New("full")
	fine := func([]byte) error { return nil }
	start := func(time.Duration, uint32) error { return nil }
	require.ErrorIs(t, ReadChunks(bytes.NewReader(b), func(time.Duration, uint32) error { return errFull }, func([]byte) error {
		require.Fail(t, "nothing follows")
		return nil
	}), errFull)
	taken := 0
	require.ErrorIs(t, ReadChunks(bytes.NewReader(b), start, func([]byte) error { taken++; return errFull }), errFull)
	require.Equal(t, 1, taken)
	require.ErrorIs(t, ReadChunks(bytes.NewReader(b[:len(b)-1]), start, fine), io.ErrUnexpectedEOF)
	trailer := 10
	for b[trailer] != frameTrailer {
		trailer += frameHead + int(binary.LittleEndian.Uint32(b[trailer+1:]))
	}
	b[len(b)-1] ^= 1
	err := ReadChunks(bytes.NewReader(b), start, fine)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, fmt.Sprintf("at byte %d:", trailer))
}
