package server

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A bench tries requests with one field at a chosen size.
type bench struct {
	t    *testing.T
	s    *Server
	next int
	now  time.Time
}

func newBench(t *testing.T) *bench {
	store := storage.NewMemory(nil)
	s, err := New(Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	b := &bench{t: t, s: s, now: time.Now().Truncate(time.Millisecond)}
	_, err = policyService{s, s.policies}.PutPolicy(t.Context(), &v1.PutPolicyRequest{
		Yaml: "name: p\nmax_attempts: 10000\nmax_tool_calls: 10000\nmax_concurrent: 4096\nbackpressure_threshold: 4096\nmax_tokens: 4000000000\n"})
	require.NoError(t, err)
	require.NoError(t, b.create(nil))
	_, err = slotService{s, s.limits}.PutPool(t.Context(), &v1.PutPoolRequest{Pool: "gpu", Slots: session.MaxSlots})
	require.NoError(t, err)
	return b
}

// id is new each time.
func (b *bench) id() string { b.next++; return fmt.Sprintf("id%d", b.next) }

func (b *bench) create(change func(*v1.CreateSessionRequest)) error {
	req := &v1.CreateSessionRequest{SessionId: "s", AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}}
	if change != nil {
		req.SessionId = b.id()
		change(req)
	}
	_, err := sessionService{b.s}.CreateSession(b.t.Context(), req)
	return err
}

func (b *bench) begin(change func(*v1.BeginCallRequest)) error {
	req := &v1.BeginCallRequest{SessionId: "s", CallId: b.id(), Tool: "t"}
	change(req)
	res, err := callService{Server: b.s}.BeginCall(b.t.Context(), req)
	if err == nil && res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
		_, e := callService{Server: b.s}.EndCall(b.t.Context(), &v1.EndCallRequest{SessionId: "s", CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(1)})
		require.NoError(b.t, e)
	}
	return err
}

func (b *bench) acquire(change func(*v1.AcquireSlotRequest)) error {
	req := &v1.AcquireSlotRequest{Pool: "gpu", SlotId: b.id()}
	change(req)
	res, err := slotService{b.s, b.s.limits}.AcquireSlot(b.t.Context(), req)
	if err == nil && res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
		_, e := slotService{b.s, b.s.limits}.ReleaseSlot(b.t.Context(), &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: req.SlotId, Token: res.Token})
		require.NoError(b.t, e)
	}
	return err
}

func (b *bench) signal(change func(*v1.SignalRequest)) error {
	req := &v1.SignalRequest{Target: &v1.SignalRequest_AgentId{AgentId: "nobody"}, Signal: "STOP"}
	change(req)
	_, err := sessionService{b.s}.Signal(b.t.Context(), req)
	return err
}

func (b *bench) token(change func(*v1.CreateTokenRequest)) error {
	b.next++
	req := &v1.CreateTokenRequest{TokenId: fmt.Sprintf("id%06d", b.next), SecretSha256: make([]byte, 32), Roles: []v1.Role{v1.Role_ROLE_AGENT}}
	req.SecretSha256[0] = 1
	change(req)
	_, err := b.s.newTokens().CreateToken(b.t.Context(), req)
	return err
}

func (b *bench) deny(subject string) error {
	_, err := b.s.newTokens().DenySubject(b.t.Context(), &v1.DenySubjectRequest{Subject: subject})
	return err
}

func (b *bench) putPool(change func(*v1.PutPoolRequest)) error {
	req := &v1.PutPoolRequest{Pool: b.id(), Slots: 10}
	change(req)
	_, err := slotService{b.s, b.s.limits}.PutPool(b.t.Context(), req)
	return err
}

func (b *bench) request(change func(*v1.ApprovalServiceRequestRequest)) error {
	req := &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", RequestId: b.id()}
	change(req)
	_, err := b.s.newApprovals().Request(b.t.Context(), req)
	return err
}

func (b *bench) decide(change func(*v1.ApprovalServiceDecideRequest)) error {
	id := b.id()
	require.NoError(b.t, b.request(func(r *v1.ApprovalServiceRequestRequest) { r.RequestId = id }))
	req := &v1.ApprovalServiceDecideRequest{Id: session.RequestedApprovalID("default", "default", id), Approver: "amy", Decision: v1.Vote_VOTE_APPROVE}
	change(req)
	_, err := b.s.newApprovals().Decide(b.t.Context(), req)
	return err
}

func (b *bench) stand(change func(*v1.PutStandingRequest)) error {
	req := &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: b.id(), Tool: "t", Expiry: durationpb.New(time.Minute)}
	change(req)
	_, err := b.s.newApprovals().PutStanding(b.t.Context(), req)
	return err
}

func (b *bench) putRate(change func(*v1.PutRateRequest)) error {
	req := &v1.PutRateRequest{Rate: b.id(), Limit: 10, Per: durationpb.New(time.Second)}
	change(req)
	_, err := limitService{b.s, b.s.limits}.PutRate(b.t.Context(), req)
	return err
}

func (b *bench) set(change func(*v1.SetRequest)) error {
	req := &v1.SetRequest{Key: b.id(), Value: "v"}
	change(req)
	_, err := b.s.values.Set(b.t.Context(), req)
	return err
}

func (b *bench) append(change func(*v1.AppendRequest)) error {
	req := &v1.AppendRequest{Key: b.id(), Items: []string{"i"}, Ttl: durationpb.New(time.Hour)}
	change(req)
	_, err := b.s.values.Append(b.t.Context(), req)
	return err
}

func chars(n int64) string { return strings.Repeat("a", int(n)) }

func many[V any](n int64, v func(i int) V) []V {
	out := make([]V, n)
	for i := range out {
		out[i] = v(i)
	}
	return out
}

func manyNames(n int64) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("k%d", i)] = "v"
	}
	return m
}

// nested is a JSON object of that many levels.
func nested(n int64) string {
	return strings.Repeat(`{"a":`, int(n-1)) + "{}" + strings.Repeat("}", int(n-1))
}

// bounds tries a request with the field of that row at n.
var bounds = map[string]func(b *bench, n int64) error{
	"ID": func(b *bench, n int64) error {
		return b.create(func(r *v1.CreateSessionRequest) { r.AgentId = chars(n) })
	},
	"Tool": func(b *bench, n int64) error { return b.begin(func(r *v1.BeginCallRequest) { r.Tool = chars(n) }) },
	"Label": func(b *bench, n int64) error {
		return b.acquire(func(r *v1.AcquireSlotRequest) { r.Label = chars(max(n, 0)) })
	},
	"Secret": func(b *bench, n int64) error {
		return b.begin(func(r *v1.BeginCallRequest) { r.SessionToken = chars(max(n, 0)) })
	},
	"Subject": func(b *bench, n int64) error {
		return b.deny(("jwt:" + chars(max(n, 4)-4))[:max(n, 0)])
	},
	"Patterns": func(b *bench, n int64) error {
		return b.token(func(r *v1.CreateTokenRequest) {
			for i := range n {
				r.Agents = append(r.Agents, fmt.Sprint("a", i))
			}
		})
	},
	"Quota": func(b *bench, n int64) error {
		_, err := b.s.newTokens().PutQuotas(b.t.Context(), &v1.PutQuotasRequest{Namespace: "default", Quotas: &v1.Quotas{Sessions: n}})
		return err
	},
	"Signal": func(b *bench, n int64) error {
		return b.signal(func(r *v1.SignalRequest) { r.Signal = chars(max(n, 0)) })
	},
	"Reason": func(b *bench, n int64) error {
		return b.signal(func(r *v1.SignalRequest) { r.Reason = chars(max(n, 0)) })
	},
	"Message": func(b *bench, n int64) error {
		if err := b.request(func(r *v1.ApprovalServiceRequestRequest) { r.Message = chars(max(n, 0)) }); err != nil {
			return err
		}
		return b.decide(func(r *v1.ApprovalServiceDecideRequest) { r.Reason = chars(max(n, 0)) })
	},
	"Attribute": func(b *bench, n int64) error {
		return b.create(func(r *v1.CreateSessionRequest) {
			if n == 0 {
				r.Attributes = map[string]string{"": ""}
			} else {
				r.Attributes = map[string]string{"k": chars(n - 1)}
			}
		})
	},
	"Arguments": func(b *bench, n int64) error {
		return b.begin(func(r *v1.BeginCallRequest) { r.ArgumentsJson = `{"a":"` + chars(n-8) + `"}` })
	},
	"CounterKey": func(b *bench, n int64) error { return b.set(func(r *v1.SetRequest) { r.Key = chars(n) }) },
	"Text":       func(b *bench, n int64) error { return b.set(func(r *v1.SetRequest) { r.Value = chars(n) }) },
	"Item":       func(b *bench, n int64) error { return b.append(func(r *v1.AppendRequest) { r.Items[0] = chars(n) }) },
	"Items": func(b *bench, n int64) error {
		return b.append(func(r *v1.AppendRequest) { r.Items = many(n, func(int) string { return "" }) })
	},
	"Length": func(b *bench, n int64) error {
		err := b.append(func(r *v1.AppendRequest) { r.IfLength = &n })
		if fault.InfoOf(err).GetReason() == fault.ReasonVersionConflict { // it was taken
			err = nil
		}
		if err != nil {
			return err
		}
		_, err = b.s.values.Range(b.t.Context(), &v1.RangeRequest{Key: "k", From: n})
		return err
	},
	"Scan": func(b *bench, n int64) error {
		_, err := policyService{b.s, b.s.policies}.Scan(b.t.Context(), &v1.ScanRequest{SessionId: "s", Kind: v1.ScanKind_SCAN_KIND_INPUT, Text: chars(n)})
		return err
	},
	"Tree": func(b *bench, n int64) error {
		padded := func(n int64) string { return "name: big\nmax_tool_calls: 1\n#" + chars(n) }
		tree, err := engine.SingleFile(padded(n - 100))
		require.NoError(b.t, err)
		_, err = policyService{b.s, b.s.policies}.PutPolicy(b.t.Context(), &v1.PutPolicyRequest{Yaml: padded(n - 100 + n - int64(len(tree.Encode())))})
		return err
	},
	"Attributes": func(b *bench, n int64) error {
		return b.create(func(r *v1.CreateSessionRequest) { r.Attributes = manyNames(n) })
	},
	"Pools": func(b *bench, n int64) error {
		return b.begin(func(r *v1.BeginCallRequest) {
			r.Pools = many(n, func(i int) *v1.Want {
				name := fmt.Sprintf("pool%d", i)
				require.NoError(b.t, b.putPool(func(r *v1.PutPoolRequest) { r.Pool = name }))
				return &v1.Want{Pool: name}
			})
		})
	},
	"Budgets": func(b *bench, n int64) error {
		return b.begin(func(r *v1.BeginCallRequest) {
			r.Budgets = many(n, func(i int) *v1.BudgetAmount {
				name := fmt.Sprintf("budget%d", i)
				require.NoError(b.t, b.putBudget(func(r *v1.PutBudgetRequest) { r.Budget = name }))
				return &v1.BudgetAmount{Budget: name}
			})
		})
	},
	"Metadata": func(b *bench, n int64) error {
		return b.begin(func(r *v1.BeginCallRequest) { r.Metadata = manyNames(n) })
	},
	"Operations": func(b *bench, n int64) error {
		_, err := callService{Server: b.s}.BatchCalls(b.t.Context(), &v1.BatchCallsRequest{Operations: many(n, func(int) *v1.Operation { return &v1.Operation{} })})
		return err
	},
	"Renewals": func(b *bench, n int64) error {
		_, err := slotService{b.s, b.s.limits}.RenewSlots(b.t.Context(), &v1.RenewSlotsRequest{
			Slots: many(n, func(i int) *v1.SlotRef { return &v1.SlotRef{Pool: "gpu", SlotId: fmt.Sprintf("x%d", i)} })})
		return err
	},
	"Keys": func(b *bench, n int64) error {
		_, err := b.s.values.BatchGet(b.t.Context(), &v1.BatchGetRequest{Keys: many(n, func(i int) string { return fmt.Sprintf("k%d", i) })})
		return err
	},
	"Page": func(b *bench, n int64) error {
		if _, err := b.s.values.Range(b.t.Context(), &v1.RangeRequest{Key: "k", Limit: int32(n)}); err != nil {
			return err
		}
		_, err := slotService{b.s, b.s.limits}.ListPools(b.t.Context(), &v1.ListPoolsRequest{PageSize: int32(n)})
		return err
	},
	"Rates": func(b *bench, n int64) error {
		return b.begin(func(r *v1.BeginCallRequest) {
			r.Rates = many(n, func(i int) *v1.RateWant {
				name := fmt.Sprintf("r%d", i)
				require.NoError(b.t, b.putRate(func(r *v1.PutRateRequest) { r.Rate = name }))
				return &v1.RateWant{Rate: name}
			})
		})
	},
	"Rate": func(b *bench, n int64) error {
		return b.putRate(func(r *v1.PutRateRequest) { r.Limit = int32(n) })
	},
	"Cost": func(b *bench, n int64) error {
		name := b.id()
		require.NoError(b.t, b.putRate(func(r *v1.PutRateRequest) { r.Rate, r.Limit = name, int32(input.Caps.Rate.Max) }))
		_, err := limitService{b.s, b.s.limits}.TakeRate(b.t.Context(), &v1.TakeRateRequest{Rate: name, RequestId: b.id(), Cost: int32(n)})
		if err != nil {
			return err
		}
		return b.begin(func(r *v1.BeginCallRequest) { r.Rates = []*v1.RateWant{{Rate: name, Cost: int32(n)}} })
	},
	"Votes": func(b *bench, n int64) error {
		if err := b.request(func(r *v1.ApprovalServiceRequestRequest) { r.Required = int32(n) }); err != nil {
			return err
		}
		return b.request(func(r *v1.ApprovalServiceRequestRequest) { r.Denials = int32(n) })
	},
	"Uses": func(b *bench, n int64) error {
		return b.stand(func(r *v1.PutStandingRequest) { r.Uses = int32(n) })
	},
	"Slots": func(b *bench, n int64) error { return b.putPool(func(r *v1.PutPoolRequest) { r.Slots = int32(n) }) },
	"Weight": func(b *bench, n int64) error {
		if err := b.acquire(func(r *v1.AcquireSlotRequest) { r.Weight = int32(n) }); err != nil {
			return err
		}
		return b.begin(func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu", Weight: int32(n)}} })
	},
	"Queue": func(b *bench, n int64) error {
		return b.putPool(func(r *v1.PutPoolRequest) { limit := int32(n); r.QueueLimit = &limit })
	},
	"Threshold": func(b *bench, n int64) error {
		return b.putPool(func(r *v1.PutPoolRequest) { r.BackpressureThreshold = int32(n) })
	},
	"Priority": func(b *bench, n int64) error { return b.begin(func(r *v1.BeginCallRequest) { r.Priority = int32(n) }) },
	"Tokens":   func(b *bench, n int64) error { return b.begin(func(r *v1.BeginCallRequest) { r.Tokens = n }) },
	"Depth": func(b *bench, n int64) error {
		if err := b.begin(func(r *v1.BeginCallRequest) { r.ArgumentsJson = nested(n) }); err != nil {
			return err
		}
		return b.begin(func(r *v1.BeginCallRequest) {
			s := &structpb.Struct{}
			r.Arguments = s
			for range n - 1 {
				inner := &structpb.Struct{}
				s.Fields = map[string]*structpb.Value{"a": structpb.NewStructValue(inner)}
				s = inner
			}
		})
	},
}

// spans tries a request with the field of that row at d.
var spans = map[string]func(b *bench, d time.Duration) error{
	"Per": func(b *bench, d time.Duration) error {
		return b.putRate(func(r *v1.PutRateRequest) { r.Per = durationpb.New(d) })
	},
	"TTL": func(b *bench, d time.Duration) error {
		return b.begin(func(r *v1.BeginCallRequest) { r.Ttl = durationpb.New(d) })
	},
	"MaxHold": func(b *bench, d time.Duration) error {
		return b.begin(func(r *v1.BeginCallRequest) { r.MaxHold = durationpb.New(d) })
	},
	"Wait": func(b *bench, d time.Duration) error {
		return b.begin(func(r *v1.BeginCallRequest) { r.Wait = durationpb.New(d) })
	},
	"IdleTTL": func(b *bench, d time.Duration) error {
		return b.create(func(r *v1.CreateSessionRequest) { r.IdleTtl = durationpb.New(d) })
	},
	"TokenTTL": func(b *bench, d time.Duration) error {
		return b.token(func(r *v1.CreateTokenRequest) { r.ExpiresIn = durationpb.New(d) })
	},
	"JoinTTL": func(b *bench, d time.Duration) error {
		return b.token(func(r *v1.CreateTokenRequest) {
			r.Namespace, r.Roles, r.ExpiresIn = session.ClusterNamespace, []v1.Role{v1.Role_ROLE_JOINER}, durationpb.New(d)
		})
	},
	"KeyTTL": func(b *bench, d time.Duration) error {
		return b.set(func(r *v1.SetRequest) { r.Ttl = durationpb.New(d) })
	},
	"BudgetPer": func(b *bench, d time.Duration) error {
		return b.putBudget(func(r *v1.PutBudgetRequest) { r.Budget, r.Per = fmt.Sprint("per", int64(d)), durationpb.New(d) })
	},
	"ListTTL": func(b *bench, d time.Duration) error {
		return b.append(func(r *v1.AppendRequest) { r.Ttl = durationpb.New(d) })
	},
	"Approval": func(b *bench, d time.Duration) error {
		return b.request(func(r *v1.ApprovalServiceRequestRequest) { r.Timeout = durationpb.New(d) })
	},
	"Standing": func(b *bench, d time.Duration) error {
		return b.stand(func(r *v1.PutStandingRequest) { r.Expiry = durationpb.New(d) })
	},
	"Ahead": func(b *bench, d time.Duration) error {
		if d < 0 {
			return notTried // an id of the past is one of the past
		}
		return b.ahead(d.Round(time.Millisecond) + d%time.Millisecond*time.Millisecond)
	},
	"Timeout": func(b *bench, d time.Duration) error {
		res, err := callService{Server: b.s}.BatchCalls(b.t.Context(), &v1.BatchCallsRequest{Operations: []*v1.Operation{{
			Timeout: durationpb.New(d),
			Op:      &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: "s", CallId: b.id(), Tool: "t"}},
		}}})
		if err == nil && res.Results[0].GetError() != nil {
			return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s", res.Results[0].GetError().Message))
		}
		return err
	},
}

// ahead tries every kind of id with a time that far ahead of the clock.
func (b *bench) ahead(d time.Duration) error {
	id := func() string {
		id := ulid.Make()
		_ = id.SetTime(ulid.Timestamp(b.now.Add(d))) // it fits
		return id.String()
	}
	b.s.cfg.Now = func() time.Time { return b.now }
	b.s.limits.Now = b.s.cfg.Now
	var errs []error
	for field, err := range map[string]error{
		"sessionId": b.create(func(r *v1.CreateSessionRequest) { r.SessionId = id() }),
		"callId":    b.begin(func(r *v1.BeginCallRequest) { r.CallId = id() }),
		"slotId":    b.acquire(func(r *v1.AcquireSlotRequest) { r.SlotId = id() }),
		"requestId": b.putPool(func(r *v1.PutPoolRequest) { r.RequestId = id() }),
	} {
		if err != nil {
			require.Equal(b.t, field, fault.InfoOf(err).GetMetadata()["field"])
			require.ErrorContains(b.t, err, "Set the clock right")
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	require.Len(b.t, errs, 4, "all of them")
	return errs[0]
}

// elsewhere names the rows that other tests try.
var elsewhere = map[string]string{
	"Namespace":   "TestNamespaceEdges",
	"Body":        "TestBodyLimits",
	"PolicyBody":  "TestBodyLimits",
	"OutputBody":  "TestBodyLimits",
	"Output":      "TestDriftOfLongOutputs",
	"Tools":       "TestCapsOfASession",
	"OpenCalls":   "TestCapsOfASession",
	"Checkpoints": "TestCheckpoints",
}

func (b *bench) putBudget(change func(*v1.PutBudgetRequest)) error {
	req := &v1.PutBudgetRequest{Amount: "100"}
	change(req)
	_, err := limitService{b.s, b.s.limits}.PutBudget(b.t.Context(), req)
	return err
}

var notTried = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("is not tried"))

// signed names the rows of numbers that could be negative.
var signed = map[string]bool{"Length": true, "Queue": true, "Threshold": true, "Priority": true, "Tokens": true}

// Every row of the table of caps is tried at both edges and one beyond each.
func TestCapsAtTheirEdges(t *testing.T) {
	b := newBench(t)
	rows := reflect.ValueOf(input.Caps)
	for i := range rows.NumField() {
		name := rows.Type().Field(i).Name
		t.Run(name, func(t *testing.T) {
			switch row := rows.Field(i).Interface().(type) {
			case input.Bound:
				try := bounds[name]
				if try == nil {
					require.Contains(t, elsewhere, name, "no test tries this row")
					return
				}
				if below := row.Min - 1; row.Default == 0 && (row.Min > 0 || signed[name]) {
					refusedAt(t, try(b, below), below)
				}
				if row.Default != 0 {
					require.NoError(t, try(b, 0), "0 is the default")
					refusedAt(t, try(b, -1), -1)
				}
				if row.Min > 0 {
					require.NoError(t, try(b, row.Min), "the least")
				}
				require.NoError(t, try(b, row.Max), "the most")
				refusedAt(t, try(b, row.Max+1), row.Max+1)
			case input.Span:
				try := spans[name]
				require.NotNil(t, try, "no test tries this row")
				require.NoError(t, try(b, row.Min), "the least")
				require.NoError(t, try(b, row.Max), "the most")
				refusedAt(t, try(b, row.Min-1), row.Min-1)
				refusedAt(t, try(b, row.Max+1), row.Max+1)
			}
		})
	}
}

func refusedAt(t *testing.T, err error, n any) {
	t.Helper()
	require.Error(t, err, "%v was taken", n)
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%v: %v", n, err)
}

func TestNamespaceEdges(t *testing.T) {
	gate := func(ns ...string) error {
		_, err := input.NamespaceGate(t.Context(), http.Header{input.NamespaceHeader: ns})
		return err
	}
	require.NoError(t, gate(chars(input.Caps.Namespace.Min)))
	require.NoError(t, gate(chars(input.Caps.Namespace.Max)))
	require.NoError(t, gate("a.b_c-D9"))
	require.NoError(t, gate(), "default")
	refusedAt(t, gate(chars(input.Caps.Namespace.Max+1)), input.Caps.Namespace.Max+1)
	for _, bad := range []string{"a/b", "a:b", "a b", "ä", "a\x00"} {
		refusedAt(t, gate(bad), bad)
	}
	refusedAt(t, gate("a", "b"), "two headers")
}

// The caps of the state itself: tools and open calls of a session.
func TestCapsOfASession(t *testing.T) {
	b := newBench(t)
	for i := range input.Caps.Tools.Max {
		require.NoError(t, b.begin(func(r *v1.BeginCallRequest) { r.Tool = fmt.Sprintf("tool%d", i) }))
	}
	err := b.begin(func(r *v1.BeginCallRequest) { r.Tool = "one too many" })
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	reason := fault.Of(err).Reason
	require.Equal(t, fault.ReasonTooManyTools, reason)
	require.NoError(t, b.begin(func(r *v1.BeginCallRequest) { r.Tool = "tool0" }), "a tool that is known goes on")

	require.NoError(t, b.create(func(r *v1.CreateSessionRequest) { r.SessionId = "open" }))
	ops := many(input.Caps.Operations.Max, func(i int) *v1.Operation {
		return &v1.Operation{Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: "open", CallId: fmt.Sprintf("c%d", i), Tool: "t"}}}
	})
	require.EqualValues(t, input.Caps.OpenCalls.Max, len(ops))
	res, err := callService{Server: b.s}.BatchCalls(t.Context(), &v1.BatchCallsRequest{Operations: ops})
	require.NoError(t, err)
	for _, r := range res.Results {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, r.GetBegin().GetOutcome(), "%v", r)
	}
	_, err = callService{Server: b.s}.BeginCall(t.Context(), &v1.BeginCallRequest{SessionId: "open", CallId: "more", Tool: "t"})
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	reason = fault.Of(err).Reason
	require.Equal(t, fault.ReasonTooManyOpen, reason)
}
