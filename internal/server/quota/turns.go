package quota

import (
	"context"
	"time"

	"example.com/govnode/internal/lobby"
	"example.com/govnode/storage"
)

// Sessions have turns where nobody asks how many operations a namespace may have: one
// tenant that begins them without end would cost the others the processors.

// patience is how long a turn may be away; who would wait longer is refused.
const patience = time.Second

// A bucket has what may be had of a rate now, a second's worth at most. Less than none is
// owed.
type bucket struct {
	tokens float64
	filled time.Time
}

// fill adds what has come since the bucket was looked at last. What was owed at a higher
// rate is owed for no longer at a lower one.
func (b *bucket) fill(now time.Time, rate float64) {
	b.tokens = min(rate, max(b.tokens, -mostOwed*rate)+rate*now.Sub(b.filled).Seconds())
	b.filled = now
}

// turn returns how long it is until the turn of who comes now, and takes it if he is
// prepared to wait for it.
func (b *bucket) turn(now time.Time, rate float64, prepared time.Duration) (wait time.Duration, taken bool) {
	b.fill(now, rate)
	if wait = b.away(rate); wait > prepared {
		return wait, false
	}
	b.tokens--
	return wait, true
}

// away is how long it is until there is one to be had.
func (b *bucket) away(rate float64) time.Duration {
	return time.Duration(max(0, 1-b.tokens) / rate * float64(time.Second))
}

// Turn waits until a namespace may begin another session at this node, and refuses it
// where that is far away. An operator who says how many operations the namespace may have
// has said it for sessions as well.
func (q *Quotas) Turn(ctx context.Context, ns string) error {
	if q.pace == 0 {
		return nil
	}
	wait, err := q.takeTurn(ctx, ns)
	if err != nil || wait == 0 {
		return err
	}
	q.delayed.Inc()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		s := q.of(ctx, ns)
		defer q.mu.Unlock()
		s.sessions.tokens++ // else those who do not wait for theirs would take all turns
		return storage.Fail(storage.NotApplied, ctx.Err())
	}
}

func (q *Quotas) takeTurn(ctx context.Context, ns string) (time.Duration, error) {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	if s.quotas.Operations > 0 {
		return 0, nil
	}
	now := time.Now()
	prepared := patience
	if end, ok := ctx.Deadline(); ok {
		prepared = min(prepared, end.Sub(now))
	}
	wait, taken := s.sessions.turn(now, float64(q.pace), prepared)
	if !taken {
		lobby.Refused(ctx)
		return 0, q.soon(ns, "sessions a second", q.pace, wait)
	}
	return wait, nil
}
