package server_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Who names a version writes only where nobody else did, and is told what is
// there instead. All reads and the write itself say the same version.
func TestVersionsOfValues(t *testing.T) {
	n := start(t)
	get := func() string {
		got, err := n.counters.Get(n.ctx(), &v1.GetRequest{Key: "k"})
		require.NoError(t, err)
		many, err := n.counters.BatchGet(n.ctx(), &v1.BatchGetRequest{Keys: []string{"k", "none"}})
		require.NoError(t, err)
		if got.Found {
			require.Equal(t, map[string]string{"k": got.Version}, many.Versions)
		} else {
			require.Empty(t, many.Versions)
		}
		return got.Version
	}
	set := func(value, version, request string) (string, error) {
		res, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: value, IfVersion: version, RequestId: request})
		if err == nil {
			require.Equal(t, get(), res.Version)
		}
		return res.GetVersion(), err
	}
	conflict := func(err error) {
		t.Helper()
		requireRefused(t, err, connect.CodeFailedPrecondition, "VERSION_CONFLICT", get())
		require.Equal(t, get(), info(t, err).Metadata["version"])
	}
	require.Equal(t, "0", get())
	one, err := set("one", "0", "r1")
	require.NoError(t, err)
	require.Len(t, one, 32)
	_, err = set("two", "0", "r2")
	conflict(err)
	two, err := set("2", one, "r2")
	require.NoError(t, err, "a refusal is not remembered")
	_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "one", IfVersion: "0", RequestId: "r1"})
	require.NoError(t, err, "a request that is known is answered before its condition")
	require.Equal(t, two, get())
	_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "one", RequestId: "r1"})
	requireRefused(t, err, connect.CodeInvalidArgument, "ID_REUSED", "r1")

	_, err = n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "k", IfVersion: one})
	conflict(err)
	gone, err := n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "k", IfVersion: two})
	require.NoError(t, err)
	require.True(t, gone.Found)
	again, err := set("one", "0", "")
	require.NoError(t, err)
	require.Equal(t, one, again, "nothing is confused by making it anew")
	for _, bad := range []string{"1", strings.ToUpper(one), one[:31], one + "0", "00"} {
		_, err = set("x", bad, "")
		requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "ifVersion")
		_, err = n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "k", IfVersion: bad})
		requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "ifVersion")
	}
}

func (n *node) append(req *v1.AppendRequest) (int64, error) {
	if req.Ttl == nil {
		req.Ttl = durationpb.New(time.Hour)
	}
	res, err := n.counters.Append(n.ctx(), req)
	return res.GetLength(), err
}

func (n *node) rangeOf(key string, from int64, limit int32) *v1.RangeResponse {
	res, err := n.counters.Range(n.ctx(), &v1.RangeRequest{Key: key, From: from, Limit: limit})
	require.NoError(n.t, err)
	return res
}

func values(r *v1.RangeResponse) (all []string) {
	for _, i := range r.Items {
		all = append(all, fmt.Sprintf("%d:%s", i.Index, i.Value))
	}
	return all
}

// A list is read as it was written, in pieces, and is refused where it has
// another length than its writer says.
func TestLists(t *testing.T) {
	n := start(t)
	length := func(l int64) *int64 { return &l }
	got, err := n.append(&v1.AppendRequest{Key: "l", Items: []string{"a", "b"}, IfLength: length(0), RequestId: "r"})
	require.NoError(t, err)
	require.EqualValues(t, 2, got)
	got, err = n.append(&v1.AppendRequest{Key: "l", Items: []string{"c", ""}})
	require.NoError(t, err)
	require.EqualValues(t, 4, got)
	got, err = n.append(&v1.AppendRequest{Key: "l", Items: []string{"a", "b"}, IfLength: length(0), RequestId: "r"})
	require.NoError(t, err)
	require.EqualValues(t, 2, got, "as it was answered")
	_, err = n.append(&v1.AppendRequest{Key: "l", Items: []string{"d"}, IfLength: length(3)})
	requireRefused(t, err, connect.CodeFailedPrecondition, "VERSION_CONFLICT", "its length is 4")
	require.Equal(t, "4", info(t, err).Metadata["length"])

	all := n.rangeOf("l", 0, 0)
	require.Equal(t, []string{"0:a", "1:b", "2:c", "3:"}, values(all))
	require.EqualValues(t, 4, all.Length)
	require.EqualValues(t, 4, all.Next)
	piece := n.rangeOf("l", 1, 2)
	require.Equal(t, []string{"1:b", "2:c"}, values(piece))
	require.EqualValues(t, 3, piece.Next)
	for _, from := range []int64{4, 5} {
		end := n.rangeOf("l", from, 2)
		require.Empty(t, end.Items)
		require.EqualValues(t, 4, end.Next)
	}
	require.True(t, proto.Equal(&v1.RangeResponse{AppliedIndex: all.AppliedIndex}, n.rangeOf("none", 0, 0)))

	deleted, err := n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Key: "l"})
	require.NoError(t, err)
	require.True(t, deleted.Found)
	deleted, err = n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Key: "l"})
	require.NoError(t, err)
	require.False(t, deleted.Found)
	_, err = n.append(&v1.AppendRequest{Key: "l", Items: []string{"x"}})
	require.NoError(t, err)
	require.Equal(t, []string{"0:x"}, values(n.rangeOf("l", 0, 0)), "what was deleted is out of reach")
	_, err = n.counters.Append(n.ctx(), &v1.AppendRequest{Key: "l", Items: []string{"x"}})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "ttl: is required")
}

// The last item that fits is taken and the next is not; what was taken is read
// in pieces of about a mebibyte.
func TestCapOfAList(t *testing.T) {
	for name, size := range map[string]int{"large items": session.MaxItem, "small items": session.MinItemSize} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			full := session.MaxList / size
			for written := 0; written < full; {
				items := make([]string, min(session.MaxAppend, 128<<10/size, full-written))
				for i := range items {
					items[i] = strings.Repeat("x", size)
				}
				got, err := n.append(&v1.AppendRequest{Key: "l", Items: items})
				require.NoError(t, err)
				written += len(items)
				require.EqualValues(t, written, got)
			}
			_, err := n.append(&v1.AppendRequest{Key: "l", Items: []string{""}})
			requireRefused(t, err, connect.CodeResourceExhausted, "LIST_FULL", "DeleteList")
			next := int64(0)
			for next < int64(full) {
				r := n.rangeOf("l", next, 1000)
				require.NotEmpty(t, r.Items)
				require.LessOrEqual(t, len(r.Items)*size, 1<<20)
				require.Equal(t, next, r.Items[0].Index)
				next += int64(len(r.Items))
				require.Equal(t, next, r.Next)
			}
		})
	}
}

// What lapsed is left out, and keeps its place; the list lasts as long as the
// last of its items.
func TestItemsLapse(t *testing.T) {
	var now atomic.Int64
	store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	for i, ttl := range []time.Duration{time.Minute, time.Second, time.Minute} {
		_, err := n.append(&v1.AppendRequest{Key: "l", Items: []string{fmt.Sprint(i)}, Ttl: durationpb.New(ttl)})
		require.NoError(t, err)
	}
	now.Store(int64(time.Second))
	r := n.rangeOf("l", 0, 0)
	require.Equal(t, []string{"0:0", "2:2"}, values(r))
	require.EqualValues(t, 3, r.Length)
	now.Store(int64(time.Minute))
	require.Zero(t, n.rangeOf("l", 0, 0).Length)
}

// An append that finds the list longer than its node knew goes behind what is
// there, but where its caller says how long it has to be; one that never finds it as
// it was told is given up.
func TestAppendBehindOthers(t *testing.T) {
	n, late, b := apart(t)
	add := func(n *node, item string, more func(*v1.AppendRequest)) (int64, error) {
		req := &v1.AppendRequest{Key: "l", Items: []string{item}, RequestId: item}
		if more != nil {
			more(req)
		}
		return n.append(req)
	}
	b.freeze(t)
	b.apply = func() {
		_, err := add(n, "first", nil)
		require.NoError(t, err)
	}
	length, err := add(late, "second", nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, length)
	require.Equal(t, []string{"0:first", "1:second"}, values(n.rangeOf("l", 0, 0)))
	length, err = add(late, "second", nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, length, "it is known, whatever the node knows of the list")
	_, err = add(late, "third", func(r *v1.AppendRequest) { r.IfLength = new(int64) })
	requireRefused(t, err, connect.CodeFailedPrecondition, "VERSION_CONFLICT", "2")

	b.always = &session.Result{Code: session.StalePremise, Value: 7}
	_, err = add(late, "never", nil)
	requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "nothing was done")
}

// A list is read as it stood at one instant, also while it is replaced.
func TestRangeIsAtomic(t *testing.T) {
	n, late, b := apart(t)
	put := func(items ...string) {
		_, err := n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Key: "l"})
		require.NoError(t, err)
		_, err = n.append(&v1.AppendRequest{Key: "l", Items: items})
		require.NoError(t, err)
	}
	long, short := []string{"a", "b", "c"}, []string{"x"}
	put(long...)
	turns := 0
	var again func()
	again = func() { // whenever it reads
		if turns++; turns%2 == 0 {
			put(long...)
		} else {
			put(short...)
		}
		b.mu.Lock()
		b.get = again
		b.mu.Unlock()
	}
	for range 10 {
		b.mu.Lock()
		b.get = again
		b.mu.Unlock()
		r := late.rangeOf("l", 0, 0)
		switch r.Length {
		case 1:
			require.Equal(t, []string{"0:x"}, values(r))
		case 3: // it may have been short when it was looked at how long it is
			require.Contains(t, [][]string{{"0:a", "1:b", "2:c"}, {"0:a"}}, values(r))
		default:
			require.Fail(t, "no list of that length", "%v", r)
		}
		require.EqualValues(t, len(r.Items), r.Next)
	}
}
