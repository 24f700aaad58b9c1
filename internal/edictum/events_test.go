package edictum_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What becomes of events.

// Events are put into the lists of their sessions in parts, each is marked, and what fails
// is told.
func TestHowEventsAreKept(t *testing.T) {
	fails := ""
	var marks []string
	o, ask := before(t, func(method string, request map[string]any) (string, error) {
		if method == fails {
			return "", connect.NewError(connect.CodeResourceExhausted, errors.New("no room"))
		}
		if method == "Set" {
			marks = append(marks, request["key"].(string))
			if request["ttl"] != "2592000s" {
				return "", connect.NewError(connect.CodeInvalidArgument, errors.New("ttl"))
			}
		}
		return `{}`, nil
	})
	tell := func(holder string, events ...string) *httptest.ResponseRecorder {
		o.asked, marks = map[string][]string{}, nil
		return ask(holder, "POST", "/v1/events", `{"events":[`+strings.Join(events, ",")+`]}`)
	}
	appended := func() (parts []string) { // key and number of items
		for _, text := range o.asked["Append"] {
			var r v1.AppendRequest
			require.NoError(t, protojson.Unmarshal([]byte(text), &r))
			require.Equal(t, "2592000s", fmt.Sprint(r.GetTtl().GetSeconds(), "s"))
			key := r.GetKey()
			if len(key) > 60 {
				key = key[:20] + "…"
			}
			parts = append(parts, fmt.Sprint(key, " ", len(r.GetItems())))
		}
		return parts
	}
	var many []string
	for i := range 201 {
		many = append(many, fmt.Sprintf(`{"session_id":"s","n":%d}`, i))
	}
	w := tell("agent", append(many, `{"session_id":"r","n":1}`, `{"n":1}`, `{"session_id":"","n":2}`, `{"session_id":"s","n":0}`, `{"n":0,"session_id":"s"}`)...)
	require.Equal(t, 200, w.Code, w.Body)
	require.JSONEq(t, `{"accepted": 204, "duplicates": 2}`, w.Body.String())
	require.Equal(t, []string{"edictum/events/- 2", "edictum/events/r 1", "edictum/events/s 100", "edictum/events/s 100", "edictum/events/s 1"}, appended())
	require.Len(t, marks, 204)

	large := strings.Repeat("x", 40<<10)
	var parts []string
	for i := range 5 {
		parts = append(parts, fmt.Sprintf(`{"session_id":"s","n":%d,"t":%q}`, i, large))
	}
	require.Equal(t, 200, tell("agent", parts...).Code)
	require.Equal(t, []string{"edictum/events/s 3", "edictum/events/s 2"}, appended())
	long := strings.Repeat("l", 201)
	require.Equal(t, 200, tell("agent", `{"session_id":"`+long[1:]+`"}`, `{"session_id":"`+long+`"}`).Code)
	require.Contains(t, o.asked["Append"][0], "edictum/events/"+long[1:])
	require.NotContains(t, o.asked["Append"][1], long[1:]+`"`)
	require.Contains(t, o.asked["Append"][1], `"edictum/events/~`)

	// The same event by another key is another one.
	tell("agent", `{"n":1}`)
	mine := marks
	tell("agent", `{"n":1}`)
	require.Equal(t, mine, marks)
	tell("nameless", `{"n":1}`)
	require.NotEqual(t, mine, marks)

	require.Equal(t, 413, tell("agent", `{"n":1}`, fmt.Sprintf(`{"t":%q}`, strings.Repeat("x", 48<<10))).Code)
	require.Empty(t, o.asked["Append"], "none is kept where one is too large")
	require.Equal(t, 400, tell("agent", `{"n":1}`, `5`).Code)
	require.Empty(t, o.asked["Append"])
	require.Equal(t, 400, tell("agent").Code)
	var tooMany []string
	for i := range 1001 {
		tooMany = append(tooMany, fmt.Sprintf(`{"n":%d}`, i))
	}
	require.Equal(t, 400, tell("agent", tooMany...).Code)
	for _, fails = range []string{"BatchGet", "Append", "Set"} {
		w := tell("agent", `{"n":1}`)
		require.Equal(t, 429, w.Code, fails)
		require.JSONEq(t, `{"detail": "no room"}`, w.Body.String())
	}
}

// A session whose list is full keeps no more events. Those of other sessions in the same
// request are kept, what is not kept is told, and whoever reads the session sees that there
// were more. An SDK would send all again for ever after a 429, so the answer is 200.
func TestFullListsOfEvents(t *testing.T) {
	n := node(t, scriptKeys(t))
	large := strings.Repeat("x", 40<<10)
	events := []string{`{"session_id":"a"}`, `{"session_id":"z"}`}
	for i := range 110 { // more than 4 MiB
		events = append(events, fmt.Sprintf(`{"session_id":"long","n":%d,"t":%q}`, i, large))
	}
	tell := func() (answer struct {
		Accepted, Duplicates, Refused int
		FullSessions                  []string `json:"full_sessions"`
	}) {
		status, text := ask(t, n, "agent", "POST", "/v1/events", `{"events":[`+strings.Join(events, ",")+`]}`)
		require.Equal(t, 200, status, text)
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		return answer
	}
	read := func(session string) (answer struct {
		Events     []any
		Incomplete bool
	}) {
		status, text := ask(t, n, "operator", "GET", "/v1/events?session_id="+session, "")
		require.Equal(t, 200, status, text)
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		return answer
	}
	first := tell()
	require.Positive(t, first.Refused)
	require.Equal(t, len(events), first.Accepted+first.Refused)
	require.Equal(t, []string{"long"}, first.FullSessions)
	long := read("long")
	require.Len(t, long.Events, first.Accepted-2)
	require.True(t, long.Incomplete)
	for _, session := range []string{"a", "z"} {
		other := read(session)
		require.Len(t, other.Events, 1)
		require.False(t, other.Incomplete)
	}

	again := tell()
	require.Equal(t, []int{0, first.Accepted, first.Refused}, []int{again.Accepted, again.Duplicates, again.Refused})
	require.Len(t, read("long").Events, first.Accepted-2)
}

// What was told of a session is shown whole, each event once, those of a call and of an
// action where these are asked for.
func TestHowEventsAreShown(t *testing.T) {
	item := func(index int, mark, event string) string {
		text, err := json.Marshal(`{"mark":"` + mark + `","event":` + event + `}`)
		require.NoError(t, err)
		return fmt.Sprintf(`{"index": "%d", "value": %s}`, index, text)
	}
	o, ask := before(t, func(method string, request map[string]any) (string, error) {
		if method != "Range" {
			return `{}`, nil
		}
		if request["from"] == nil {
			return `{"length": "5", "next": "3", "items": [` + item(0, "a", `{"call_id":"c","action":"x"}`) + "," + item(1, "b", `{"call_id":"d","action":"y"}`) + "," + item(2, "a", `{"call_id":"c","action":"x"}`) + `]}`, nil
		}
		return `{"length": "5", "next": "5", "items": [` + item(3, "c", `{"call_id":"c","action":"y"}`) + `, {"index": "4", "value": "no JSON"}]}`, nil
	})
	for query, want := range map[string]string{
		"":                    `[{"call_id":"c","action":"x"},{"call_id":"d","action":"y"},{"call_id":"c","action":"y"}]`,
		"&call_id=c":          `[{"call_id":"c","action":"x"},{"call_id":"c","action":"y"}]`,
		"&action=y":           `[{"call_id":"d","action":"y"},{"call_id":"c","action":"y"}]`,
		"&call_id=c&action=y": `[{"call_id":"c","action":"y"}]`,
		"&call_id=y":          `[]`,
	} {
		o.asked = map[string][]string{}
		w := ask("operator", "GET", "/v1/events?session_id=s"+query, "")
		require.JSONEq(t, `{"events": `+want+`}`, w.Body.String(), query)
		require.Equal(t, []string{`{"key":"edictum/events/s"}`, `{"from":"3","key":"edictum/events/s"}`}, o.asked["Range"])
	}
	require.Equal(t, 403, ask("agent", "GET", "/v1/events?session_id=s", "").Code)
	require.Equal(t, 400, ask("operator", "GET", "/v1/events", "").Code)
}

// What agents out of the scope of a token have told is not there for it, whichever session
// they said it was of.
func TestEventsOfOthers(t *testing.T) {
	n := guardedNode(t)
	roles := []v1.Role{v1.Role_ROLE_AGENT, v1.Role_ROLE_APPROVER}
	all, bound := n.token("all0", nil, roles...), n.token("bound", []string{"bot-*"}, roles...)
	for _, agent := range []string{"bot-1", "other"} {
		status, body := n.ask(all, agent, "POST", "/v1/events", `{"events":[{"session_id":"s","from":"`+agent+`"}]}`)
		require.Equal(t, 200, status, body)
	}
	for token, want := range map[string]string{
		all: `{"events":[{"session_id":"s","from":"bot-1"},{"session_id":"s","from":"other"}]}`, bound: `{"events":[{"session_id":"s","from":"bot-1"}]}`,
	} {
		status, body := n.ask(token, "", "GET", "/v1/events?session_id=s", "")
		require.Equal(t, 200, status, body)
		require.JSONEq(t, want, body)
	}
}

// Events of more than a page that have lapsed hide none that came later.
func TestLapsedEventsHideNoLaterOnes(t *testing.T) {
	_, ask := before(t, func(method string, request map[string]any) (string, error) {
		switch {
		case method != "Range":
			return `{}`, nil
		case request["from"] == nil:
			return `{"length": "101", "next": "100"}`, nil
		}
		return `{"length": "101", "next": "101", "items": [{"index": "100", "value": "{\"mark\":\"a\",\"event\":{\"n\":1}}"}]}`, nil
	})
	w := ask("operator", "GET", "/v1/events?session_id=s", "")
	require.JSONEq(t, `{"events": [{"n":1}]}`, w.Body.String())
}
