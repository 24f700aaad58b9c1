package edictum

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/govnode/client"
	"example.com/govnode/engine/value"
)

// Events: what SDKs have seen. They are kept by session, each once, whatever was
// sent again: a list holds them, and a mark for each says that it is there.

const (
	eventTTL    = 30 * 24 * time.Hour
	mostEvents  = 1000     // in one request
	mostOfEvent = 48 << 10 // bytes of one
	eventPrefix = "edictum/events/"
	markPrefix  = "edictum/event/"
	fullPrefix  = "edictum/full/" // of lists that had no room for what was sent
	noSession   = "-"
	markBatch   = 64 // bounds what is under way at once
	appendBytes = 128 << 10
	appendItems = 100
)

// events answers /v1/events.
func (q *request) events() (any, error) {
	if len(q.rest) > 0 {
		return nil, refuse(http.StatusNotFound, "path: events are /v1/events")
	}
	if q.Method == http.MethodPost {
		return q.tell()
	}
	if err := q.methods(http.MethodGet, http.MethodPost); err != nil {
		return nil, err
	}
	return q.told()
}

// An event is one that was sent.
type event struct {
	session, mark, item string
}

// A tally is what became of the events of a request.
type tally struct {
	Accepted     int      `json:"accepted"`
	Duplicates   int      `json:"duplicates"`
	Refused      int      `json:"refused,omitempty"` // for want of room
	FullSessions []string `json:"full_sessions,omitempty"`
}

// tell keeps events. First they are put into their lists, then marked: who is cut
// off between the two sends again, and what is in a list twice is shown once. A session
// whose list is full stops no other, and is no error: an SDK keeps what is answered with
// one, and would send it again with all that is new for as long as the list is full.
func (q *request) tell() (any, error) {
	if err := q.asAgent(); err != nil {
		return nil, err
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	list, _ := body.Get("events")
	if list.Kind() != value.List || list.Len() == 0 || list.Len() > mostEvents {
		return nil, refuse(http.StatusBadRequest, "events: it must be a list of 1 to %d", mostEvents)
	}
	sent, err := q.sent(list)
	if err != nil {
		return nil, err
	}
	fresh, err := q.unmarked(sent)
	if err != nil {
		return nil, err
	}
	bySession := map[string][]event{}
	for _, e := range fresh {
		bySession[e.session] = append(bySession[e.session], e)
	}
	told := tally{Duplicates: list.Len() - len(fresh)}
	for _, session := range slices.Sorted(maps.Keys(bySession)) {
		all := bySession[session]
		kept, err := q.keep(session, all)
		var unknown *client.Unknown
		if errors.As(err, &unknown) { // SDKs drop what is answered with 409, and here nothing is wrong with a repeat
			return nil, refuse(http.StatusTooManyRequests, "whether all events are kept is not known; send them again: %v", unknown.Err)
		}
		if err != nil {
			return nil, err
		}
		told.Accepted += kept
		if kept < len(all) {
			told.Refused += len(all) - kept
			told.FullSessions = append(told.FullSessions, session)
		}
	}
	return told, nil
}

// sent reads the events of a request, each once.
func (q *request) sent(list value.Value) ([]event, error) {
	var all []event
	seen := map[string]bool{}
	i := 0
	for v := range list.Items() {
		if v.Kind() != value.Map {
			return nil, refuse(http.StatusBadRequest, "events[%d]: it must be an object", i)
		}
		session := noSession
		if s, there := v.Get("session_id"); there && s.Kind() == value.String && s.Str() != "" {
			session = s.Str()
		}
		content := canonical(v)
		if len(content) > mostOfEvent {
			return nil, refuse(http.StatusRequestEntityTooLarge, "events[%d]: it has %d bytes, the most is %d", i, len(content), mostOfEvent)
		}
		sum := sha256.Sum256([]byte(q.key.Hash + "\n" + q.agent + "\n" + content))
		e := event{session: session, mark: hex.EncodeToString(sum[:])}
		e.item = `{"mark":"` + e.mark + `","agent_id":` + strconv.Quote(q.agent) + `,"event":` + content + `}`
		if !seen[e.mark] {
			seen[e.mark] = true
			all = append(all, e)
		}
		i++
	}
	return all, nil
}

// canonical is the JSON of a value whose keys are sorted.
func canonical(v value.Value) string {
	var tree any
	d := json.NewDecoder(strings.NewReader(v.JSON()))
	d.UseNumber()
	if d.Decode(&tree) != nil {
		return v.JSON()
	}
	b, err := json.Marshal(tree) // sorts the keys of maps
	if err != nil {
		return v.JSON()
	}
	return string(b)
}

// unmarked are those events that were not kept before.
func (q *request) unmarked(sent []event) ([]event, error) {
	var keys []string
	for _, e := range sent {
		keys = append(keys, markPrefix+e.mark)
	}
	marked, err := q.api.GetMany(q.Context(), keys...)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(sent), func(e event) bool { return marked[markPrefix+e.mark].Found }), nil
}

// keep puts events of a session into its list, and returns how many of them went there
// before it was full.
func (q *request) keep(session string, events []event) (kept int, err error) {
	list := eventsOf(session)
	for kept < len(events) {
		part := fitting(events[kept:])
		var items []string
		for _, e := range part {
			items = append(items, e.item)
		}
		_, err := q.api.Append(q.Context(), list, items, client.Appending{TTL: eventTTL})
		var objection *client.Error
		if errors.As(err, &objection) && objection.Reason == client.ReasonListFull {
			_, err := q.api.Set(q.Context(), fullPrefix+list, "", client.Write{TTL: eventTTL})
			return kept, err
		}
		if err != nil {
			return kept, err
		}
		if err := q.mark(part); err != nil {
			return kept, err
		}
		kept += len(part)
	}
	return kept, nil
}

// fitting are the first of some events, as many as are put into a list at once.
func fitting(events []event) []event {
	size := 0
	for i, e := range events {
		if size += len(e.item); i > 0 && size > appendBytes || i == appendItems {
			return events[:i]
		}
	}
	return events
}

func (q *request) mark(events []event) error {
	for part := range slices.Chunk(events, markBatch) {
		if err := together(part, func(e event) error {
			_, err := q.api.Set(q.Context(), markPrefix+e.mark, "", client.Write{TTL: eventTTL})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// told shows operators what was sent of a session.
func (q *request) told() (any, error) {
	if err := q.operator(); err != nil {
		return nil, err
	}
	wanted := q.URL.Query()
	session := wanted.Get("session_id")
	if session == "" {
		return nil, refuse(http.StatusBadRequest, "session_id: name the session whose events are wanted, %s for those without one", noSession)
	}
	events, seen := []json.RawMessage{}, map[string]bool{}
	for from := int64(0); ; {
		part, err := q.api.Range(q.Context(), eventsOf(session), from, 0)
		if err != nil {
			return nil, err
		}
		for _, item := range part.Items {
			var kept struct {
				Mark  string          `json:"mark"`
				Agent string          `json:"agent_id"` // that has told it
				Event json.RawMessage `json:"event"`
			}
			var named struct {
				CallID string `json:"call_id"`
				Action string `json:"action"`
			}
			if json.Unmarshal([]byte(item.Text), &kept) != nil || seen[kept.Mark] || !q.scope.has(kept.Agent) {
				continue
			}
			seen[kept.Mark] = true
			_ = json.Unmarshal(kept.Event, &named) // fields of other types match nothing
			if id := wanted.Get("call_id"); id != "" && id != named.CallID {
				continue
			}
			if action := wanted.Get("action"); action != "" && action != named.Action {
				continue
			}
			events = append(events, kept.Event)
		}
		// A part without items is of those that have lapsed, and has others behind it.
		before := from
		if from = part.Next; from <= before || from >= part.Length {
			break
		}
	}
	answer := map[string]any{"events": events}
	full, err := q.api.Get(q.Context(), fullPrefix+eventsOf(session))
	if full.Found {
		answer["incomplete"] = true
	}
	return answer, err
}

// eventsOf is the list of a session's events. Any text is a name of a session.
func eventsOf(session string) string {
	if len(session) > 200 {
		sum := sha256.Sum256([]byte(session))
		session = "~" + hex.EncodeToString(sum[:])
	}
	return eventPrefix + session
}

// together does something for each of some events at once, and returns the first
// error.
func together(events []event, do func(event) error) error {
	var group sync.WaitGroup
	var once sync.Once
	var failed error
	for _, e := range events {
		group.Go(func() {
			if err := do(e); err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	group.Wait()
	return failed
}
