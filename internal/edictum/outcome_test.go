package edictum_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/edictum"
	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/storage"
)

// What becomes of a request decides its status: an SDK repeats 5xx, without an id
// by which a repeat would be known.
func TestOutcomes(t *testing.T) {
	unknown := fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "the leader was lost")
	never := fault.New(connect.CodeUnavailable, fault.ReasonNotApplied, "there is no leader")
	cases := []struct {
		name    string
		times   int // that the node answers so
		err     error
		applied bool // before it does
		status  int
		value   string // in the end
		detail  string
	}{
		{"all is well", 0, nil, true, 200, "1", ""},
		{"nothing was done, for a moment", 3, never, false, 200, "1", ""},
		{"nothing was done", 1 << 30, never, false, 503, "", "nothing was done"},
		{"the answer was lost", 3, unknown, true, 200, "1", ""},
		{"the answer was lost, and it was not done", 3, unknown, false, 200, "1", ""},
		{"it is not known", 1 << 30, unknown, true, 409, "1", "whether this was done is not known"},
		{"it is not known, and it was not done", 1 << 30, unknown, false, 409, "", "whether this was done is not known"},
		{"the node has no room", 1 << 30, fault.New(connect.CodeResourceExhausted, fault.ReasonOverloaded, "no room"), false, 503, "", "nothing was done"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storage.NewMemory(nil)
				s, err := server.New(server.Config{Store: store, Node: "a"})
				require.NoError(t, err)
				api, left := s.Handler(), c.times
				var mu sync.Mutex
				faulty := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					hit := left > 0 && strings.HasSuffix(r.URL.Path, "/Increment")
					if hit {
						left--
					}
					mu.Unlock()
					if !hit {
						api.ServeHTTP(w, r)
						return
					}
					if c.applied {
						api.ServeHTTP(httptest.NewRecorder(), r)
					}
					require.NoError(t, connect.NewErrorWriter().Write(w, r, c.err))
				})
				h := edictum.New(faulty, scriptKeys(t), slog.New(slog.DiscardHandler))
				status, body := serve(h, http.MethodPost, "/v1/sessions/k/increment", `{"amount": 1}`)
				require.Equal(t, c.status, status, body)
				require.Contains(t, body, c.detail)
				mu.Lock()
				left = 0
				mu.Unlock()
				status, body = serve(h, http.MethodGet, "/v1/sessions/k", "")
				if c.value == "" {
					require.Equal(t, 404, status, body)
				} else {
					require.JSONEq(t, `{"value": "`+c.value+`"}`, body)
				}
				require.NoError(t, h.Close())
				require.NoError(t, s.Close())
				require.NoError(t, store.Close())
			})
		})
	}
}

// Events of which that is not known are sent again by an SDK that hears 429, which is right:
// what is kept twice is shown once.
func TestEventsOfUnknownOutcomeAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory(nil)
		s, err := server.New(server.Config{Store: store, Node: "a"})
		require.NoError(t, err)
		api := s.Handler()
		var lost atomic.Bool // the answers to whoever keeps events, which are kept
		h := edictum.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !lost.Load() || !strings.HasSuffix(r.URL.Path, "/Append") {
				api.ServeHTTP(w, r)
				return
			}
			api.ServeHTTP(httptest.NewRecorder(), r)
			require.NoError(t, connect.NewErrorWriter().Write(w, r, fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "the leader was lost")))
		}), scriptKeys(t), slog.New(slog.DiscardHandler))
		lost.Store(true)
		events := `{"events": [{"session_id": "s", "action": "read"}]}`
		status, body := serve(h, http.MethodPost, "/v1/events", events)
		require.Equal(t, 429, status, body)
		require.Contains(t, body, "send them again")
		lost.Store(false)
		status, body = serve(h, http.MethodPost, "/v1/events", events)
		require.Equal(t, 200, status, body)
		req := httptest.NewRequest(http.MethodGet, "/v1/events?session_id=s", nil)
		req.Header.Set("Authorization", "Bearer operator")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		require.Equal(t, 200, w.Code, w.Body)
		require.Equal(t, 1, strings.Count(w.Body.String(), `"action"`), w.Body)
		require.NoError(t, h.Close())
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
}

func serve(h http.Handler, method, path, body string) (int, string) {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer agent")
	req.Header.Set("X-Edictum-Agent-Id", "a")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func TestKeys(t *testing.T) {
	key, hash := edictum.NewKey()
	again, _ := edictum.NewKey()
	require.NotEqual(t, key, again)
	require.Equal(t, hash, edictum.HashOf(key))
	for _, c := range []struct{ yaml, says string }{
		{"", "keys: EOF"},
		{"keys: []", "there is none; make one with `govnode edictum key`"},
		{"keys: [{name: a, hash: x}]", "keys[0].hash"},
		{"keys: [{name: '', hash: '" + hash + "'}]", "keys[0].name"},
		{"keys: [{name: a, hash: '" + hash + "', role: king}]", "neither agent nor operator"},
		{"keys: [{name: a, hash: '" + hash + "', namespace: 'a b'}]", "keys[0].namespace"},
		{"keys: [{name: a, hash: '" + hash + "', environment: 'a b'}]", "keys[0].environment"},
		{"keys: [{name: a, hash: '" + hash + "', nam: b}]", "field nam not found"},
		{"keys: [{name: a, hash: '" + hash + "'}, {name: b, hash: '" + hash + "'}]", "keys[1].hash: it stands here twice"},
	} {
		_, err := edictum.ParseKeys([]byte(c.yaml))
		require.ErrorContains(t, err, c.says, c.yaml)
	}
	_, err := edictum.ParseKeys([]byte("keys: [{name: a, hash: '" + hash + "'}]"))
	require.NoError(t, err)
}

// A key that is taken out of the file is worth nothing any more.
func TestKeysChange(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	h := edictum.New(s.Handler(), scriptKeys(t), slog.New(slog.DiscardHandler))
	status, _ := serve(h, http.MethodGet, "/v1/sessions/k", "")
	require.Equal(t, 404, status)
	other, err := edictum.ParseKeys([]byte("keys: [{name: a, hash: '" + edictum.HashOf("another") + "'}]"))
	require.NoError(t, err)
	h.SetKeys(other)
	status, _ = serve(h, http.MethodGet, "/v1/sessions/k", "")
	require.Equal(t, 401, status)
	require.NoError(t, h.Close())
	require.NoError(t, s.Close())
	require.NoError(t, store.Close())
}
