package access

import (
	"context"
	"sync"
	"time"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
)

const (
	operatorRole = int(v1.Role_ROLE_OPERATOR)
	auditorRole  = int(v1.Role_ROLE_AUDITOR)
)

// Those who are let in for long, by a stream or by a wait, are looked at again while
// they are in.

// lookEvery is how often that is done.
const lookEvery = 250 * time.Millisecond

// A guarded context ends when its principal may not be here any more.
type guarded struct {
	who *Principal
	end context.CancelCauseFunc
}

// Guard returns a context that ends when the principal of ctx is revoked or expires;
// its cause is the error for the caller. Stop it when it is not needed any more.
func (a *Authenticator) Guard(ctx context.Context) (guard context.Context, stop func()) {
	p := From(ctx)
	if p == nil {
		return ctx, func() {}
	}
	guard, end := context.WithCancelCause(ctx)
	g := &guarded{p, end}
	a.mu.Lock()
	a.watch[g] = struct{}{}
	a.mu.Unlock()
	return guard, func() {
		a.mu.Lock()
		delete(a.watch, g)
		a.mu.Unlock()
		end(nil)
	}
}

func (a *Authenticator) look() {
	beat := time.NewTicker(lookEvery)
	defer beat.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-beat.C:
		}
		select {
		case <-a.stop: // a look that took long has the next beat behind it
			return
		default:
			a.lookOnce()
		}
	}
}

// lookOnce looks each principal up once, however many streams and waits are his, and all at
// the same time: none waits for the record of another's namespace. What cannot be read now
// is looked at again.
func (a *Authenticator) lookOnce() {
	a.mu.Lock()
	by := make(map[*Principal][]*guarded, len(a.watch))
	for g := range a.watch { // order-free: each is looked at by itself
		by[g.who] = append(by[g.who], g)
	}
	a.mu.Unlock()
	var looks sync.WaitGroup
	for p, all := range by { // order-free: likewise
		looks.Go(func() { a.lookAt(p, all) })
	}
	looks.Wait()
}

func (a *Authenticator) lookAt(p *Principal, all []*guarded) {
	ctx, cancel := context.WithTimeout(context.Background(), lookEvery)
	defer cancel()
	next, err := a.Nearby(ctx, p)
	switch {
	case err == nil && next != p:
		a.mu.Lock()
		for _, g := range all {
			g.who = next
		}
		a.mu.Unlock()
	case fault.Unauthenticated(err):
		for _, g := range all {
			g.end(err)
		}
	}
}
