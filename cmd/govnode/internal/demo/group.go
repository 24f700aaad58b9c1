package demo

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"example.com/govnode/client"
)

// The callers of a scene, and what they saw.

// A group is callers that share a session with a policy of their own.
type group struct {
	session *client.OpenSession

	mu    sync.Mutex
	calls []asked // in no order
}

// newGroup puts a policy of the name, with room for all, and opens a session under
// it.
func (d *demoRun) newGroup(ctx context.Context, name, policy string) (*group, error) {
	policy = "name: " + name + "\nmax_tool_calls: 1000\nmax_concurrent: 100\nbackpressure_threshold: 100\n" + policy
	if _, err := d.client.PutPolicy(ctx, "", policy); err != nil {
		return nil, err
	}
	session, err := d.client.CreateSession(ctx, client.Session{ID: name, Agent: name, Policy: name})
	return &group{session: session}, err
}

// call makes a call, works on it, and notes down what its caller saw. It insists on
// an outcome that is final, and on the end.
func (g *group) call(ctx context.Context, call client.Call, work time.Duration, how ...client.EndOption) (asked, error) {
	a := asked{id: call.ID, sent: machineTime()}
	var open *client.OpenCall
	err := insist(ctx, func() (err error) {
		open, err = g.session.Begin(ctx, call)
		return err
	})
	a.answered = machineTime()
	var refused *client.Refused
	switch {
	case errors.As(err, &refused):
		a.outcome, a.retryAfter = outcomeOf(err), refused.RetryAfter
	case err != nil:
		return a, err
	default:
		a.outcome, a.index = admitted, open.Begun().GetIndex()
		if err := pause(ctx, work); err != nil {
			return a, err
		}
		a.ended = machineTime()
		if err := insist(ctx, func() error { return open.End(ctx, client.Succeeded, how...) }); err != nil {
			return a, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, a)
	return a, nil
}

// insist does something again, with the same id, until there is an answer that is
// final.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		var refused *client.Refused
		notYet := errors.As(err, &refused) && (refused.Outcome == client.NeedsApproval || refused.Outcome == client.Stopped)
		if !notYet && !isUnanswered(err) || ctx.Err() != nil {
			return err
		}
	}
}

// isUnanswered reports whether nobody has said what became of something, so that it
// has to be asked for again.
func isUnanswered(err error) bool {
	var unknown *client.Unknown
	var unavailable *client.Unavailable
	return errors.As(err, &unknown) || errors.As(err, &unavailable)
}

// outcomeOf is the outcome in an error, if the service has answered.
func outcomeOf(err error) string {
	var refused *client.Refused
	if errors.As(err, &refused) {
		return strings.TrimPrefix(refused.Outcome.String(), "OUTCOME_")
	}
	return ""
}

// together does something so many times at once.
func together(n int, do func(int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// pause waits for so long.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}
