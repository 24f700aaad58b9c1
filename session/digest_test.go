package session

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unique"
	"unsafe"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session/ids"
)

func digest(t testing.TB, s *State) Digest {
	t.Helper()
	d, err := s.Snapshot().Digest(nil, nil)
	require.NoError(t, err)
	return d
}

// derivedFields are of this process alone or follow from others: the only ones
// that do not count.
var derivedFields = []string{
	"Session.entry", "Session.ownOpen", "Session.ownTools", "Client.entry", "Pool.entry", "Pool.soonest", "Pool.used", "Pool.claims", "Budget.entry", "Approval.entry", "Set.index", "Set.parts",
	"Remembered.seq",
}

// Any field of any record that differs makes another digest.
func TestDigestCoversEveryField(t *testing.T) {
	seen := map[string]bool{}
	for k, r := range oneOfEach() {
		state := func() Digest {
			s := NewPartial()
			s.Put(k, r)
			return digest(t, s)
		}
		before, changes := state(), 0
		eachLeaf(t, reflect.ValueOf(r).Elem(), reflect.TypeOf(r).Elem().Name(), idsOf(r), seen, func(path string) {
			require.NotEqual(t, before, state(), path)
			changes++
		})
		require.Equal(t, before, state(), "all was put back")
		require.NotZero(t, changes)
	}
	for _, f := range derivedFields {
		require.True(t, seen[f], "%s is no field any more", f)
	}
}

// eachLeaf changes each number, text and length below v in turn, calls changed,
// and puts it back.
func eachLeaf(t *testing.T, v reflect.Value, path string, finished *ids.Set, seen map[string]bool, changed func(path string)) {
	t.Helper()
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem() // unexported fields, too
	with := func(x any) {
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		v.Set(reflect.ValueOf(x).Convert(v.Type()))
		changed(path)
		v.Set(old)
	}
	if h, ok := v.Interface().(unique.Handle[string]); ok {
		with(unique.Make(h.Value() + "!"))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			at := v.Type().Name() + "." + f.Name
			if seen[at] = true; !slices.Contains(derivedFields, at) {
				eachLeaf(t, v.Field(i), path+"."+f.Name, finished, seen, changed)
			}
		}
	case reflect.Pointer:
		require.False(t, v.IsNil(), "%s is empty, so it is not tested", path)
		if chunk := v.Elem(); chunk.Kind() == reflect.Array && chunk.Type().Elem() == reflect.TypeFor[ids.Remembered]() {
			for i := range finished.Len() { // what is behind belongs to nobody
				eachLeaf(t, chunk.Index(i), path+".Remembered", finished, seen, changed)
			}
			return
		}
		eachLeaf(t, v.Elem(), path, finished, seen, changed)
	case reflect.Slice:
		require.NotZero(t, v.Len(), "%s is empty, so it is not tested", path)
		if !strings.HasSuffix(path, "IDs.chunks") { // its length is that of n
			with(v.Slice(0, v.Len()-1).Interface())
		}
		for i := range v.Len() {
			eachLeaf(t, v.Index(i), path+"[]", finished, seen, changed)
		}
	case reflect.Array:
		for i := range v.Len() {
			eachLeaf(t, v.Index(i), path+"[]", finished, seen, changed)
		}
	case reflect.String:
		with(v.String() + "!")
	case reflect.Bool:
		with(!v.Bool())
	case reflect.Int32, reflect.Int64:
		with(v.Int() + 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if !strings.HasSuffix(path, ".IDs.n") { // which decides how many there have to be
			with(v.Uint() ^ 1)
		}
	default:
		require.Fail(t, "no change", "%s: %s", path, v.Type())
	}
}

func TestDigestCoversClockGenerationAndKeys(t *testing.T) {
	build := func(now time.Duration, generation uint32, keys ...Key) Digest {
		s := New()
		s.SetClock(now, generation)
		for _, k := range keys {
			s.Put(k, &Pins{1})
		}
		return digest(t, s)
	}
	seen := map[Digest]int{}
	for i, d := range []Digest{
		build(1, 1), build(2, 1), build(1, 2), build(2, 2),
		build(1, 1, "in/a"), build(1, 1, "in/b"), build(1, 1, "in/a", "in/b"), build(1, 1, "im/a"),
	} {
		other, again := seen[d]
		require.False(t, again, "%d and %d", i, other)
		seen[d] = i
	}
	require.Equal(t, build(1, 1, "in/a", "in/b"), build(1, 1, "in/b", "in/a"))
}

// A record that differs makes another digest in whatever shard it is.
func TestDigestCoversEveryShard(t *testing.T) {
	const shards = 256
	s := newState(shards)
	filled := map[int]bool{}
	for i := 0; len(filled) < shards; i++ {
		k := Key(fmt.Sprint("in/", i))
		place := s.shardOf([]byte(k))
		if filled[place] {
			continue
		}
		filled[place] = true
		empty := digest(t, s)
		s.Put(k, &Pins{1})
		one := digest(t, s)
		s.Put(k, &Pins{2})
		require.NotEqual(t, empty, one, "shard %d", place)
		require.NotEqual(t, one, digest(t, s), "shard %d", place)
	}
}

// Only shards that were written into are hashed again, and work that was broken
// off goes on where it was.
func TestDigestIsKeptByShard(t *testing.T) {
	s := randomState(9, 500)
	count := 0
	pace := func() error { count++; return nil }
	d, err := s.Snapshot().Digest(nil, pace)
	require.NoError(t, err)
	all := count
	require.Greater(t, all, 400)

	count = 0
	again, err := s.Snapshot().Digest(nil, pace)
	require.NoError(t, err)
	require.Equal(t, d, again)
	require.Zero(t, count, "an idle state costs nothing")

	k := key('i', "ns", "another")
	s.Put(k, &Pins{3})
	one, err := s.Snapshot().Digest(nil, pace)
	require.NoError(t, err)
	require.NotEqual(t, d, one)
	require.Equal(t, 1, count)
	s.Put(k, nil)
	require.Equal(t, d, digest(t, s), "what was added and removed leaves nothing")

	fresh := randomState(9, 500)
	errStop := errors.New("stop")
	count = 0
	v := fresh.Snapshot()
	_, err = v.Digest(nil, func() error {
		if count++; count == 100 {
			return errStop
		}
		return nil
	})
	require.ErrorIs(t, err, errStop)
	again, err = v.Digest(nil, pace)
	require.NoError(t, err)
	require.Equal(t, d, again)
	require.Equal(t, all, count)
}

// What changes in memory without being written is found when its shard is read
// again, in one of two rounds that read a half each, and then whenever it is.
func TestDigestFindsWhatNobodyWrote(t *testing.T) {
	s := randomState(9, 500)
	half := func(odd int) func(int) bool { return func(shard int) bool { return shard%2 == odd } }
	read := 0
	pace := func() error { read++; return nil }
	d, err := s.Snapshot().Digest(nil, pace)
	require.NoError(t, err)
	all := read
	read = 0
	for odd := range 2 {
		same, err := s.Snapshot().Digest(half(odd), pace)
		require.NoError(t, err)
		require.Equal(t, d, same)
	}
	require.Equal(t, all, read, "two rounds read everything once")

	for i := range 50 {
		k := key('i', "ns", fmt.Sprint("quiet", i))
		s.Put(k, &Pins{1})
		_, err := s.Snapshot().Digest(half(i%2), nil)
		require.NoError(t, err)
		pins := s.Stored(k).(*Pins)
		odd := s.shardOf([]byte(k)) % 2
		pins.N ^= 1 << (i % 31)
		_, err = s.Snapshot().Digest(half(1-odd), nil)
		require.NoError(t, err)
		for range 2 {
			_, err = s.Snapshot().Digest(half(odd), nil)
			require.ErrorIs(t, err, ErrDamaged)
		}
		pins.N ^= 1 << (i % 31)
	}
}

// A digest is made beside entries that are applied; run it with -race.
func TestDigestBesideApply(t *testing.T) {
	s := manySessions(300)
	s.ApplyAll(time.Hour, nil)
	for round := range 5 {
		v := s.Snapshot()
		done := make(chan Digest)
		go func() {
			d, err := v.Digest(nil, nil)
			if err != nil {
				panic(err)
			}
			done <- d
		}()
		for i := range 200 {
			s.ApplyAll(time.Hour, []Command{&Begin{
				NS: "default", Session: fmt.Sprintf("01JD%022d", i), Call: fmt.Sprint("call", round), CallKind: Model, Digest: Digest{1},
				Verdict: Verdict{Allow: true}, Pools: []Want{{"policy/research", 1}}, TTL: time.Second,
			}})
		}
		d := <-done
		require.Equal(t, d, digestAnew(t, v))
		require.NotEqual(t, d, digest(t, s))
	}
}

// digestAnew hashes all shards again.
func digestAnew(t *testing.T, v *Snapshot) Digest {
	t.Helper()
	w := &Snapshot{now: v.now, generation: v.generation}
	for _, sh := range v.shards {
		w.shards = append(w.shards, &shard{records: sh.records})
	}
	d, err := w.Digest(nil, nil)
	require.NoError(t, err)
	return d
}
