package redis

import (
	"context"
	"fmt"
	"time"
)

// Why a node over Redis should not be sent work.

// silentAfter is how long Redis may leave a node without an answer before the
// node is not ready. A node asks every 250 ms.
const silentAfter = 6 * beatEvery

// Ready returns nil while commands are served, else why they are not and what
// to do: the settings of Redis do not allow it, Redis does not answer, or its
// data is in quarantine or being restored. It goes by what the node knows from
// asking Redis all the time, so that it costs nothing. In a Redis Cluster a node
// is ready while it serves one namespace: the others may be on another primary.
func (r *Store) Ready(ctx context.Context) error {
	if err := r.refusal(); err != nil {
		return err
	}
	domains := r.allDomains()
	if len(domains) == 0 {
		if err := r.client.Exists(ctx, r.keys.Namespaces()).Err(); err != nil {
			r.lookAround(ctx, err)
			return fmt.Errorf("no primary of the Redis Cluster answers (%w); see that they run and that this node reaches them", err)
		}
		return nil
	}
	var first error
	for _, d := range domains {
		err := d.unserved()
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// unserved returns why commands of the domain are refused.
func (d *domain) unserved() error {
	if silent := d.clock.silent(); silent > silentAfter {
		why := "no answer"
		if p := d.trouble.Load(); p != nil {
			why = (*p).Error()
		}
		return fmt.Errorf("this Redis has not answered as it should for %s (%s); see that it runs, that it takes writes and that this node reaches it",
			silent.Round(time.Second), why)
	}
	if g := d.gate.Load(); g != nil {
		return g.err
	}
	return nil // nobody has asked for it yet
}

// quarantined is what those are told who are refused meanwhile.
func (d *domain) quarantined(e *epoch) error {
	now, _ := d.clock.now()
	if left := e.until - now; left > 0 {
		return fmt.Errorf("acknowledged changes may be lost in Redis; it is in quarantine for another %s, which ends by itself",
			max(left.Round(time.Second), time.Second))
	}
	if p := d.stuck.Load(); p != nil {
		return fmt.Errorf("acknowledged changes may be lost in Redis; its quarantine is over and cannot be ended: %w", *p)
	}
	return fmt.Errorf("acknowledged changes may be lost in Redis; its quarantine is being ended, which takes a moment")
}

// noteTrouble notes why Redis did not answer a beat, nil if it did.
func (d *domain) noteTrouble(err error) {
	if err == nil {
		d.trouble.Store(nil)
		return
	}
	d.trouble.Store(&err)
}
