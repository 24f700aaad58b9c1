package model

import (
	"fmt"
	"strings"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// What is promised of approvals: nothing that asks is admitted without one, and one
// is used once.

// A stands is a standing approval as those know it who put it.
type stands struct {
	uses   uint32
	always bool
	until  time.Duration
}

// approved holds that a call that asks, and is newly admitted, was approved.
func (l *laws) approved(c *session.Begin, r *session.Result) {
	if c.Asking == nil {
		return
	}
	if n := r.Approval; n != nil {
		by := n.By != "" && n.For >= n.Required
		if n.State != approval.Used || !by && (!c.Asking.AllowOnTimeout || n.Against > 0) {
			l.breaks("%s was admitted with the approval %+v", c.Call, n)
		}
		k, token := session.SessionKey(c.NS, c.Session), fmt.Sprint(r.Grants)
		if was := l.used[k][n.ID]; was != "" {
			l.breaks("the approval of %s was used for %s and for %s", c.Call, was, token)
		}
		if l.used[k] == nil {
			l.used[k] = map[string]string{}
		}
		l.used[k][n.ID] = token
		return
	}
	policy := strings.TrimPrefix(c.Pools[0].Pool, "policy/")
	for _, of := range []session.StandingOf{
		{Scope: session.OfSession, Name: c.Session}, {Scope: session.OfAgent, Name: c.Asking.Agent}, {Scope: session.OfPolicy, Name: policy},
	} {
		of.Tool, of.Server = c.Tool, c.Asking.Server
		for _, exact := range []bool{true, false} {
			if of.Exact, of.Arguments = exact, c.Asking.Arguments; !exact {
				of.Arguments = session.Digest{}
			}
			x := l.stands[session.StandingKey(c.NS, of.ID())]
			if x == nil || x.until <= l.now || !x.always && x.uses == 0 {
				continue
			}
			if !x.always {
				x.uses--
			}
			return
		}
	}
	l.breaks("%s asks, and was admitted though nobody approved it and nothing stands for it", c.Call)
}
