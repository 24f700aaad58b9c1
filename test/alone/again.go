package alone

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Whatever changes something may be asked for again under its id, and is answered as
// before. That holds for each step of each script: now and then one is asked for once more.

// remembered are the answers of what changes something.
var remembered = func() map[protoreflect.FullName]bool {
	all := map[protoreflect.FullName]bool{}
	for _, m := range []proto.Message{
		&v1.CreateTokenResponse{}, &v1.RevokeTokenResponse{}, &v1.DenySubjectResponse{}, &v1.AllowSubjectResponse{}, &v1.PutQuotasResponse{},
		&v1.ApprovalServiceRequestResponse{}, &v1.ApprovalServiceDecideResponse{}, &v1.ApprovalServiceCancelResponse{},
		&v1.PutStandingResponse{}, &v1.DeleteStandingResponse{},
		&v1.BeginCallResponse{}, &v1.EndCallResponse{}, &v1.CancelCallResponse{}, &v1.BatchCallsResponse{},
		&v1.SetResponse{}, &v1.DeleteResponse{}, &v1.IncrementResponse{}, &v1.AppendResponse{}, &v1.DeleteListResponse{},
		&v1.PutRateResponse{}, &v1.DeleteRateResponse{}, &v1.TakeRateResponse{},
		&v1.PutBudgetResponse{}, &v1.AdjustBudgetResponse{}, &v1.DeleteBudgetResponse{},
		&v1.PutPolicyResponse{}, &v1.DeletePolicyResponse{}, &v1.PutHashResponse{}, &v1.DeleteHashResponse{},
		&v1.CreateSessionResponse{}, &v1.CloseSessionResponse{}, &v1.SignalResponse{},
		&v1.PutPoolResponse{}, &v1.DeletePoolResponse{}, &v1.AcquireSlotResponse{}, &v1.ReleaseSlotResponse{}, &v1.ForceReleaseResponse{},
	} {
		all[m.ProtoReflect().Descriptor().FullName()] = true
	}
	return all
}()

// soon is how late the second answer may be, so that nothing has run out meanwhile.
const soon = 500 * time.Millisecond

// again asks once more for what was answered, now and then, where that changes something.
func again[R any](s *script, first R, asked time.Time, ask func(context.Context, *node) (R, error)) {
	m, ok := any(first).(proto.Message)
	if !ok || s.single || !m.ProtoReflect().IsValid() || !remembered[m.ProtoReflect().Descriptor().FullName()] || s.rng.IntN(4) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, soon)
	defer cancel()
	second, err := ask(ctx, s.nodes[s.rng.IntN(len(s.nodes))])
	if err != nil {
		s.tries++ // a node may know of it by this one
	}
	if time.Since(asked) > soon {
		return
	}
	s.steps++
	if err != nil {
		reason := refused(err)
		s.wrong(reason != "", "asked again it is refused: %s; it was answered by {%v}", reason, m)
		return
	}
	was, is := lasting(m), lasting(any(second).(proto.Message))
	if was == nil || is == nil {
		return
	}
	s.wrong(!proto.Equal(was, is), "asked again it is answered by {%v}; it was by {%v}", is, was)
}

// lasting is what an answer says that is the same when it is given again; nil if something
// in it has no answer.
func lasting(m proto.Message) proto.Message {
	m = proto.CloneOf(m)
	whole := true
	var walk func(protoreflect.Message)
	walk = func(m protoreflect.Message) {
		switch x := m.Interface().(type) {
		case *v1.OperationResult: // beside others, which count as well
			whole = whole && x.GetError() == nil
			if b := x.GetBegin(); b != nil {
				b.Counters, b.Pressure = nil, nil
			}
			if e := x.GetEnd(); e != nil {
				e.Counters = nil
			}
			if a := x.GetAcquire(); a != nil {
				a.Pressure = nil
			}
		case *v1.BeginCallResponse:
			if x.Outcome != v1.Outcome_OUTCOME_ADMITTED {
				x.Pressure = nil
			} else {
				x.Approval = nil // by which it was admitted is told where that can be read
			}
			if d := x.Decision; strings.HasPrefix(d.GetPolicy(), "workflow:") { // whose words are not remembered
				x.Reason, d.Reason, d.MatchedRule = "", "", ""
			}
		case *v1.EndCallResponse:
			x.Drift, x.CheckpointId, x.Review, x.Reason = nil, "", nil, "" // likewise
			x.Outcome = once(x.Outcome)
		case *v1.AcquireSlotResponse:
			if x.Outcome != v1.Outcome_OUTCOME_ADMITTED {
				x.Pressure = nil
			}
		case *v1.ReleaseSlotResponse:
			x.Outcome = once(x.Outcome)
		case *v1.CloseSessionResponse:
			x.Released = 0
		case *v1.Approval:
			if x.State == v1.ApprovalState_APPROVAL_STATE_USED {
				x.State = v1.ApprovalState_APPROVAL_STATE_APPROVED // a call that waits may come at any time
			}
		case *v1.SignalResponse:
			x.Closed, x.Released = 0, 0 // so far
			if x.Signal != nil {
				x.Signal.Swept = false // likewise
			}
		}
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case f.Name() == "index", f.Message() != nil && f.Message().FullName() == "google.protobuf.Duration":
				m.Clear(f)
			case f.IsMap(): // of texts and numbers
			case f.Message() != nil && f.IsList():
				for i := range v.List().Len() {
					walk(v.List().Get(i).Message())
				}
			case f.Message() != nil:
				walk(v.Message())
			}
			return true
		})
	}
	walk(m.ProtoReflect())
	if !whole {
		return nil
	}
	return m
}

// once is what is told the first time.
func once(o v1.Outcome) v1.Outcome {
	switch o {
	case v1.Outcome_OUTCOME_ALREADY_ENDED:
		return v1.Outcome_OUTCOME_ENDED
	case v1.Outcome_OUTCOME_ALREADY_RELEASED:
		return v1.Outcome_OUTCOME_RELEASED
	}
	return o
}
