package limits

import (
	"time"

	"example.com/govnode/internal/server/order"
	"example.com/govnode/session"
)

// A Service answers what govnode.v1.SlotService and govnode.v1.LimitService have of
// that.
type Service struct {
	Store *order.Store
	Now   func() time.Time
	// Crossed is told what became of a change of a budget, which may have reached
	// a share of its amount.
	Crossed func(ns string, res *session.Result)
}
