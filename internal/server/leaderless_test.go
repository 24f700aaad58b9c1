package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/members"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A headless cluster has the leader, and knows the API address, that a test
// says.
type headless struct {
	members.Cluster
	mu          sync.Mutex
	leader, api string
}

func (h *headless) leads(leader, api string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leader, h.api = leader, api
}

func (h *headless) Status(context.Context) (members.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return members.Status{Leader: h.leader, Health: "no leader is known"}, nil
}

func (h *headless) LeaderAPI() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.api
}

func (h *headless) AdmitForwarded(func(session.Command) bool) {}

// A node that has known no leader for longer than elections take says at once
// that it can neither change anything nor read the latest state, and the next
// leader is noticed with the next request.
func TestWithoutALeaderItIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		store, h := storage.NewMemory(nil), &headless{leader: "n1", api: "a:1"}
		s, err := New(Config{Store: store, Cluster: h, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		require.NoError(t, err)
		defer func() {
			require.NoError(t, s.Close())
			require.NoError(t, store.Close())
		}()
		api := s.Handler()
		post := func(method, body string) (int, string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/govnode.v1."+method, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r)
			return w.Code, w.Body.String()
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

		h.leads("n2", "") // another one, whose address is not known yet
		time.Sleep(time.Minute)
		answered("CallService/EndCall", `{"sessionId":"s","callId":"c","status":"STATUS_SUCCEEDED"}`)
		answered("CallService/BeginCall", `{"sessionId":"s","callId":"c1","tool":"t"}`)
		for range 3 { // elections, none of which takes long
			h.leads("", "")
			time.Sleep(4900 * time.Millisecond)
			answered("CounterService/Increment", `{"key":"n","amount":"1"}`)
			h.leads("n1", "a:1")
			time.Sleep(250 * time.Millisecond)
		}
		synctest.Wait()
		require.Empty(t, out.String())

		h.leads("", "")
		time.Sleep(5*time.Second + 2*250*time.Millisecond)
		for method, body := range map[string]string{
			"SessionService/CreateSession": `{"sessionId":"s2","agentId":"a","policy":{"name":"p"}}`,
			"CallService/BeginCall":        `{"sessionId":"s","callId":"c2","tool":"t"}`,
			"SlotService/AcquireSlot":      `{"pool":"q","slotId":"y","client":"k"}`,
			"PolicyService/PutPolicy":      `{"yaml":"name: p2\nmax_concurrent: 5\n"}`,
			"CounterService/Set":           `{"key":"n","value":"2"}`,
			"CallService/EndCall":          `{"sessionId":"s","callId":"c1","status":"STATUS_SUCCEEDED"}`,
			"SessionService/GetSession":    `{"sessionId":"s"}`,
		} {
			began := time.Now()
			status, text := post(method, body)
			require.Equal(t, http.StatusServiceUnavailable, status, "%s: %s", method, text)
			for _, part := range []string{"no leader for more than 5s (no leader is known)", "nothing was applied", `"reason":"NOT_APPLIED"`, `"retryDelay":"2s"`} {
				require.Contains(t, text, part, method)
			}
			require.Zero(t, time.Since(began), "at once")
		}
		batch := answered("CallService/BatchCalls", `{"operations":[{"tag":1,"begin":{"sessionId":"s","callId":"c2","tool":"t"}},
			{"tag":2,"acquire":{"pool":"q","slotId":"y","client":"k"}},{"tag":3,"end":{"sessionId":"s","callId":"c1","status":"STATUS_SUCCEEDED"}}]}`)
		require.Equal(t, 3, strings.Count(batch, "NOT_APPLIED"), batch)
		require.Equal(t, 3, strings.Count(batch, `"retryAfter":"2s"`), batch)
		require.Contains(t, answered("SessionService/GetSession", `{"sessionId":"s","consistency":"CONSISTENCY_STALE"}`), `"attempts":2,`)
		require.Equal(t, 1, strings.Count(out.String(), "level=WARN"), "%s", &out)

		h.leads("n2", "b:1")
		answered("CallService/EndCall", `{"sessionId":"s","callId":"c1","status":"STATUS_SUCCEEDED"}`)
		answered("CallService/BeginCall", `{"sessionId":"s","callId":"c2","tool":"t"}`)
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(out.String(), "level=INFO"), "%s", &out)
	})
}

// The last node of two loses its leadership with its majority, and says so.
func TestANodeWithoutAMajority(t *testing.T) {
	servers, urls := raftServers(t, 2, func(c *Config) { c.LeaderPatience = 50 * time.Millisecond })
	require.NoError(t, servers[1].changes.Close())
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // as long as a leader is waited for
		defer cancel()
		counters := govnodev1connect.NewCounterServiceClient(http.DefaultClient, urls[0])
		_, err := counters.Increment(ctx, &v1.IncrementRequest{Key: "n", Amount: "1"})
		return err != nil && strings.Contains(err.Error(), "has known no leader for more than 50ms (no leader is known)")
	}, 10*time.Second, 10*time.Millisecond)
}
