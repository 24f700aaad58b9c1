package edictum

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/client"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/lobby"
	v1 "example.com/govnode/proto/govnode/v1"
)

// Handler serves the paths below /v1/, and hands all others to the API.
type Handler struct {
	// Enter counts a stream that follows a namespace, until leave is called, or says
	// why there is no room for one. Nil counts none. Set it before the first request.
	Enter func(ctx context.Context, namespace string) (leave func(), err error)

	api  http.Handler
	log  *slog.Logger
	keys atomic.Pointer[Keys]

	mu      sync.Mutex
	clients map[string]*client.Client // by namespace
	closed  bool

	followed map[string]cached  // rulesets that streams follow
	listed   map[string]listing // those of environments
	ended    context.Context    // done when streams end
	end      context.CancelFunc // ends it
}

// patience is how long a node repeats what has no answer. The SDKs wait for 30 s.
const patience = 25 * time.Second

// maxBody bounds a request of an SDK: 1,000 events of a few KiB.
const maxBody = 8 << 20

// New makes the Handler in front of an API.
func New(api http.Handler, keys *Keys, log *slog.Logger) *Handler {
	h := &Handler{api: api, log: log, clients: map[string]*client.Client{}, followed: map[string]cached{}, listed: map[string]listing{}}
	h.ended, h.end = context.WithCancel(context.Background())
	h.keys.Store(keys)
	return h
}

// SetKeys changes the keys that are known, for requests from now on.
func (h *Handler) SetKeys(keys *Keys) { h.keys.Store(keys) }

// Drain breaks the streams, so that those who follow go on at another node.
func (h *Handler) Drain() { h.end() }

// Close ends what the Handler has open. No request may be under way.
func (h *Handler) Close() error {
	h.Drain()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	var errs []error
	for _, c := range h.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// clientOf is the client of the API in a namespace.
func (h *Handler) clientOf(namespace string) (*client.Client, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, client.ErrClosed
	}
	if c := h.clients[namespace]; c != nil {
		return c, nil
	}
	c, err := client.New(client.Config{
		Addresses: []string{"http://localhost"}, Namespace: namespace, HTTPClient: local{h.api}, DisableExchange: true,
		Timeout: patience, AttemptTimeout: patience, Logger: h.log,
	})
	if err == nil {
		h.clients[namespace] = c
	}
	return c, err
}

// A request is one of an SDK, by somebody who is known.
type request struct {
	*http.Request
	key   Key
	scope scope
	agent string // that the SDK says it is; empty if it says nothing
	api   *client.Client
	rest  []string // of the path, behind /v1/NAME
}

// A problem is what a request is answered with that is not done.
type problem struct {
	status int
	detail string
}

func (p *problem) Error() string { return p.detail }

func refuse(status int, format string, args ...any) error {
	return &problem{status, fmt.Sprintf(format, args...)}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/v1/") {
		h.api.ServeHTTP(w, r)
		return
	}
	body, err := h.serve(w, r)
	if err != nil {
		write(w, h.problemOf(err))
		return
	}
	status := http.StatusOK
	if c, ok := body.(created); ok {
		status, body = http.StatusCreated, c.body
	}
	writeJSON(w, status, body)
}

// created is an answer of something that is new.
type created struct{ body any }

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (any, error) {
	r, key, scope, err := h.known(r)
	if err != nil {
		return nil, err
	}
	name, rest, err := pathOf(r)
	if err != nil {
		return nil, err
	}
	agent := r.Header.Get("X-Edictum-Agent-Id")
	if agent != "" && !identifier.MatchString(agent) {
		return nil, refuse(http.StatusBadRequest, "X-Edictum-Agent-Id: %q is no name; use 1 to 128 letters, digits and . _ -", clip(agent))
	}
	if !scope.has(agent) {
		return nil, refuse(http.StatusForbidden, "X-Edictum-Agent-Id: %s is not in the scope of the token", clip(agent))
	}
	api, err := h.clientOf(key.Namespace)
	if err != nil {
		return nil, err
	}
	q := &request{Request: r, key: key, scope: scope, agent: agent, api: api, rest: rest}
	switch name {
	case "sessions":
		return q.sessions()
	case "approvals":
		return q.approvals()
	case "events":
		return q.events()
	case "rulesets":
		return q.rulesets()
	case "agents":
		return q.agents()
	case "stream":
		if err := q.methods(http.MethodGet); err != nil {
			return nil, err
		}
		return nil, h.stream(w, q)
	}
	return nil, refuse(http.StatusNotFound, "there is no /v1/%s; there are agents, approvals, events, rulesets, sessions and stream", clip(name))
}

// A scope is the agents that a token is for; all if there are none.
type scope []string

func (s scope) has(agent string) bool {
	return len(s) == 0 || agent == "" || slices.ContainsFunc(s, func(pattern string) bool {
		ok, err := path.Match(pattern, agent)
		return ok && err == nil
	})
}

// known finds out who sends a request: by a key of the file, or by a token of the
// service, which then judges by itself what it may do.
func (h *Handler) known(r *http.Request) (*http.Request, Key, scope, error) {
	shown := r.Header.Get("Authorization")
	if key, known := h.keys.Load().of(shown); known {
		return r, key, nil, nil
	}
	scheme, token, _ := strings.Cut(shown, " ")
	unknown := refuse(http.StatusUnauthorized, "Authorization: send Bearer and a key or a token that this service knows")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || !strings.HasPrefix(token, "gn_") {
		lobby.Wrong(r.Context())
		return r, Key{}, nil, unknown
	}
	r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, token))
	api, err := h.clientOf("default") // its own namespace counts
	if err != nil {
		return r, Key{}, nil, err
	}
	me, err := api.WhoAmI(r.Context())
	var objection *client.Error
	if errors.As(err, &objection) && objection.Code == connect.CodeUnauthenticated {
		return r, Key{}, nil, unknown
	}
	if err != nil {
		return r, Key{}, nil, err
	}
	key := Key{Hash: me.Principal, Namespace: me.Namespace, Environment: me.Environment, Role: Agent}
	if slices.Contains(me.Roles, v1.Role_ROLE_APPROVER) || slices.Contains(me.Roles, v1.Role_ROLE_POLICY_AUTHOR) {
		key.Role = Operator // the API says which of the two a request takes
	}
	return r, key, scope(me.Agents), nil
}

// pathOf splits the path of a request as it was sent. The SDKs hardly escape, so a
// path that does not say what was meant is refused: what is read and what is counted
// must be one key.
func pathOf(r *http.Request) (name string, rest []string, err error) {
	sent := r.URL.EscapedPath()
	if i := strings.IndexByte(r.RequestURI, '?'); i >= 0 && strings.HasPrefix(sent, "/v1/sessions/") {
		return "", nil, refuse(http.StatusBadRequest, "path: a key with a ? has to be escaped, as %%3F")
	}
	for i := 0; i+2 < len(sent); i++ {
		if sent[i] != '%' {
			continue
		}
		b, err := url.PathUnescape(sent[i : i+3])
		if err != nil {
			return "", nil, refuse(http.StatusBadRequest, "path: a broken escape")
		}
		if unreserved(b[0]) {
			return "", nil, refuse(http.StatusBadRequest, "path: %q is escaped, and needs not to be: it could name another key", b)
		}
	}
	parts := strings.Split(strings.TrimPrefix(sent, "/v1/"), "/")
	for i, p := range parts {
		if parts[i], err = url.PathUnescape(p); err != nil {
			return "", nil, refuse(http.StatusBadRequest, "path: a broken escape")
		}
	}
	return parts[0], parts[1:], nil
}

// unreserved reports whether RFC 3986 has a character that is never escaped.
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// operator refuses who is none.
func (q *request) operator() error {
	if q.key.Role != Operator {
		return refuse(http.StatusForbidden, "the key %s is that of an agent; this is for operators", q.key.Name)
	}
	return nil
}

// asAgent refuses who does not say which agent it is.
func (q *request) asAgent() error {
	if q.agent == "" {
		return refuse(http.StatusBadRequest, "X-Edictum-Agent-Id: it is required")
	}
	return nil
}

// body reads the body: one JSON object.
func (q *request) body() (value.Value, error) {
	b, err := io.ReadAll(io.LimitReader(q.Body, maxBody+1))
	switch {
	case err != nil:
		return value.Value{}, refuse(http.StatusBadRequest, "body: it could not be read: %v", err)
	case len(b) > maxBody:
		return value.Value{}, refuse(http.StatusRequestEntityTooLarge, "body: it has more than %d bytes", maxBody)
	}
	v, err := value.Parse(b)
	switch {
	case err != nil:
		return value.Value{}, refuse(http.StatusBadRequest, "body: it is not JSON: %v", err)
	case v.Kind() != value.Map:
		return value.Value{}, refuse(http.StatusBadRequest, "body: it must be a JSON object")
	}
	return v, nil
}

// text is a field of a body that must be a text.
func text(body value.Value, field string, required bool) (string, error) {
	v, there := body.Get(field)
	switch {
	case there && v.Kind() == value.String:
		return v.Str(), nil
	case there && v.Kind() != value.Null, required:
		return "", refuse(http.StatusBadRequest, "%s: it must be a text", field)
	}
	return "", nil
}

// methods refuses a request whose method is none of these.
func (q *request) methods(allowed ...string) error {
	for _, m := range allowed {
		if q.Method == m {
			return nil
		}
	}
	return refuse(http.StatusMethodNotAllowed, "%s is not for this path; use %s", clip(q.Method), strings.Join(allowed, " or "))
}

// problemOf says an error in the words of the SDKs.
func (h *Handler) problemOf(err error) *problem {
	var p *problem
	var objection *client.Error
	var unknown *client.Unknown
	var down *client.Unavailable
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &unknown):
		return &problem{http.StatusConflict, "whether this was done is not known: " + unknown.Err.Error()}
	case errors.As(err, &down):
		return &problem{http.StatusServiceUnavailable, "nothing was done: " + down.Err.Error()}
	case errors.As(err, &objection):
		return &problem{statusOf(objection), messageOf(objection)}
	}
	h.log.Error("edictum: a request has failed", "error", err)
	return &problem{http.StatusInternalServerError, "the node has failed; its log says more"}
}

// statusOf is the status of an objection of the API. None of them is one that an
// SDK would repeat.
func statusOf(e *client.Error) int {
	switch e.Code {
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeFailedPrecondition, connect.CodeAlreadyExists, connect.CodeAborted:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return http.StatusBadRequest
	}
	return http.StatusConflict
}

func messageOf(e *client.Error) string {
	var ce *connect.Error
	if errors.As(e.Err, &ce) {
		return ce.Message()
	}
	return e.Err.Error()
}

func write(w http.ResponseWriter, p *problem) {
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeJSON(w, p.status, map[string]string{"detail": p.detail})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil { // of values that were JSON
		status, b = http.StatusInternalServerError, []byte(`{"detail":"the answer could not be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the SDK may be gone
}

// clip shortens what is shown of a request.
func clip(s string) string { return s[:min(len(s), 100)] }
