package model

import (
	"slices"
	"time"

	"example.com/govnode/session"
)

// Limits by kind, and the breaker.

func limitOf(l session.Limits, kind session.CallKind) (most uint32, limited bool) {
	for _, k := range l.Kinds {
		if k.Kind == kind {
			most, limited = k.Max, true
		}
	}
	return most, limited
}

// tool finds the counts of a tool, or of a server, and makes room for them.
func (x *sess) tool(name string) *tool {
	i := slices.IndexFunc(x.tools, func(t tool) bool { return t.name == name })
	if i < 0 {
		i, x.tools = len(x.tools), append(x.tools, tool{name: name})
	}
	return &x.tools[i]
}

// named reports whether a call is counted among the tools.
func (x *sess) named(c *session.Begin) bool {
	_, limited := limitOf(x.limits, c.CallKind)
	return c.CallKind == session.Tool || c.CallKind == session.Sampling && limited
}

func (x *sess) kindLimit(c *session.Begin, r *session.Result) session.Code {
	most, limited := limitOf(x.limits, c.CallKind)
	n := x.kinds[c.CallKind]
	if c.CallKind == session.Sampling {
		n = 0
		for _, t := range x.tools {
			if t.name == c.Tool {
				n = t.sampling
			}
		}
	}
	if limited && n >= most {
		r.Limit = int64(most)
		return session.KindLimitReached
	}
	return session.Done
}

// breaker refuses from the last of so many failures in a row until the reset has
// passed, and then whoever is not the only one that began since.
func (x *sess) breaker(now time.Duration, call string, r *session.Result) session.Code {
	if x.limits.MaxFailures == 0 || x.Consecutive < x.limits.MaxFailures {
		return session.Done
	}
	again := x.failedAt + x.limits.BreakerReset
	wait := max(again-now, 0)
	for _, h := range x.open {
		if h.id != call && h.started >= again && !h.parked() {
			wait = time.Second
		}
	}
	if wait == 0 {
		return session.Done
	}
	r.RetryAfter, r.Limit = wait, int64(x.limits.MaxFailures)
	return session.BreakerOpen
}
