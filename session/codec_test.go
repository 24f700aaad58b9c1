package session

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
	"unique"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/limiter"
	logv1 "example.com/govnode/proto/govnode/log/v1"
	"example.com/govnode/session/wire"
)

func TestCommandsAreNumberedByKind(t *testing.T) {
	fields := (&logv1.Command{}).ProtoReflect().Descriptor().Fields()
	all := allCommands()
	require.Equal(t, len(all)+1, fields.Len(), "and who asked for it")
	for i, c := range all {
		name := reflect.TypeOf(c).Elem().Name()
		require.Equal(t, int(fields.Get(i).Number()), int(c.Kind()), name)
		require.Equal(t, name, string(fields.Get(i).Message().Name()))
	}
	require.EqualValues(t, Version, all[len(all)-1].Kind(), "the newest")
}

func TestEntriesAreThoseOfGeneratedCode(t *testing.T) {
	f := newFiller(1)
	for range 2000 {
		at := time.Duration(f.Int64())
		want := &logv1.Entry{Version: EntryFormat, At: int64(at)}
		var cmds []Command
		var encoded [][]byte
		for range f.IntN(4) {
			c := randomCommand(f, f.IntN(kinds))
			m := oneof(t, c, &logv1.Command{}).(*logv1.Command) // before anything is written
			cmds, encoded = append(cmds, c), append(encoded, EncodeCommand(c))
			want.Commands = append(want.Commands, EncodeCommand(c))

			require.Equal(t, wire.Command.Seal(marshal(t, m), 0), EncodeCommand(c))
			back, err := DecodeCommand(EncodeCommand(c))
			require.NoError(t, err)
			require.Equal(t, c, back)
		}
		b := EncodeEntry(at, cmds)
		require.Equal(t, wire.Entry.Seal(marshal(t, want), 0), b)
		require.Equal(t, append([]byte("x"), b...), AppendEntry([]byte("x"), at, cmds))
		require.Equal(t, append([]byte("x"), b...), JoinEntry([]byte("x"), at, encoded))
		gotAt, got, err := DecodeEntry(b)
		require.NoError(t, err)
		require.Equal(t, at, gotAt)
		require.Equal(t, cmds, got)
		require.Equal(t, b, EncodeEntry(gotAt, got))
	}
}

func TestResultsAreThoseOfGeneratedCode(t *testing.T) {
	f := newFiller(2)
	for range 2000 {
		var r Result
		f.fill(reflect.ValueOf(&r).Elem())
		m := &logv1.Result{}
		toProto(t, reflect.ValueOf(r), m.ProtoReflect())
		b := EncodeResult(&r)
		require.Equal(t, wire.Result.Seal(marshal(t, m), 0), b)
		got, err := DecodeResult(b)
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
}

// A record that an answer does not show is not there for who reads it either.
func TestAfterShowsWhatItShows(t *testing.T) {
	session := &Session{Pin: &Pin{}}
	for _, want := range []After{
		{}, {Now: 5}, {Session: session}, {Pool: new(PoolCounts)}, {Now: 5, Session: session, Pool: &PoolCounts{Slots: 2}},
	} {
		given := want
		got, err := DecodeResult(EncodeResult(&Result{After: &given}))
		require.NoError(t, err)
		require.Equal(t, want, given, "writing changes nothing")
		require.Equal(t, want.Now, got.After.Now)
		require.Equal(t, want.Session != nil, got.After.Session != nil)
		require.Equal(t, want.Pool, got.After.Pool)
	}
}

func TestRecordsAreThoseOfGeneratedCode(t *testing.T) {
	f := newFiller(3)
	n := len(allRecords())
	require.Equal(t, n, (&logv1.Record{}).ProtoReflect().Descriptor().Fields().Len())
	for i := range 1500 {
		r := randomRecord(f, i%n)
		want := marshal(t, oneof(t, r, &logv1.Record{})) // before anything is written
		b := EncodeRecord(r)
		require.Equal(t, wire.Record.Seal(want, 0), b)
		got, err := DecodeRecord(b)
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.Equal(t, b, EncodeRecord(got))
	}
}

// What is not in log.proto does not show: a handle that was never made, and the
// entry that wrote a record.
func TestDerivedFieldsAreNotEncoded(t *testing.T) {
	bare := &Session{Pin: &Pin{}}
	written := &Session{Pin: &Pin{}, entry: 9, Agent: unique.Make("")}
	require.Equal(t, EncodeRecord(bare), EncodeRecord(written))

	r, err := DecodeRecord(EncodeRecord(bare))
	require.NoError(t, err)
	require.Empty(t, r.(*Session).Agent.Value(), "a name that is absent is empty")
}

// Fields stand in the order of their numbers. One that stands elsewhere is
// refused, and so is one of a later version: some replicas would go by it and
// others not.
func TestFieldsInOtherOrderAndUnknownOnes(t *testing.T) {
	f := newFiller(4)
	swapped := 0
	for range 500 {
		c := randomCommand(f, f.IntN(kinds))
		if a, ok := c.(interface{ Authorize(*Authority) }); ok {
			a.Authorize(nil) // which stands before the command
		}
		b, err := wire.Command.Open(EncodeCommand(c))
		require.NoError(t, err)
		_, _, n := protowire.ConsumeTag(b)
		body, _ := protowire.ConsumeBytes(b[n:])
		unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), []byte("later"))
		command := func(fields []byte) []byte {
			return wire.Command.Seal(protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(c.Kind()), protowire.BytesType), fields), 0)
		}
		got, err := DecodeCommand(command(body))
		require.NoError(t, err)
		require.Equal(t, c, got)
		_, err = DecodeCommand(command(slices.Concat(body, unknown)))
		require.ErrorIs(t, err, ErrUnknownKind)
		_, _, err = DecodeEntry(JoinEntry(nil, 1, [][]byte{command(slices.Concat(body, unknown))}))
		require.ErrorIs(t, err, ErrUnknownKind)
		wrong := [][]byte{slices.Concat(unknown, body)}
		if _, _, n := protowire.ConsumeField(body); n > 0 && n < len(body) && number(body) != number(body[n:]) {
			wrong = append(wrong, slices.Concat(body[n:], body[:n]))
			swapped++
		}
		for _, w := range wrong {
			_, err = DecodeCommand(command(w))
			require.Error(t, err)
		}
	}
	require.NotZero(t, swapped)
}

func number(field []byte) protowire.Number {
	n, _, _ := protowire.ConsumeTag(field)
	return n
}

func TestUnknownKindsAndVersions(t *testing.T) {
	kind := protowire.AppendBytes(protowire.AppendTag(nil, Version+1, protowire.BytesType), nil)
	kind = wire.Command.Seal(kind, 0)
	record := protowire.AppendBytes(protowire.AppendTag(nil, 18, protowire.BytesType), nil)

	_, err := DecodeCommand(kind)
	require.ErrorIs(t, err, ErrUnknownKind)
	require.ErrorContains(t, err, fmt.Sprintf("kind %d of a command", Version+1))
	require.NotErrorIs(t, err, ErrDamaged)
	_, _, err = DecodeEntry(JoinEntry(nil, 1, [][]byte{EncodeCommand(&Restore{}), kind}))
	require.ErrorIs(t, err, ErrUnknownKind)
	require.NotErrorIs(t, err, ErrDamaged)
	_, err = DecodeRecord(wire.Record.Seal(record, 0))
	require.ErrorIs(t, err, ErrUnknownKind)
	require.ErrorContains(t, err, "18")
}

// What another build wrote is refused before anything of it is read, with what
// to do about it.
func TestFormatsOfOtherBuilds(t *testing.T) {
	entry := func(format uint64) []byte {
		version := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), format)
		return wire.Entry.Seal(append(version, "what only that build reads"...), 0)
	}
	s := snapshot(t, randomState(7, 20))
	snapshotOf := func(format byte) []byte {
		b := slices.Clone(s)
		b[len(snapshotMagic)] = format
		return b
	}
	for name, c := range map[string]struct {
		read func() error
		says string
	}{
		"an older entry":    {func() error { _, _, err := DecodeEntry(entry(EntryFormat - 1)); return err }, "an entry of format 1 was written by an older build"},
		"a newer entry":     {func() error { _, _, err := DecodeEntry(entry(EntryFormat + 1)); return err }, "an entry of format 3 was written by a newer build"},
		"no format":         {func() error { _, _, err := DecodeEntry(wire.Entry.Seal(nil, 0)); return err }, "an older build"},
		"an older snapshot": {func() error { _, err := ReadSnapshot(bytes.NewReader(snapshotOf(SnapshotFormat - 1))); return err }, "a snapshot of format 1 was written by an older build"},
		"a newer snapshot":  {func() error { _, err := ReadSnapshot(bytes.NewReader(snapshotOf(SnapshotFormat + 1))); return err }, "a snapshot of format 3 was written by a newer build"},
	} {
		err := c.read()
		require.ErrorIs(t, err, ErrUnknownKind, name)
		require.NotErrorIs(t, err, ErrDamaged, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

func TestBrokenMessagesAreRefused(t *testing.T) {
	field := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	bytesField := func(n protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
	}
	many := func(n protowire.Number, count int) (b []byte) {
		for range count {
			b = append(b, bytesField(n, nil)...)
		}
		return b
	}
	bare := func(r Record) []byte { return appendRecord(nil, r) }
	pin := slices.Clip(bytesField(6, bytesField(2, nil)))
	lease := func(token, weight uint64) []byte {
		b := field(3, token)
		if weight != 0 {
			b = append(b, field(7, weight)...)
		}
		return bytesField(1, b)
	}
	leases := func(n uint64) (b []byte) {
		for i := range n {
			b = append(b, lease(i+1, 1)...)
		}
		return append(b, field(3, n)...)
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", nil, "no kind"},
		{"truncated length", []byte{0x0a}, "truncated"},
		{"length behind the end", []byte{0x0a, 5, 1}, "truncated"},
		{"length behind the end of the outer message", append(bytesField(10, []byte{0x0a, 5}), bytesField(99, make([]byte, 9))...), "truncated"},
		{"field number 0", []byte{0x02, 0}, "not a field"},
		{"two kinds", append(bare(&Pins{N: 1}), bare(&Pins{N: 1})...), "second kind"},
		{"wrong wire type", bytesField(6, bytesField(1, nil)), "wrong wire type"},
		{"kind of a wrong wire type", field(6, 1), "wrong wire type"},
		{"varint without an end", bytesField(6, []byte{0x08, 0x80}), "truncated"},
		{"short digest", bytesField(5, bytesField(1, make([]byte, 31))), "32 bytes"},
		{"version above 32 bits", bytesField(5, field(2, 1<<31)), "out of range"},
		{"phase", bytesField(1, append(field(4, 3), pin...)), "out of range"},
		{"zero", bytesField(6, field(1, 0)), "left out"},
		{"zero digest", bytesField(5, bytesField(1, make([]byte, 32))), "not all zero"},
		{"zero content", bytesField(1, append(pin, append(protowire.AppendTag(nil, 7, protowire.Fixed64Type), make([]byte, 8)...)...)), "left out"},
		{"empty text", bytesField(10, bytesField(1, nil)), "left out"},
		{"empty name", bytesField(1, bytesField(1, nil)), "left out"},
		{"empty blob", bytesField(4, bytesField(1, nil)), "left out"},
		{"empty message", bytesField(7, bytesField(1, nil)), "left out"},
		{"number with bytes to spare", bytesField(6, []byte{0x08, 0x81, 0}), "to spare"},
		{"length with bytes to spare", []byte{0x32, 0x82, 0, 0x08, 1}, "to spare"},
		{"tag with bytes to spare", bytesField(6, []byte{0x88, 0, 1}), "not a field"},
		{"field twice", bytesField(6, append(field(1, 1), field(1, 1)...)), "wrong place"},
		{"list in two places", bytesField(1, append(append(append(pin, bytesField(19, nil)...), bytesField(20, nil)...), bytesField(19, nil)...)), "wrong place"},
		{"no limits", bytesField(1, bytesField(6, nil)), "limits are missing"},
		{"bool", bytesField(1, append(field(5, 2), pin...)), "out of range"},
		{"content", bytesField(1, append(pin, field(7, 2)...)), "8 bytes"},
		{"session without a pin", bytesField(1, nil), "without a pin"},
		{"policy without a pin", bytesField(4, nil), "without a pin"},
		{"too many tools", bytesField(1, append(pin, many(19, MaxTools+1)...)), "more than 256"},
		{"too many votes", bytesField(12, many(5, 17)), "more than 16"},
		{"too many open calls", bytesField(1, append(pin, many(20, MaxOpen+1)...)), "more than 1024"},
		{"too many pools", bytesField(1, append(pin, bytesField(20, many(8, MaxPools+MaxRates+2))...)), "more than 17"},
		{"too many attributes", bytesField(1, append(pin, bytesField(22, many(2, MaxAttributes+1))...)), "more than 32"},
		{"too many leases", bytesField(2, leases(MaxSlots+1)), "more leases than"},
		{"too many leases of a rate", bytesField(2, many(1, maxLeases+1)), "more than"},
		{"too many tickets", bytesField(2, many(2, MaxQueue+maxLeases+1)), "more than"},
		{"claim without a place", bytesField(2, append(bytesField(1, append(append(field(3, 1), field(7, 1)...), field(8, 1)...)), field(3, 1)...)), "without a place"},
		{"place without a claim", bytesField(2, append(bytesField(1, append(append(field(3, 1), field(7, 1)...), bytesField(9, nil)...)), field(3, 1)...)), "without a claim"},
		{"leases out of order", bytesField(2, append(append(lease(2, 1), lease(1, 1)...), field(3, 9)...)), "order of their tokens"},
		{"lease above the last token", bytesField(2, append(lease(2, 1), field(3, 1)...)), "order of their tokens"},
		{"lease without a weight", bytesField(2, append(lease(1, 0), field(3, 1)...)), "a lease of a weight"},
		{"lease of a huge weight", bytesField(2, append(lease(1, MaxSlots+1), field(3, 1)...)), "a lease of a weight"},
		{"ticket without a weight", bytesField(2, bytesField(2, nil)), "a ticket of a weight"},
		{"lease of a rate of a huge weight", bytesField(2, slices.Concat(lease(1, MaxRate+1), field(3, 1), field(8, 1))), "a lease of a weight"},
		{"number without a value", bytesField(6, []byte{0x08}), "truncated"},
		{"slot without a pool", bytesField(3, bytesField(2, nil)), "not of one pool"},
		{"ids cut", bytesField(3, bytesField(3, append(field(1, 1), bytesField(3, make([]byte, 35))...))), "remembered"},
		{"one id of two", bytesField(3, bytesField(3, append(field(1, 2), bytesField(3, make([]byte, 36))...))), "remembered"},
		{"more ids than are remembered", bytesField(3, bytesField(3, append(field(1, 2000), bytesField(3, make([]byte, 36*2000))...))), "remembered"},
		{"ids without their number", bytesField(3, bytesField(3, bytesField(3, make([]byte, 36)))), "remembered"},
		{"a number without ids", bytesField(3, bytesField(3, field(1, 1))), "remembered"},
		{"ids twice", bytesField(3, bytesField(3, append(append(field(1, 1), bytesField(3, make([]byte, 36))...), field(1, 1)...))), "wrong place"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := DecodeRecord(wire.Record.Seal(tt.b, 0))
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, r)
		})
	}
}

func TestBrokenCommandsAndResultsAreRefused(t *testing.T) {
	bare := func(b []byte) []byte { return b[:len(b)-wire.SealLen] }
	two := append(bare(EncodeCommand(typicalBegin())), bare(EncodeCommand(typicalEnd()))...)
	_, err := DecodeCommand(wire.Command.Seal(two, 0))
	require.ErrorContains(t, err, "second kind")
	_, err = DecodeCommand(wire.Command.Seal(nil, 0))
	require.ErrorContains(t, err, "no kind")
	_, _, err = DecodeEntry(JoinEntry(nil, 1, [][]byte{wire.Command.Seal(nil, 0)}))
	require.ErrorContains(t, err, "no kind")
	asked := protowire.AppendBytes(protowire.AppendTag(nil, authorityField, protowire.BytesType), []byte{2 << 3, 1}) // an epoch
	_, err = DecodeCommand(wire.Command.Seal(append(asked, bare(EncodeCommand(&Restore{}))...), 0))
	require.ErrorContains(t, err, "nobody asks for")
	_, err = DecodeResult(EncodeResult(&Result{After: &After{Session: new(Session)}}))
	require.ErrorContains(t, err, "without a pin")
	for _, b := range [][]byte{
		protowire.AppendVarint([]byte{0x08}, uint64(numCodes)), // field 1
		{0x0a, 0}, // field 1, with bytes
		append(protowire.AppendTag(nil, 18, 2), 1, 0x80),          // a fact without an end
		append(protowire.AppendTag(nil, 16, 2), 5),                // a pool behind the end
		append(protowire.AppendTag(nil, 16, 0), 5),                // a pool that is a number
		append(bare(EncodeResult(&Result{Code: Admitted})), 0x80), // half a tag
		append(protowire.AppendTag(nil, 99, 2), 5),                // unknown, behind the end
		append(protowire.AppendTag(nil, 99, 4), 5),                // the end of a group
	} {
		r, err := DecodeResult(wire.Result.Seal(b, 0))
		require.Error(t, err, "%x", b)
		require.NotErrorIs(t, err, ErrDamaged)
		require.Equal(t, Result{}, r)
	}
}

// A prefix of an entry is an error, and never a command that was not there.
func TestTruncatedEntries(t *testing.T) {
	f := newFiller(5)
	for kind := range kinds {
		cmds := []Command{randomCommand(f, kind)}
		b := EncodeEntry(7, cmds)
		for n := range b {
			_, got, err := DecodeEntry(b[:n])
			require.ErrorIs(t, err, ErrDamaged)
			require.Empty(t, got)
		}
	}
}

// Strings that the state keeps are no part of the entry that brought them:
// else a text of 3 bytes would hold 256 KiB.
func TestKeptStringsAreCopied(t *testing.T) {
	cmds := []Command{
		&Open{NS: "n", Session: "s", Parent: "parent", Attributes: []Attr{{"name", "value"}}},
		&End{Output: Output{Text: "text"}},
		&Set{Value: Value{Text: "text"}},
		&PutPolicy{Name: "name", Tree: []byte("tree"), Limits: Limits{PerTool: []ToolLimit{{"tool", 1}}}},
		&PutHash{Hash: "hash"},
		&Tick{Keys: []Key{"sn/s"}},
	}
	b := EncodeEntry(1, cmds)
	_, got, err := DecodeEntry(b)
	require.NoError(t, err)
	// All strings that share the copy lie within it: find it by one that does.
	shared := got[0].(*Open).NS
	lo, hi := uintptrOf(shared)-uintptr(len(b)), uintptrOf(shared)+uintptr(len(b))
	p := got[3].(*PutPolicy)
	for _, s := range []string{
		got[0].(*Open).Parent, got[0].(*Open).Attributes[0].Name, got[0].(*Open).Attributes[0].Value,
		got[1].(*End).Output.Text, got[2].(*Set).Value.Text, p.Name, p.Limits.PerTool[0].Tool,
		got[4].(*PutHash).Hash, string(got[5].(*Tick).Keys[0]),
	} {
		at := uintptrOf(s)
		require.False(t, at > lo && at < hi, s)
	}
	// What was decoded does not change with the buffer.
	for i := range b {
		b[i] = 0
	}
	require.Equal(t, cmds, got)
}

func uintptrOf(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s))) }

func TestSharedPins(t *testing.T) {
	names, shared := wire.NewNames(), pins{}
	limits := Limits{MaxTokens: 5, PerTool: []ToolLimit{{"t", 1}}}
	read := func(p Pin) *Pin {
		f := codec{Coder: wire.NewReader(appendRecord(nil, &Session{Pin: &p}), names), pins: shared}
		var r Record
		for m := f.Top(); f.Visit(&m); {
			f.record(&r)
		}
		require.NoError(t, f.Err())
		return r.(*Session).Pin
	}
	a := read(Pin{Digest{1}, limits})
	require.Same(t, a, read(Pin{Digest{1}, limits}))
	require.NotSame(t, a, read(Pin{Digest{2}, limits}))
	limits.Timeout = 1
	require.NotSame(t, a, read(Pin{Digest{1}, limits}))
}

// How many pins are shared is bounded, for they come from clients; what is shared stays so.
func TestSharedPinsAreBounded(t *testing.T) {
	read := func(shared pins) {
		f := codec{Coder: wire.NewReader(appendRecord(nil, &Session{Pin: &Pin{Digest: Digest{1}}}), nil), pins: shared}
		var r Record
		for m := f.Top(); f.Visit(&m); {
			f.record(&r)
		}
		require.NoError(t, f.Err())
		require.Equal(t, Digest{1}, r.(*Session).Pin.Digest)
	}
	shared := make(pins, 1<<16)
	for i := range 1<<16 - 1 {
		shared[numbered(i)] = nil
	}
	read(shared)
	require.Len(t, shared, 1<<16)
	full := make(pins, 1<<16)
	for i := range 1 << 16 {
		full[numbered(i)] = nil
	}
	read(full)
	require.Len(t, full, 1<<16)
}

// A rate spends up to its own cap, which is far above that of pools.
func TestLeasesOfRatesAreRead(t *testing.T) {
	p := &Pool{Put: true}
	p.Slots, p.Per, p.Last = MaxRate, time.Second, 1
	p.Leases = []limiter.Lease{{Token: 1, Weight: MaxRate, Expires: 5, Label: unique.Make("")}}
	p.Queue = []limiter.Ticket{{Holder: "cw t", Weight: MaxRate, Label: unique.Make("")}}
	p.Index()
	got, err := DecodeRecord(EncodeRecord(p))
	require.NoError(t, err)
	require.Equal(t, p, got)
}

// What is of no kind that is known here is never written, and never applied.
func TestWhatIsOfNoKindIsRefused(t *testing.T) {
	require.Panics(t, func() { EncodeCommand(struct{ *Tick }{&Tick{}}) })
	require.Panics(t, func() { NewPartial().ApplyAll(0, []Command{struct{ *Tick }{&Tick{}}}) })
	require.Panics(t, func() { EncodeRecord(struct{ *Pins }{&Pins{}}) })
}

func TestAllocations(t *testing.T) {
	begin := EncodeEntry(time.Minute, []Command{typicalBegin()})
	end := EncodeEntry(time.Minute, []Command{typicalEnd()})
	for _, tt := range []struct {
		name string
		b    []byte
		most float64
	}{{"Begin", begin, 4}, {"End", end, 3}} {
		n := testing.AllocsPerRun(100, func() {
			if _, _, err := DecodeEntry(tt.b); err != nil {
				t.Fatal(err)
			}
		})
		require.LessOrEqual(t, n, tt.most, tt.name)
	}
	buf, cmds := make([]byte, 0, 1024), []Command{typicalBegin(), typicalEnd()}
	require.Zero(t, testing.AllocsPerRun(100, func() { buf = AppendEntry(buf[:0], time.Minute, cmds) }))
}

func typicalBegin() *Begin {
	return &Begin{
		NS: "default", Session: "01JDABCDEFGHJKMNPQRSTVWXYZ", Call: "01JDABCDEFGHJKMNPQRSTVWXY0", Content: Fingerprint{1, 2, 3},
		Tool: "web.search", Digest: Digest{4, 5}, Seen: []Premise{{FactCalls, "", math.MinInt64, 19}},
		Verdict: Verdict{Allow: true, Rule: 3}, Pools: []Want{{"policy/research", 1}, {"browser", 1}},
		TTL: 30 * time.Second, Wait: 10 * time.Second, Tokens: 800,
	}
}

func typicalEnd() *End {
	return &End{
		NS: "default", Session: "01JDABCDEFGHJKMNPQRSTVWXYZ", Call: "01JDABCDEFGHJKMNPQRSTVWXY0",
		Pools: []string{"policy/research", "browser"}, Status: Succeeded, Tokens: 750,
	}
}
