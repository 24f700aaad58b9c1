package edictum

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
)

// The stream of changes: each node looks at what is current and tells its followers.

const (
	lookEvery  = 500 * time.Millisecond
	breathe    = 15 * time.Second // idle streams are given up by SDKs after 120 s and 300 s
	cacheFor   = lookEvery - 50*time.Millisecond
	mostCached = 1024
)

// A cached ruleset is one that several streams of a node follow.
type cached struct {
	at      time.Time
	current *ruleset // nil where there is none
}

// A listing is all rulesets of an environment.
type listing struct {
	at  time.Time
	all map[string]*v1.Policy
}

// stream follows a ruleset, or the assignment of an agent that asks for none. It ends
// with the connection alone: one that ends well is opened again at once by SDKs.
func (h *Handler) stream(w http.ResponseWriter, q *request) error {
	env, err := q.env()
	if err != nil {
		return err
	}
	name := q.URL.Query().Get("bundle_name")
	if name != "" && !identifier.MatchString(name) {
		return refuse(http.StatusBadRequest, "bundle_name: %q is no name of a ruleset", clip(name))
	}
	if name == "" {
		if err := q.asAgent(); err != nil {
			return err
		}
	}
	if h.Enter != nil {
		leave, err := h.Enter(q.Context(), q.key.Namespace)
		if err != nil {
			return refuse(http.StatusTooManyRequests, "%v", err)
		}
		defer leave()
	}
	// A look may have to wait for an answer, and ends with the node as well.
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	defer context.AfterFunc(h.ended, cancel)()
	q.Request = q.WithContext(ctx)
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // where the server has one
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	f := &follower{w: w, control: control, h: h, q: q, env: env, name: name, has: q.URL.Query().Get("policy_version")}
	_ = f.say(": here\n\n")
	look, last := time.NewTicker(lookEvery), time.Now()
	defer look.Stop()
	for {
		if !f.welcome() {
			break
		}
		told, err := f.look()
		if err != nil {
			break
		}
		if told {
			last = time.Now()
		}
		if time.Since(last) >= breathe {
			if f.say(": still here\n\n") != nil {
				break
			}
			last = time.Now()
		}
		select {
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		case <-look.C:
		}
	}
	panic(http.ErrAbortHandler) // so that the SDK waits before it comes again
}

// A follower is one stream.
type follower struct {
	w       http.ResponseWriter
	control *http.ResponseController
	h       *Handler
	q       *request

	env, name string // of the ruleset; no name where the agent is assigned one
	has       string // hash of what the SDK has
	assigned  string
	seen      map[string]string // digests of the rulesets of the environment, where it names none
}

// welcome reports whether the key or the token of the stream still holds. What is told
// may come from what others have looked up, so that nothing else would end the stream.
func (f *follower) welcome() bool {
	_, key, _, err := f.h.known(f.q.Request)
	var p *problem
	return err == nil && key == f.q.key || err != nil && !errors.As(err, &p)
}

func (f *follower) say(text string) error {
	if _, err := fmt.Fprint(f.w, text); err != nil {
		return err
	}
	return f.control.Flush()
}

func (f *follower) event(name string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return f.say("event: " + name + "\ndata: " + string(b) + "\n\n")
}

// look tells what is new. An error of the service is none of the stream: it is looked
// again.
func (f *follower) look() (told bool, err error) {
	if f.name == "" {
		if told, err = f.lookAtAll(); err != nil {
			return told, err
		}
		v, err := f.q.api.Get(f.q.Context(), assignmentPrefix+f.q.agent)
		if err != nil || !v.Found || v.Text == f.assigned {
			return told, nil
		}
		f.assigned = v.Text
		return true, f.event("contract_update", map[string]any{"_assignment_changed": true, "bundle_name": v.Text})
	}
	current := f.h.currentOf(f.q, f.env, f.name)
	if current == nil || current.RevisionHash == f.has {
		return false, nil
	}
	f.has = current.RevisionHash
	if err := f.event("contract_update", current); err != nil {
		return false, err
	}
	return true, f.event("ruleset_updated", map[string]any{"name": current.Name, "version": current.Version})
}

// lookAtAll tells which rulesets of the environment have changed, to SDKs that name none
// and know themselves which is theirs. The first look tells of all: one may have changed
// between its fetch and this stream.
func (f *follower) lookAtAll() (told bool, err error) {
	seen := map[string]string{}
	for name, p := range f.h.allOf(f.q, f.env) {
		seen[name] = p.GetDigest()
		if f.seen[name] == p.GetDigest() {
			continue
		}
		told = true
		if err := f.event("ruleset_updated", map[string]any{"name": name, "version": p.GetVersion()}); err != nil {
			return told, err
		}
	}
	if len(seen) > 0 {
		f.seen = seen
	}
	return told, nil
}

// mostListed bounds the rulesets of a namespace of which streams tell that name none.
const mostListed = 10_000

// allOf are the rulesets of an environment, as of less than half a second ago; none where
// that cannot be told.
func (h *Handler) allOf(q *request, env string) map[string]*v1.Policy {
	key := q.key.Namespace + "/" + env
	h.mu.Lock()
	c, ok := h.listed[key]
	h.mu.Unlock()
	if ok && time.Since(c.at) < cacheFor {
		return c.all
	}
	all, token := map[string]*v1.Policy{}, ""
	for len(all) < mostListed {
		page, err := q.api.ListPolicies(q.Context(), 1000, token)
		if err != nil {
			return nil
		}
		for _, p := range page.GetPolicies() {
			if name, ours := strings.CutPrefix(p.GetName(), policyPrefix(env)); ours {
				all[name] = p
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.listed) >= mostCached {
		clear(h.listed)
	}
	h.listed[key] = listing{time.Now(), all}
	return all
}

// currentOf is what is current, as of less than half a second ago; nil where there is
// none, or that cannot be told.
func (h *Handler) currentOf(q *request, env, name string) *ruleset {
	key := q.key.Namespace + "/" + env + "/" + name
	h.mu.Lock()
	c, ok := h.followed[key]
	h.mu.Unlock()
	if ok && time.Since(c.at) < cacheFor {
		return c.current
	}
	current, err := q.current(env, name)
	var p *problem
	if err != nil && !(errors.As(err, &p) && p.status == http.StatusNotFound) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.followed) >= mostCached {
		clear(h.followed)
	}
	h.followed[key] = cached{time.Now(), current}
	return current
}
