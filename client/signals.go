package client

import (
	"context"
	"errors"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Signals: who is stopped, killed, or goes on (adapter contract 3.10, 13.3).

// Signals that the service carries out. Any other is an event of the node that
// takes it, and nothing else.
const (
	Stop     = "STOP"     // from the answer on no call is admitted; what runs may end
	Continue = "CONTINUE" // lifts what stands at exactly that target
	Kill     = "KILL"     // as Stop, and the sessions are closed
)

// A Target is whom a signal is for: one of its fields is set.
type Target struct {
	Session, Agent, Policy string
	Everything             bool // of the namespace
}

// Signal sends a signal. What stands then, and how many sessions and leases a KILL
// has ended with this request, comes as a message of govnode/v1.
func (c *Client) Signal(ctx context.Context, to Target, signal, reason string) (*govnodev1.SignalResponse, error) {
	req := &govnodev1.SignalRequest{Signal: signal, Reason: reason, Client: c.cfg.Name}
	set := 0
	if to.Session != "" {
		req.Target, set = &govnodev1.SignalRequest_SessionId{SessionId: to.Session}, set+1
	}
	if to.Agent != "" {
		req.Target, set = &govnodev1.SignalRequest_AgentId{AgentId: to.Agent}, set+1
	}
	if to.Policy != "" {
		req.Target, set = &govnodev1.SignalRequest_PolicyName{PolicyName: to.Policy}, set+1
	}
	if to.Everything {
		req.Target, set = &govnodev1.SignalRequest_Everything{Everything: true}, set+1
	}
	if set != 1 {
		return nil, errors.New("client: Target: set one of Session, Agent, Policy and Everything")
	}
	return change(ctx, c, "Signal", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.SignalResponse, error) {
		return n.sessions.Signal(ctx, req)
	})
}

// ListSignals returns what stands: first what is for more than one session.
func (c *Client) ListSignals(ctx context.Context) (all []*Signal, err error) {
	for token := ""; ; {
		res, err := read(ctx, c, "ListSignals", func(ctx context.Context, n *node) (*govnodev1.ListSignalsResponse, error) {
			return n.sessions.ListSignals(ctx, &govnodev1.ListSignalsRequest{PageSize: 1000, PageToken: token})
		})
		if err != nil {
			return nil, err
		}
		all = append(all, res.GetSignals()...)
		if token = res.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// Signal returns what stood against the session of the call when it was renewed
// last, as the node that renewed it had seen: advice. Nil if nothing did, or if the
// lease is not that of a call.
func (l *Lease) Signal() *Signal {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	return l.signal
}
