package server

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/storage"
)

// shedder is a guard with a limit of 1,000 bytes, and what it logs.
func shedder(t *testing.T) (*memoryGuard, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	g, err := newMemoryGuard(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&out, nil)))
	require.NoError(t, err)
	t.Cleanup(g.close)
	g.limit = 1000
	return g, &out
}

// New work is refused from 70 % of the limit on, and taken again below 60 %, so
// that a node at the edge does not change its mind with each look.
func TestWorkIsRefusedNearTheLimit(t *testing.T) {
	g, out := shedder(t)
	for _, step := range []struct {
		bytes uint64
		sheds bool
	}{{0, false}, {699, false}, {700, true}, {650, true}, {600, true}, {599, false}, {699, false}, {5000, true}, {1, false}} {
		g.look(memoryUse{bytes: step.bytes})
		err := g.admit()
		require.Equal(t, step.sheds, err != nil, "%d bytes", step.bytes)
	}
	require.Equal(t, 2, strings.Count(out.String(), "level=WARN"), "once each time it begins: %s", out)
	require.Equal(t, 2, strings.Count(out.String(), "level=INFO"), "and once when it ends: %s", out)
	require.Contains(t, out.String(), "GOMEMLIMIT")
}

func TestARefusalForMemorySaysWhatToDo(t *testing.T) {
	g, _ := shedder(t)
	g.look(memoryUse{bytes: 900})
	err := g.admit()
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	info := fault.InfoOf(err)
	require.Equal(t, "OVERLOADED", info.GetReason())
	require.Equal(t, map[string]string{"retryAfter": "1s", "limit": "1000"}, info.GetMetadata())
	require.ErrorContains(t, err, "send it again with the same id in 1s")
	var ce *connect.Error
	require.ErrorAs(t, err, &ce)
	var retry *errdetails.RetryInfo
	for _, d := range ce.Details() {
		m, err := d.Value()
		require.NoError(t, err)
		if r, ok := m.(*errdetails.RetryInfo); ok {
			retry = r
		}
	}
	require.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
}

// A node that sheds learns by itself that what it held is gone, and collects
// garbage for that only when nobody else does.
func TestAGuardRecoversByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := shedder(t)
		var live, cycles, collected atomic.Uint64
		g.inUse = func() memoryUse { return memoryUse{bytes: live.Load(), collections: cycles.Load()} }
		g.collect = func() {
			collected.Add(1)
			cycles.Add(1)
			live.Store(100)
		}
		g.ended.Go(g.watch)
		defer g.close()

		live.Store(500)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, collected.Load(), "a node that takes work is left alone")
		live.Store(800)
		for range 20 { // the runtime collects by itself
			time.Sleep(collectAfter / 2)
			cycles.Add(1)
		}
		synctest.Wait()
		require.Zero(t, collected.Load())
		require.Error(t, g.admit())
		time.Sleep(collectAfter + 2*memoryCheck)
		synctest.Wait()
		require.EqualValues(t, 1, collected.Load())
		require.NoError(t, g.admit())
	})
}

// What the runtime says is understood: what is kept counts, what could be freed
// does not.
func TestMemoryInUse(t *testing.T) {
	kept := make([]byte, 64<<20)
	runtime.GC()
	with := readMemory()
	require.Greater(t, with.bytes, uint64(64<<20))
	runtime.KeepAlive(kept)
	kept = nil
	runtime.GC()
	without := readMemory()
	require.Less(t, without.bytes+32<<20, with.bytes)
	require.Greater(t, without.collections, with.collections)
	require.Positive(t, without.bytes)
}

// While a node sheds, what would make the state grow is refused on every way in,
// and what ends, renews, reads or deletes is answered as ever.
func TestWhatIsRefusedWhileANodeSheds(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := New(Config{Store: store, Audit: io.Discard})
	require.NoError(t, err)
	h := httptest.NewUnstartedServer(s.Handler())
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		h.Close()
		require.NoError(t, store.Close())
	})
	post := func(method, body string) (int, string) {
		res, err := http.Post(h.URL+"/govnode.v1."+method, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer func() { require.NoError(t, res.Body.Close()) }()
		b, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(b)
	}
	answered := func(method, body string) string {
		t.Helper()
		status, text := post(method, body)
		require.Equal(t, http.StatusOK, status, "%s: %s", method, text)
		return text
	}
	answered("PolicyService/PutPolicy", `{"yaml":"name: p\nmax_concurrent: 5\n"}`)
	answered("SessionService/CreateSession", `{"sessionId":"s","agentId":"a","policy":{"name":"p"}}`)
	answered("CallService/BeginCall", `{"sessionId":"s","callId":"c","tool":"t"}`)
	answered("SlotService/PutPool", `{"pool":"q","slots":2}`)
	slot := answered("SlotService/AcquireSlot", `{"pool":"q","slotId":"x","client":"k"}`)
	token, err := strconv.ParseUint(regexp.MustCompile(`"token":\s*"(\d+)"`).FindStringSubmatch(slot)[1], 10, 64)
	require.NoError(t, err)
	answered("CounterService/Set", `{"key":"n","value":"1"}`)

	s.memory.shedding.Store(true)
	for method, body := range map[string]string{
		"SessionService/CreateSession": `{"sessionId":"s2","agentId":"a","policy":{"name":"p"}}`,
		"CallService/BeginCall":        `{"sessionId":"s","callId":"c2","tool":"t"}`,
		"SlotService/AcquireSlot":      `{"pool":"q","slotId":"y","client":"k"}`,
		"PolicyService/PutPolicy":      `{"yaml":"name: p2\n"}`,
		"PolicyService/PutHash":        `{}`,
		"CounterService/Set":           `{"key":"n","value":"2"}`,
		"CounterService/Increment":     `{"key":"n","amount":"2"}`,
	} {
		status, text := post(method, body)
		require.Equal(t, http.StatusTooManyRequests, status, "%s: %s", method, text)
		require.Contains(t, text, "near its memory limit", method)
	}
	begin := &v1.Operation{Tag: 1, Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: "s", CallId: "c3", Tool: "t"}}}
	acquire := &v1.Operation{Tag: 2, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "q", SlotId: "z", Client: "k"}}}
	renew := &v1.Operation{Tag: 3, Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Client: "k", Slots: []*v1.SlotRef{{Pool: "q", SlotId: "x", Token: token}}}}}
	check := func(results map[uint64]*v1.OperationResult) {
		t.Helper()
		for _, tag := range []uint64{1, 2} {
			require.Equal(t, "OVERLOADED", results[tag].GetError().GetReason(), "%v", results[tag])
			require.Equal(t, "resource_exhausted", results[tag].GetError().GetCode())
		}
		require.Equal(t, v1.Outcome_OUTCOME_RENEWED, results[3].GetRenew().GetResults()[0].GetOutcome(), "%v", results[3])
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	calls := govnodev1connect.NewCallServiceClient(&http.Client{Transport: &http.Transport{Protocols: protocols}}, h.URL)
	batch, err := calls.BatchCalls(t.Context(), &v1.BatchCallsRequest{Operations: []*v1.Operation{begin, acquire, renew}})
	require.NoError(t, err)
	check(byTag(batch.Results))
	stream, err := calls.Exchange(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&v1.ExchangeRequest{Frames: []*v1.Operation{begin, acquire, renew}}))
	var answers []*v1.OperationResult
	for len(answers) < 3 {
		m, err := stream.Receive()
		require.NoError(t, err)
		answers = append(answers, m.Answers...)
	}
	check(byTag(answers))
	require.NoError(t, stream.CloseRequest())
	status, text := post("SessionService/GetSession", `{"sessionId":"s"}`)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, `"attempts":1,`, "nothing that was refused had an effect")

	answered("CallService/EndCall", `{"sessionId":"s","callId":"c","status":"STATUS_SUCCEEDED"}`)
	answered("SlotService/RenewSlots", fmt.Sprintf(`{"client":"k","slots":[{"pool":"q","slotId":"x","token":"%d"}]}`, token))
	require.Contains(t, answered("SlotService/ReleaseSlot", fmt.Sprintf(`{"pool":"q","slotId":"x","client":"k","token":"%d"}`, token)), "OUTCOME_RELEASED")
	answered("CounterService/Get", `{"key":"n"}`)
	answered("CounterService/Delete", `{"key":"n"}`)
	answered("PolicyService/Evaluate", `{"policy":{"name":"p"},"tool":"t"}`)
	answered("SessionService/CloseSession", `{"sessionId":"s"}`)
	require.NoError(t, s.ready(t.Context()), "a node that sheds is ready: it answers what others wait for")

	s.memory.shedding.Store(false)
	answered("SessionService/CreateSession", `{"sessionId":"s2","agentId":"a","policy":{"name":"p"}}`)
}

// A snapshot that does not fit beside the present state is refused while it is
// read, and changes nothing; one that fits is restored.
func TestARestoreHasToFit(t *testing.T) {
	g, _ := shedder(t)
	read := func(used, snapshot int) ([]byte, error) {
		g.used.Store(uint64(used))
		return io.ReadAll(g.restoring(strings.NewReader(strings.Repeat("x", snapshot))))
	}
	for _, fits := range [][2]int{{0, 667}, {700, 200}, {1000, 0}} {
		got, err := read(fits[0], fits[1])
		require.NoError(t, err, "%v", fits)
		require.Len(t, got, fits[1])
	}
	for _, not := range [][2]int{{0, 668}, {700, 201}, {1001, 0}} {
		_, err := read(not[0], not[1])
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%v", not)
		require.ErrorContains(t, err, "nothing was changed")
	}
	g.limit = 0
	_, err := read(0, 10_000)
	require.NoError(t, err, "without a limit everything fits")
}

func byTag(results []*v1.OperationResult) map[uint64]*v1.OperationResult {
	m := map[uint64]*v1.OperationResult{}
	for _, r := range results {
		m[r.Tag] = r
	}
	return m
}
