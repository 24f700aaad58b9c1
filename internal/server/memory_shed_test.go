package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/storage"
)

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

	s.memory.Shed(true)
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

	s.memory.Shed(false)
	answered("SessionService/CreateSession", `{"sessionId":"s2","agentId":"a","policy":{"name":"p"}}`)
}

func byTag(results []*v1.OperationResult) map[uint64]*v1.OperationResult {
	m := map[uint64]*v1.OperationResult{}
	for _, r := range results {
		m[r.Tag] = r
	}
	return m
}
