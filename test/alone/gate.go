package alone

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
)

// What the Go client does where a request or its answer is lost, or a node says that it has
// no room: here that befalls the requests of one client alone, at its own door.

// What befalls a request.
type fate int

const (
	passes   fate = iota
	cutOff        // nobody could be reached
	unheard       // it has arrived, and its answer is lost
	busied        // a node says that it is OVERLOADED
	rationed      // a node says that a quota of so much a second leaves no room
	spent         // a node says that another quota leaves none
	object        // a node objects
)

// A gate is what the requests of one client go through, each by itself.
type gate struct {
	to *http.Client

	mu    sync.Mutex
	fates map[string][]fate        // by procedure, of the next ones; the last one is that of all others
	after map[string]time.Duration // for how long a node asks to be left alone; 0 where it does not say
	seen  []sighting
}

// A sighting is a request that came to the gate.
type sighting struct {
	at     time.Time
	what   string // procedure
	host   string
	header http.Header
	body   []byte
	status int // with which it was answered; 0 for no answer
}

// next says what befalls the requests that come next.
func (g *gate) next(what string, fates ...fate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fates == nil {
		g.fates = map[string][]fate{}
	}
	g.fates[what] = fates
}

// came are the requests that have come, since the last time that somebody has asked for these.
func (g *gate) came(what string) (of []sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.seen {
		if x.what == what {
			of = append(of, x)
		}
	}
	g.seen = slices.DeleteFunc(g.seen, func(x sighting) bool { return x.what == what })
	return of
}

// Do implements connect.HTTPClient.
func (g *gate) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	what := path.Base(r.URL.Path)
	x := sighting{at: time.Now(), what: what, host: r.URL.Host, header: r.Header.Clone(), body: body}
	if strings.HasPrefix(r.Header.Get("Authorization"), "Bearer "+Prefix) {
		r.Header.Del("Authorization") // which is nobody's
	}
	g.mu.Lock()
	of := g.fates[what]
	f := passes
	if len(of) > 0 {
		f = of[0]
	}
	if len(of) > 1 {
		g.fates[what] = of[1:]
	}
	after := g.after[what]
	g.mu.Unlock()
	res, err := g.do(r, f, after)
	if err == nil {
		x.status = res.StatusCode
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = append(g.seen, x)
	return res, err
}

func (g *gate) do(r *http.Request, f fate, after time.Duration) (*http.Response, error) {
	switch f {
	case cutOff:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("nobody is there")}
	case busied:
		return answerOf(r, http.StatusTooManyRequests, "resource_exhausted", "OVERLOADED", after), nil
	case rationed, spent:
		return answerOf(r, http.StatusTooManyRequests, "resource_exhausted", "QUOTA_EXCEEDED", after), nil
	case object:
		return answerOf(r, http.StatusBadRequest, "invalid_argument", "INVALID_FIELD", 0), nil
	}
	res, err := g.to.Do(r)
	if f == unheard && err != nil {
		return nil, errors.New("it is lost, or its answer") // and not that nobody was there, which says more
	}
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if f == unheard {
		return nil, errors.New("the answer is lost")
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, err
}

// answerOf is what a node answers.
func answerOf(r *http.Request, status int, code, reason string, after time.Duration) *http.Response {
	type detail struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	var details []detail
	add := func(name string, m proto.Message) {
		b, _ := proto.Marshal(m)
		details = append(details, detail{name, base64.RawStdEncoding.EncodeToString(b)})
	}
	add("google.rpc.ErrorInfo", &errdetails.ErrorInfo{Reason: reason, Domain: "govnode"})
	if after > 0 {
		add("google.rpc.RetryInfo", &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	text, _ := json.Marshal(map[string]any{"code": code, "message": "so it is said", "details": details})
	return &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)), Request: r,
	}
}

// gated is also, for a client behind a gate.
func (s *script) gated(slots int32, cfg client.Config) (*client.Client, *gate, bool) {
	g := &gate{to: s.web}
	cfg.HTTPClient, cfg.DisableExchange = g, true
	if cfg.Name == "" {
		cfg.Name = s.own
	}
	c, ok := s.also(slots, cfg)
	return c, g, ok
}
