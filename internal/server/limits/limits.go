package limits

import (
	"context"
	"time"

	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Service answers what govnode.v1.SlotService and govnode.v1.LimitService have of
// that.
type Service struct {
	Store *order.Store
	Now   func() time.Time
	// Crossed is told what became of a change of a budget, which may have reached
	// a share of its amount.
	Crossed func(ns string, res *session.Result)
	// Changed is told of what was put, adjusted or deleted through this node, once.
	Changed func(ctx context.Context, c record.Change)
}

// changed tells of a change that was carried out now, and not before.
func (s *Service) changed(ctx context.Context, a *storage.Answer, event, name, says, ns string, by session.Maker) {
	if a.First() {
		s.Changed(ctx, record.Change{Event: event, Name: name, Says: says, NS: ns, By: by})
	}
}
