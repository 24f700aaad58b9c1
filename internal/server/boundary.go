package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/flows"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A boundary is what every request passes through: a deadline, a measurement,
// and the refusal of new work while the node drains, has no room, or knows no
// leader.
type boundary struct{ *Server }

// LeaderHeader stands in the answers of a cluster's node and names the API
// address of the node that leads, so that a client may go there directly.
const LeaderHeader = "Govnode-Leader"

// WrapUnary implements connect.Interceptor.
func (b *boundary) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		procedure := req.Spec().Procedure
		if err := b.admit(procedure); err != nil {
			b.metrics.request(procedure, err, start)
			return nil, err
		}
		if spends(procedure) {
			if err := b.quotas.Spend(ctx, input.Namespace(ctx)); err != nil {
				err = b.outward(err, &order.Trace{})
				b.metrics.request(procedure, err, start)
				return nil, err
			}
		}
		ctx, cancel := b.bounded(ctx, req.Any())
		defer cancel()
		ctx, left := order.Traced(ctx)
		if patienceOf(req.Any()) > 0 {
			guard, stop := b.auth.Guard(ctx)
			defer stop()
			ctx = guard
		}
		res, err := next(ctx, req)
		if (err == nil || fault.Of(err).Code == connect.CodeNotFound) && !left.Changed { // absence is an answer as well
			if gone := b.auth.AfterRead(ctx, access.From(ctx)); gone != nil {
				res, err = nil, gone
			}
		}
		if unwritten := b.audit.written(left); err == nil && unwritten != nil {
			res, err = nil, unwritten
		}
		err = b.outward(err, left)
		b.metrics.request(procedure, err, start)
		b.nameLeader(res, err)
		return res, err
	}
}

// outward is an error as it leaves the node; nil for nil.
func (*boundary) outward(err error, left *order.Trace) error {
	if err == nil {
		return nil
	}
	return fault.Of(left.Said(err)).Connect()
}

// nameLeader tells in an answer who leads, as far as this node knows.
func (s *Server) nameLeader(res connect.AnyResponse, err error) {
	if s.cfg.Cluster == nil {
		return
	}
	leader := s.cfg.Cluster.LeaderAPI()
	if leader == "" {
		return
	}
	var ce *connect.Error
	switch {
	case errors.As(err, &ce):
		ce.Meta().Set(LeaderHeader, leader)
	case err == nil:
		res.Header().Set(LeaderHeader, leader)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (*boundary) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (b *boundary) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		start := time.Now()
		ctx, left := order.Traced(ctx)
		if conn.Spec().Procedure != govnodev1connect.CallServiceExchangeProcedure { // which looks after itself
			guard, stop := b.auth.Guard(ctx)
			defer stop()
			ctx = guard
		}
		err := next(ctx, conn)
		err = b.outward(err, left)
		b.metrics.request(conn.Spec().Procedure, err, start)
		return err
	}
}

// bounded gives a request a deadline of the server's own: its wait, and
// RequestTimeout for the work. A caller's earlier deadline stands.
func (b *boundary) bounded(ctx context.Context, req any) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.cfg.RequestTimeout+patienceOf(req))
}

// admit refuses a request of which this node can tell that it would not be done
// without looking at it.
func (s *Server) admit(procedure string) error {
	if s.draining.Load() && startsWork(procedure) {
		return errDraining()
	}
	if decides(procedure) {
		if err := s.audit.log.admit(); err != nil {
			return err
		}
	}
	if !growsState(procedure) {
		return nil
	}
	if err := s.memory.Admit(); err != nil {
		return err
	}
	if err := s.disk.Admit(); err != nil {
		return err
	}
	if err := s.leader.Admit(); err != nil { // before it is judged for nothing
		return fault.OfChange(storage.Fail(storage.NotApplied, err))
	}
	return nil
}

// startsWork reports whether a request begins something that a draining node
// could not see through.
func startsWork(procedure string) bool {
	switch procedure {
	case govnodev1connect.CallServiceBeginCallProcedure, govnodev1connect.SlotServiceAcquireSlotProcedure,
		govnodev1connect.SessionServiceCreateSessionProcedure, govnodev1connect.LimitServiceTakeRateProcedure:
		return true
	}
	return false
}

// decides reports whether a request is written to the audit log whatever comes of
// it, and so is refused where that is required and not possible. What gives back
// or ends something is not.
func decides(procedure string) bool {
	switch procedure {
	case govnodev1connect.CallServiceBeginCallProcedure, govnodev1connect.PolicyServiceEvaluateProcedure,
		govnodev1connect.PolicyServiceScanProcedure,
		govnodev1connect.PolicyServicePutPolicyProcedure, govnodev1connect.PolicyServicePutHashProcedure,
		govnodev1connect.PolicyServiceDeleteHashProcedure, govnodev1connect.SlotServiceForceReleaseProcedure,
		govnodev1connect.ClusterServiceRepairIDsProcedure,
		govnodev1connect.SlotServicePutPoolProcedure, govnodev1connect.SlotServiceDeletePoolProcedure,
		govnodev1connect.LimitServicePutRateProcedure, govnodev1connect.LimitServiceDeleteRateProcedure,
		govnodev1connect.LimitServicePutBudgetProcedure, govnodev1connect.LimitServiceAdjustBudgetProcedure,
		govnodev1connect.LimitServiceDeleteBudgetProcedure,
		govnodev1connect.ApprovalServiceDecideProcedure, govnodev1connect.ApprovalServiceCancelProcedure,
		govnodev1connect.ApprovalServicePutStandingProcedure, govnodev1connect.ApprovalServiceDeleteStandingProcedure,
		govnodev1connect.AccessServiceCreateTokenProcedure, govnodev1connect.AccessServiceRevokeTokenProcedure,
		govnodev1connect.AccessServiceDenySubjectProcedure, govnodev1connect.AccessServiceAllowSubjectProcedure,
		govnodev1connect.AccessServicePutQuotasProcedure:
		return true
	}
	return false
}

func errDraining() error {
	return fault.New(connect.CodeUnavailable, fault.ReasonNotApplied, "this node is shutting down; nothing was applied, send it again with the same id to another node")
}

// recovered turns a panic into an error, so that one bad request costs one
// answer.
func (s *Server) recovered(_ context.Context, spec connect.Spec, _ http.Header, cause any) error {
	return s.panicked(spec.Procedure, cause)
}

func (s *Server) panicked(where string, cause any) error {
	s.log.Error("a handler panicked", slog.String("where", where), slog.String("cause", engine.Redact(fmt.Sprint(cause))), slog.String("stack", string(debug.Stack())))
	s.metrics.panics.Inc()
	return fault.New(connect.CodeInternal, fault.ReasonOutcomeUnknown, "the node failed on this request; its log has the details. It is safe to send it again with the same id")
}

// growsState reports whether a request makes the state larger. What ends,
// renews, reads or deletes something does not, or by less than it frees.
func growsState(procedure string) bool {
	switch procedure {
	case govnodev1connect.PolicyServicePutPolicyProcedure, govnodev1connect.PolicyServicePutHashProcedure,
		govnodev1connect.CounterServiceSetProcedure, govnodev1connect.CounterServiceIncrementProcedure,
		govnodev1connect.CounterServiceAppendProcedure, govnodev1connect.ApprovalServiceRequestProcedure,
		govnodev1connect.ApprovalServicePutStandingProcedure:
		return true
	}
	return startsWork(procedure)
}

// spends reports whether a request costs its namespace one of the operations that it
// may have in a second. Those that go through the steps of operations pay there, each by
// itself.
func spends(procedure string) bool {
	switch procedure {
	case govnodev1connect.PolicyServiceEvaluateProcedure, govnodev1connect.PolicyServiceScanProcedure:
		return true
	}
	return growsState(procedure) && !startsWork(procedure)
}

// admitForwarded decides about a command that another node passes on to this
// one as the leader: while this one has no room, as it decides about requests
// of its own. The node that passes it on may have more memory; but what it
// takes, the leader has to keep as well.
func (s *Server) admitForwarded(cmd session.Command) bool {
	if !s.memory.Sheds() && !s.disk.Sheds() || !grows(cmd) || s.begun(cmd) {
		return true
	}
	return s.memory.Admit() == nil && s.disk.Admit() == nil
}

// grows says of a command what growsState says of a request.
func grows(cmd session.Command) bool {
	switch cmd.(type) {
	case *session.Open, *session.Begin, *session.Acquire, *session.TakeRate, *session.PutPolicy, *session.PutHash, *session.Set, *session.Increment, *session.Append,
		*session.Ask, *session.PutStanding:
		return true
	}
	return false
}

// begun reports whether a command asks again for what is open or waits, as the
// claim of a waiter does, or takes down where a call has ended in its workflow: the
// other node has taken it before, and it has its room.
func (s *Server) begun(cmd session.Command) bool {
	switch c := cmd.(type) {
	case *session.Begin:
		found, err := s.store.Get(context.Background(), session.SessionKey(c.NS, c.Session), storage.Nearby)
		x, _ := found.Record.(*session.Session)
		return err == nil && x != nil && x.Find(c.Call) != nil
	case *session.Acquire:
		found, err := s.store.Get(context.Background(), session.ClientKey(c.NS, c.Client), storage.Nearby)
		x, _ := found.Record.(*session.Client)
		return err == nil && x != nil && x.Find(c.Slot) != nil
	case *session.Set:
		found, err := s.store.Get(context.Background(), session.CounterKey(c.NS, c.Key), storage.Nearby)
		return err == nil && flows.Ends(c, found.Record)
	case *session.TakeRate:
		found, err := s.store.Get(context.Background(), session.ClientKey(c.NS, c.Client), storage.Nearby)
		x, _ := found.Record.(*session.Client)
		return err == nil && x != nil && x.Find(c.ID) != nil
	}
	return false
}
