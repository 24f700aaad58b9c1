package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// What holds for every operation of a client: what is asked for reaches the node whole,
// who asks is shown, what the node answers reaches the caller, and so does what it
// objects to.

// A said is one request as a node got it.
type said struct {
	method string
	header http.Header
	body   proto.Message
}

// An oracle answers every method of the API as it is told to, over streams too, and
// keeps what it was asked.
type oracle struct {
	govnodev1connect.UnimplementedCallServiceHandler

	mu     sync.Mutex
	asked  []said
	answer func(method string) (text string, code connect.Code, reason string)
}

func (o *oracle) hear(method string, header http.Header, body proto.Message) (string, connect.Code, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, said{method, header, proto.Clone(body)})
	return o.answer(method)
}

func (o *oracle) of(method string) (all []said) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.asked {
		if s.method == method {
			all = append(all, s)
		}
	}
	return all
}

func (o *oracle) handler() http.Handler {
	answering := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(_ context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			text, code, reason := o.hear(lastOf(req.Spec().Procedure), req.Header().Clone(), req.Any().(proto.Message))
			if code != 0 {
				return nil, objection(code, reason, nil)
			}
			m := dynamicpb.NewMessage(req.Spec().Schema.(protoreflect.MethodDescriptor).Output())
			if err := protojson.Unmarshal([]byte(text), m); err != nil {
				return nil, connect.NewError(connect.CodeDataLoss, err)
			}
			return connect.NewResponse(m), nil
		}
	}))
	mux := http.NewServeMux()
	mux.Handle(govnodev1connect.NewCallServiceHandler(o, answering))
	mux.Handle(govnodev1connect.NewSessionServiceHandler(govnodev1connect.UnimplementedSessionServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewSlotServiceHandler(govnodev1connect.UnimplementedSlotServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewLimitServiceHandler(govnodev1connect.UnimplementedLimitServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewApprovalServiceHandler(govnodev1connect.UnimplementedApprovalServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewPolicyServiceHandler(govnodev1connect.UnimplementedPolicyServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewCounterServiceHandler(govnodev1connect.UnimplementedCounterServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewClusterServiceHandler(govnodev1connect.UnimplementedClusterServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewAccessServiceHandler(govnodev1connect.UnimplementedAccessServiceHandler{}, answering))
	return mux
}

var overStreams = map[protoreflect.Name]string{
	"begin": "BeginCall", "end": "EndCall", "cancel": "CancelCall", "acquire": "AcquireSlot", "renew": "RenewSlots", "release": "ReleaseSlot",
}

func (o *oracle) Exchange(ctx context.Context, stream *exchangeStream) error {
	header := stream.RequestHeader().Clone()
	return reading(&govnodev1.ExchangeResponse{MaxInFlight: 100}, func(_ context.Context, stream *exchangeStream, ops []*govnodev1.Operation) error {
		out := &govnodev1.ExchangeResponse{}
		for _, op := range ops {
			m := op.ProtoReflect()
			which := m.WhichOneof(m.Descriptor().Oneofs().ByName("op"))
			text, code, reason := o.hear(overStreams[which.Name()], header, m.Get(which).Message().Interface())
			r := &govnodev1.OperationResult{Tag: op.GetTag()}
			if code != 0 {
				r.Result = &govnodev1.OperationResult_Error{Error: &govnodev1.OperationError{Code: code.String(), Reason: reason, Message: "as the test wants it"}}
			} else {
				to := r.ProtoReflect()
				if err := protojson.Unmarshal([]byte(text), to.Mutable(to.Descriptor().Fields().ByName(which.Name())).Message().Interface()); err != nil {
					return err
				}
			}
			out.Answers = append(out.Answers, r)
		}
		return stream.Send(out)
	})(ctx, stream)
}

// An act is one use of a client.
type act struct {
	name    string // of the method of Client, OpenSession, OpenCall or Slot, and what is special
	do      func(context.Context, *client.Client) (any, error)
	method  string   // that is asked for
	want    string   // the request, without client and an id that is drawn
	answers []string // of the method, one after another; the last stays
	got     any      // what do returns; a message as JSON
	reads   bool
}

const (
	admits1h  = `{"outcome": "OUTCOME_ADMITTED", "token": "9", "ttl": "3600s", "pressure": {"inUse": 3, "limit": 4, "advisedDelay": "1s"}}`
	beginning = `{"outcome": "OUTCOME_ADMITTED", "decisionId": "d", "reviews": true, "grants": [{"pool": "p", "token": "3", "ttl": "3600s"}]}`
)

func ofSecret(c *client.Client) *client.OpenSession { return c.SessionWith("S", "secret") }

var wholeCall = client.Call{
	ID: "C", Kind: govnodev1.Kind_KIND_MODEL, Tool: "T", ArgumentsJSON: `{"b":1,"a":2}`, ContextJSON: `{"c":3}`, Metadata: map[string]string{"k": "v", "l": "w"},
	MetadataJSON: `{"m":[1]}`, Pools: []client.Want{{Pool: "gpu", Weight: 2}, {Pool: "cpu", Weight: 3}, {Pool: "disk"}},
	Rates: []client.RateWant{{Rate: "r", Cost: 5}, {Rate: "q", Tokens: true}}, Costs: []client.Cost{{Budget: "b", Amount: "0.5"}, {Budget: "d"}},
	ServerLabel: "L", TTL: time.Hour, MaxHold: 2 * time.Hour, Wait: time.Minute, Priority: -4, Tokens: 7, Order: govnodev1.Order_ORDER_PRE_EXECUTE,
}

const wholeCallJSON = `{"sessionId": "S", "callId": "C", "kind": "KIND_MODEL", "tool": "T", "argumentsJson": "{\"b\":1,\"a\":2}", "contextJson": "{\"c\":3}",
	"metadata": {"k": "v", "l": "w"}, "metadataJson": "{\"m\":[1]}", "pools": [{"pool": "gpu", "weight": 2}, {"pool": "cpu", "weight": 3}, {"pool": "disk"}],
	"rates": [{"rate": "r", "cost": 5}, {"rate": "q", "by": "COST_TOKENS"}], "budgets": [{"budget": "b", "amount": "0.5"}, {"budget": "d"}],
	"serverLabel": "L", "ttl": "3600s", "maxHold": "7200s", "priority": -4, "tokens": "7", "order": "ORDER_PRE_EXECUTE", "sessionToken": "secret"}`

// one is for operations that take no more than a context.
func one[A any](f func(*client.Client, context.Context) (A, error)) func(context.Context, *client.Client) (any, error) {
	return func(ctx context.Context, c *client.Client) (any, error) {
		a, err := f(c, ctx)
		return a, err
	}
}

func acts() []act {
	length := int64(3)
	entropy := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32))
	hash := sha256.Sum256([]byte(entropy))
	vote := client.Vote{Approver: "amy", Reason: "why", RequestDigest: "sha256:x"}
	signal := func(to client.Target) func(context.Context, *client.Client) (any, error) {
		return func(ctx context.Context, c *client.Client) (any, error) { return c.Signal(ctx, to, "STOP", "why") }
	}
	stops, stopped := []string{`{"closed": 2, "signal": {"signal": "STOP"}}`}, `{"closed": 2, "signal": {"signal": "STOP"}}`
	return []act{
		{"CreateSession", func(ctx context.Context, c *client.Client) (any, error) {
			s, err := c.CreateSession(ctx, client.Session{ID: "S", Agent: "A", Policy: "P", IdleTTL: time.Hour, Parent: "Q", Attributes: map[string]string{"k": "v", "l": "w"}})
			if err != nil {
				return nil, err
			}
			return []string{s.ID(), s.Secret()}, nil
		}, "CreateSession", `{"sessionId": "S", "agentId": "A", "policy": {"name": "P"}, "idleTtl": "3600s", "parentSessionId": "Q", "attributes": {"k": "v", "l": "w"}}`,
			[]string{`{}`}, []string{"S", ""}, false},
		{"CreateSession with a secret", func(ctx context.Context, c *client.Client) (any, error) {
			s, err := c.CreateSession(ctx, client.Session{ID: "S", Agent: "A", PolicyDigest: "sha256:x", Secret: true})
			if err != nil {
				return nil, err
			}
			return []string{s.ID(), s.Secret()}, nil
		}, "CreateSession", `{"sessionId": "S", "agentId": "A", "policy": {"digest": "sha256:x"}, "sessionTokenSha256": "` + base64.StdEncoding.EncodeToString(hash[:]) + `"}`,
			[]string{`{}`}, []string{"S", entropy}, false},
		{"Read", func(ctx context.Context, c *client.Client) (any, error) { return ofSecret(c).Read(ctx) },
			"GetSession", `{"sessionId": "S"}`, []string{`{"session": {"sessionId": "S", "agentId": "A"}}`}, `{"sessionId": "S", "agentId": "A"}`, true},
		{"Close", func(ctx context.Context, c *client.Client) (any, error) { return ofSecret(c).Close(ctx) },
			"CloseSession", `{"sessionId": "S"}`, []string{`{"released": 3}`}, 3, false},
		{"Begin", func(ctx context.Context, c *client.Client) (any, error) {
			open, err := ofSecret(c).Begin(ctx, wholeCall)
			if err != nil {
				return nil, err
			}
			return open.Begun(), nil
		}, "BeginCall", wholeCallJSON, []string{beginning}, beginning, false},
		{"Do", func(ctx context.Context, c *client.Client) (any, error) {
			call := wholeCall
			call.Wait = client.NoWait
			var id string
			err := ofSecret(c).Do(ctx, call, func(_ context.Context, open *client.OpenCall) error { id = open.ID(); return nil })
			return id, err
		}, "EndCall", `{"sessionId": "S", "callId": "C", "status": "STATUS_SUCCEEDED", "sessionToken": "secret"}`, []string{`{"outcome": "OUTCOME_ENDED"}`}, "C", false},
		{"End", func(ctx context.Context, c *client.Client) (any, error) {
			call := wholeCall
			call.Wait = client.NoWait
			open, err := ofSecret(c).Begin(ctx, call)
			if err != nil {
				return nil, err
			}
			err = open.End(ctx, client.Failed, client.UsedTokens(8), client.Output("seen"), client.Spent(client.Cost{Budget: "b", Amount: "1"}, client.Cost{Budget: "d", Amount: "2"}))
			if err != nil {
				return nil, err
			}
			return open.Ended(), nil
		}, "EndCall", `{"sessionId": "S", "callId": "C", "status": "STATUS_FAILED", "output": "seen", "tokens": "8", "sessionToken": "secret",
			"spent": [{"budget": "b", "amount": "1"}, {"budget": "d", "amount": "2"}], "begin": ` + wholeCallJSON + `}`,
			[]string{`{"outcome": "OUTCOME_ENDED", "checkpointId": "k"}`}, `{"outcome": "OUTCOME_ENDED", "checkpointId": "k"}`, false},
		{"Acquire", func(ctx context.Context, c *client.Client) (any, error) {
			s, err := c.Acquire(ctx, "P", client.SlotID("X"), client.Weight(2), client.TTL(time.Hour), client.MaxHold(2*time.Hour),
				client.Wait(time.Minute), client.Priority(-4), client.Label("L"))
			if err != nil {
				return nil, err
			}
			return []any{s.Pool(), s.ID(), s.Token(), s.Pressure()}, nil
		}, "AcquireSlot", `{"pool": "P", "slotId": "X", "weight": 2, "ttl": "3600s", "maxHold": "7200s", "priority": -4, "label": "L"}`,
			[]string{admits1h}, []any{"P", "X", uint64(9), client.Pressure{InUse: 3, Limit: 4, AdvisedDelay: time.Second}}, false},
		{"ReleaseContext", func(ctx context.Context, c *client.Client) (any, error) {
			s, err := c.Acquire(ctx, "P", client.SlotID("X"), client.TTL(time.Hour), client.Wait(client.NoWait))
			if err != nil {
				return nil, err
			}
			return nil, s.ReleaseContext(ctx)
		}, "ReleaseSlot", `{"pool": "P", "slotId": "X", "token": "9"}`, []string{`{"outcome": "OUTCOME_RELEASED"}`}, nil, false},

		{"TakeRate", func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.TakeRate(ctx, client.Take{Rate: "R", ID: "I", Cost: 3, Wait: time.Minute, Priority: -4})
		}, "TakeRate", `{"rate": "R", "requestId": "I", "cost": 3, "priority": -4}`, []string{`{"outcome": "OUTCOME_ADMITTED"}`}, nil, false},
		{"PutRate", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutRate(ctx, client.Rate{Name: "R", Limit: 5, Per: 2 * time.Second, QueueLimit: 9})
		}, "PutRate", `{"rate": "R", "limit": 5, "per": "2s", "queueLimit": 9}`, []string{`{"rate": {"rate": "R", "limit": 6}}`}, `{"rate": "R", "limit": 6}`, false},
		{"GetRate", func(ctx context.Context, c *client.Client) (any, error) { return c.GetRate(ctx, "R") },
			"GetRate", `{"rate": "R"}`, []string{`{"rate": {"rate": "R", "limit": 6}}`}, `{"rate": "R", "limit": 6}`, true},
		{"ListRates", func(ctx context.Context, c *client.Client) (any, error) { return c.ListRates(ctx, 7, "p") },
			"ListRates", `{"pageSize": 7, "pageToken": "p"}`, []string{`{"rates": [{"rate": "R"}, {"rate": "Q"}], "nextPageToken": "n"}`},
			`{"rates": [{"rate": "R"}, {"rate": "Q"}], "nextPageToken": "n"}`, true},
		{"DeleteRate", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.DeleteRate(ctx, "R") },
			"DeleteRate", `{"rate": "R"}`, []string{`{}`}, nil, false},
		{"PutBudget", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutBudget(ctx, client.Spending{Budget: "B", Parent: "Q", Amount: "5", Per: time.Hour})
		}, "PutBudget", `{"budget": "B", "parent": "Q", "amount": "5", "per": "3600s"}`, []string{`{"budget": {"budget": "B"}}`}, `{"budget": "B"}`, false},
		{"GetBudget", func(ctx context.Context, c *client.Client) (any, error) { return c.GetBudget(ctx, "B") },
			"GetBudget", `{"budget": "B"}`, []string{`{"budget": {"budget": "B"}}`}, `{"budget": "B"}`, true},
		{"ListBudgets", func(ctx context.Context, c *client.Client) (any, error) { return c.ListBudgets(ctx, 7, "p") },
			"ListBudgets", `{"pageSize": 7, "pageToken": "p"}`, []string{`{"budgets": [{"budget": "B"}], "nextPageToken": "n"}`}, `{"budgets": [{"budget": "B"}], "nextPageToken": "n"}`, true},
		{"AdjustBudget", func(ctx context.Context, c *client.Client) (any, error) { return c.AdjustBudget(ctx, "B", "-1") },
			"AdjustBudget", `{"budget": "B", "by": "-1"}`, []string{`{"budget": {"budget": "B"}}`}, `{"budget": "B"}`, false},
		{"DeleteBudget", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.DeleteBudget(ctx, "B") },
			"DeleteBudget", `{"budget": "B"}`, []string{`{}`}, nil, false},

		{"PutPool", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutPool(ctx, client.Pool{Name: "P", Slots: 5, BackpressureThreshold: 4, QueueLimit: 9})
		}, "PutPool", `{"pool": "P", "slots": 5, "backpressureThreshold": 4, "queueLimit": 9}`, []string{`{"pool": {"pool": "P"}}`}, `{"pool": "P"}`, false},
		{"PutPool for which nobody waits", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutPool(ctx, client.Pool{Name: "P", Slots: 5, QueueLimit: client.NoQueue})
		}, "PutPool", `{"pool": "P", "slots": 5, "queueLimit": 0}`, []string{`{"pool": {"pool": "P"}}`}, `{"pool": "P"}`, false},
		{"ListSlots", func(ctx context.Context, c *client.Client) (any, error) { return c.ListSlots(ctx, "P") },
			"ListSlots", `{"pool": "P"}`, []string{`{"pool": {"pool": "P"}, "slots": [{"slotId": "X"}]}`}, `{"pool": {"pool": "P"}, "slots": [{"slotId": "X"}]}`, true},

		{"PutPolicy", func(ctx context.Context, c *client.Client) (any, error) { return c.PutPolicy(ctx, "P", "name: P") },
			"PutPolicy", `{"name": "P", "yaml": "name: P"}`, []string{`{"digest": "x"}`}, `{"digest": "x"}`, false},
		{"PutPolicyTree", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutPolicyTree(ctx, &govnodev1.PutPolicyRequest{Name: "P", RequestId: "I", Files: []*govnodev1.TextFile{{Path: "a"}, {Path: "b"}}})
		}, "PutPolicy", `{"name": "P", "files": [{"path": "a"}, {"path": "b"}], "requestId": "I"}`, []string{`{"digest": "x"}`}, `{"digest": "x"}`, false},
		{"GetPolicy", func(ctx context.Context, c *client.Client) (any, error) { return c.GetPolicy(ctx, "P") },
			"GetPolicy", `{"name": "P"}`, []string{`{"policy": {"name": "P"}}`}, `{"name": "P"}`, true},
		{"ListPolicies", func(ctx context.Context, c *client.Client) (any, error) { return c.ListPolicies(ctx, 7, "p") },
			"ListPolicies", `{"pageSize": 7, "pageToken": "p"}`, []string{`{"nextPageToken": "n"}`}, `{"nextPageToken": "n"}`, true},
		{"Evaluate", func(ctx context.Context, c *client.Client) (any, error) {
			return c.Evaluate(ctx, &govnodev1.EvaluateRequest{Tool: "T", SessionId: "S"})
		}, "Evaluate", `{"tool": "T", "sessionId": "S"}`, []string{`{"decisionId": "d"}`}, `{"decisionId": "d"}`, true},
		{"Scan", func(ctx context.Context, c *client.Client) (any, error) {
			return c.Scan(ctx, &govnodev1.ScanRequest{Text: "T", SessionId: "S"})
		}, "Scan", `{"text": "T", "sessionId": "S"}`, []string{`{"decisionId": "d"}`}, `{"decisionId": "d"}`, true},
		{"WhoAmI", one((*client.Client).WhoAmI), "WhoAmI", `{}`, []string{`{"principal": "me"}`}, `{"principal": "me"}`, true},

		{"Get", func(ctx context.Context, c *client.Client) (any, error) { return c.Get(ctx, "K") },
			"Get", `{"key": "K"}`, []string{`{"found": true, "value": "t", "version": "v"}`}, client.Value{Found: true, Text: "t", Version: "v"}, true},
		{"GetMany", func(ctx context.Context, c *client.Client) (any, error) { return c.GetMany(ctx, "K", "L") },
			"BatchGet", `{"keys": ["K", "L"]}`, []string{`{"values": {"K": "t", "L": "u"}, "versions": {"K": "v", "L": "w"}}`},
			map[string]client.Value{"K": {Found: true, Text: "t", Version: "v"}, "L": {Found: true, Text: "u", Version: "w"}}, true},
		{"Increment", func(ctx context.Context, c *client.Client) (any, error) { return c.Increment(ctx, "K", "2.5") },
			"Increment", `{"key": "K", "amount": "2.5"}`, []string{`{"value": "4"}`}, "4", false},
		{"Set", func(ctx context.Context, c *client.Client) (any, error) {
			return c.Set(ctx, "K", "t", client.Write{TTL: time.Hour, IfVersion: "0"})
		}, "Set", `{"key": "K", "value": "t", "ttl": "3600s", "ifVersion": "0"}`, []string{`{"version": "v"}`}, "v", false},
		{"Set for good", func(ctx context.Context, c *client.Client) (any, error) {
			return c.Set(ctx, "K", "t", client.Write{})
		}, "Set", `{"key": "K", "value": "t"}`, []string{`{"version": "v"}`}, "v", false},
		{"Delete", func(ctx context.Context, c *client.Client) (any, error) { return c.Delete(ctx, "K", "v") },
			"Delete", `{"key": "K", "ifVersion": "v"}`, []string{`{"found": true}`}, true, false},
		{"Append", func(ctx context.Context, c *client.Client) (any, error) {
			return c.Append(ctx, "K", []string{"a", "b"}, client.Appending{TTL: time.Hour, IfLength: &length})
		}, "Append", `{"key": "K", "items": ["a", "b"], "ttl": "3600s", "ifLength": "3"}`, []string{`{"length": "5"}`}, int64(5), false},
		{"Range", func(ctx context.Context, c *client.Client) (any, error) { return c.Range(ctx, "K", 2, 7) },
			"Range", `{"key": "K", "from": "2", "limit": 7}`, []string{`{"items": [{"index": "2", "value": "a"}, {"index": "3", "value": "b"}], "length": "9", "next": "4"}`},
			client.Items{Items: []client.Item{{Index: 2, Text: "a"}, {Index: 3, Text: "b"}}, Length: 9, Next: 4}, true},
		{"DeleteList", func(ctx context.Context, c *client.Client) (any, error) { return c.DeleteList(ctx, "K") },
			"DeleteList", `{"key": "K"}`, []string{`{"found": true}`}, true, false},

		{"Signal to a session", signal(client.Target{Session: "S"}), "Signal", `{"sessionId": "S", "signal": "STOP", "reason": "why"}`, stops, stopped, false},
		{"Signal to an agent", signal(client.Target{Agent: "A"}), "Signal", `{"agentId": "A", "signal": "STOP", "reason": "why"}`, stops, stopped, false},
		{"Signal to a policy", signal(client.Target{Policy: "P"}), "Signal", `{"policyName": "P", "signal": "STOP", "reason": "why"}`, stops, stopped, false},
		{"Signal to all", signal(client.Target{Everything: true}), "Signal", `{"everything": true, "signal": "STOP", "reason": "why"}`, stops, stopped, false},
		{"ListSignals", func(ctx context.Context, c *client.Client) (any, error) {
			all, err := c.ListSignals(ctx)
			var names []string
			for _, s := range all {
				names = append(names, s.GetSignal())
			}
			return names, err
		}, "ListSignals", `{"pageSize": 1000}`, []string{`{"signals": [{"signal": "STOP"}, {"signal": "KILL"}]}`}, []string{"STOP", "KILL"}, true},

		{"RequestApproval", func(ctx context.Context, c *client.Client) (any, error) {
			return c.RequestApproval(ctx, client.Question{
				Agent: "G", Tool: "T", ArgumentsJSON: `{"a":1}`, Message: "m", Session: "S", Timeout: time.Minute, AllowOnTimeout: true, Required: 2, Denials: 3,
			})
		}, "Request", `{"agentId": "G", "tool": "T", "argumentsJson": "{\"a\":1}", "message": "m", "sessionId": "S", "timeout": "60s", "onTimeout": "ON_TIMEOUT_ALLOW", "required": 2, "denials": 3}`,
			[]string{`{"approval": {"id": "A"}}`}, `{"id": "A"}`, false},
		{"RequestApproval with arguments", func(ctx context.Context, c *client.Client) (any, error) {
			return c.RequestApproval(ctx, client.Question{Agent: "G", Tool: "T", Arguments: map[string]any{"a": 1}})
		}, "Request", `{"agentId": "G", "tool": "T", "argumentsJson": "{\"a\":1}"}`, []string{`{"approval": {"id": "A"}}`}, `{"id": "A"}`, false},
		{"GetApproval", func(ctx context.Context, c *client.Client) (any, error) { return c.GetApproval(ctx, "A") },
			"Get", `{"id": "A", "wait": "0s"}`, []string{`{"approval": {"id": "A", "state": "APPROVAL_STATE_PENDING"}}`}, `{"id": "A", "state": "APPROVAL_STATE_PENDING"}`, true},
		{"AwaitApproval", func(ctx context.Context, c *client.Client) (any, error) { return c.AwaitApproval(ctx, "A") },
			"Get", `{"id": "A", "wait": "2s"}`, []string{`{"approval": {"id": "A", "state": "APPROVAL_STATE_PENDING"}}`, `{"approval": {"id": "A", "state": "APPROVAL_STATE_DENIED"}}`},
			`{"id": "A", "state": "APPROVAL_STATE_DENIED"}`, true},
		{"ListApprovals", func(ctx context.Context, c *client.Client) (any, error) {
			return c.ListApprovals(ctx, client.Approvals{State: client.ApprovalDenied, Session: "S", Agent: "G"}, 7, "p")
		}, "List", `{"state": "APPROVAL_STATE_DENIED", "sessionId": "S", "agentId": "G", "pageSize": 7, "pageToken": "p"}`,
			[]string{`{"nextPageToken": "n"}`}, `{"nextPageToken": "n"}`, true},
		{"Approve", func(ctx context.Context, c *client.Client) (any, error) { return c.Approve(ctx, "A", vote) },
			"Decide", `{"id": "A", "decision": "VOTE_APPROVE", "approver": "amy", "reason": "why", "requestDigest": "sha256:x"}`, []string{`{"approval": {"id": "A"}}`}, `{"id": "A"}`, false},
		{"Deny", func(ctx context.Context, c *client.Client) (any, error) { return c.Deny(ctx, "A", vote) },
			"Decide", `{"id": "A", "decision": "VOTE_DENY", "approver": "amy", "reason": "why", "requestDigest": "sha256:x"}`, []string{`{"approval": {"id": "A"}}`}, `{"id": "A"}`, false},
		{"CancelApproval", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.CancelApproval(ctx, "A") },
			"Cancel", `{"id": "A"}`, []string{`{}`}, nil, false},
		{"PutStanding", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutStanding(ctx, client.Standing{Scope: client.OfAgent, Name: "G", Tool: "T", ServerLabel: "L", ArgumentsJSON: `{"a":1}`, Uses: 3, Expiry: time.Hour})
		}, "PutStanding", `{"scope": "STANDING_SCOPE_AGENT", "name": "G", "tool": "T", "serverLabel": "L", "argumentsJson": "{\"a\":1}", "uses": 3, "expiry": "3600s"}`,
			[]string{`{"standing": {"id": "I"}}`}, "I", false},
		{"PutStanding with arguments", func(ctx context.Context, c *client.Client) (any, error) {
			return c.PutStanding(ctx, client.Standing{Scope: client.OfPolicy, Name: "G", Tool: "T", Arguments: map[string]any{"a": 1}, Expiry: time.Hour})
		}, "PutStanding", `{"scope": "STANDING_SCOPE_POLICY", "name": "G", "tool": "T", "argumentsJson": "{\"a\":1}", "expiry": "3600s"}`, []string{`{"standing": {"id": "I"}}`}, "I", false},
		{"ListStanding", func(ctx context.Context, c *client.Client) (any, error) { return c.ListStanding(ctx, 7, "p") },
			"ListStanding", `{"pageSize": 7, "pageToken": "p"}`, []string{`{"nextPageToken": "n"}`}, `{"nextPageToken": "n"}`, true},
		{"DeleteStanding", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.DeleteStanding(ctx, "I") },
			"DeleteStanding", `{"id": "I"}`, []string{`{}`}, nil, false},
	}
}

// asked makes an oracle and a client that asks it, with or without streams. end ends the
// context after the first attempt that fails.
func asked(t *testing.T, a act, streams bool, answer func(n int) (text string, code connect.Code, reason string)) (context.Context, *oracle, *client.Client, *bool) {
	var n int
	endsEarly := new(bool)
	o := &oracle{}
	o.answer = func(method string) (string, connect.Code, string) {
		if method == a.method {
			n++
			return answer(n)
		}
		switch method {
		case "AcquireSlot":
			return admits1h, 0, ""
		case "BeginCall":
			return beginning, 0, ""
		}
		return `{}`, 0, ""
	}
	h := listen(t, o.handler())
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c, err := client.New(client.Config{
		Addresses: []string{h.URL}, Name: "me", Namespace: "team", Token: "gn_team.id.word", DisableExchange: !streams, Logger: slog.New(slog.DiscardHandler),
		Entropy: onesReader{}, Random: func() float64 {
			if *endsEarly {
				cancel()
			}
			return 0
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return ctx, o, c, endsEarly
}

type onesReader struct{}

func (onesReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}

// What is asked for is in the request, and so is who asks; it is the same when it is
// sent again, under the same id; and what the node answers is what the caller gets.
func TestEveryOperationSaysAllAndIsAnswered(t *testing.T) {
	fields := map[protoreflect.FullName]map[protoreflect.Name]bool{} // that some request had
	for _, a := range acts() {
		for _, streams := range []bool{false, true} {
			if streams && !slices.Contains(slices.Collect(maps.Values(overStreams)), a.method) {
				continue
			}
			t.Run(a.name+map[bool]string{true: ", over a stream"}[streams], func(t *testing.T) {
				ctx, o, c, _ := asked(t, a, streams, func(n int) (string, connect.Code, string) {
					if n == 1 {
						return "", connect.CodeUnavailable, "OUTCOME_UNKNOWN"
					}
					return a.answers[min(n-2, len(a.answers)-1)], 0, ""
				})
				got, err := a.do(ctx, c)
				require.NoError(t, err)
				if m, ok := got.(proto.Message); ok {
					require.JSONEq(t, a.got.(string), jsonOf(t, m))
				} else {
					require.Equal(t, a.got, got)
				}
				heard := o.of(a.method)
				require.Len(t, heard, 1+len(a.answers))
				ids := map[string]bool{}
				for _, s := range heard {
					require.Equal(t, "Bearer gn_team.id.word", s.header.Get("Authorization"))
					require.Equal(t, "team", s.header.Get("Govnode-Namespace"))
					m := s.body.ProtoReflect()
					set := fields[m.Descriptor().FullName()]
					if set == nil {
						set = map[protoreflect.Name]bool{}
						fields[m.Descriptor().FullName()] = set
					}
					m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
						set[f.Name()] = true
						return true
					})
					take := func(field protoreflect.Name) string {
						f := m.Descriptor().Fields().ByName(field)
						if f == nil {
							return ""
						}
						text := m.Get(f).String()
						require.NotEmpty(t, text, "%s of %s", field, a.method)
						m.Clear(f)
						return text
					}
					if m.Descriptor().Fields().ByName("client") != nil {
						require.Equal(t, "me", take("client"))
					}
					if strings.Contains(a.want, `"requestId"`) {
						ids["given"] = true
					} else {
						ids[take("request_id")] = true
					}
					if f := m.Descriptor().Fields().ByName("wait"); f != nil && a.method != "Get" {
						m.Clear(f) // what is left of it
					}
					if f := m.Descriptor().Fields().ByName("begin"); f != nil && m.Has(f) {
						m.Mutable(f).Message().Clear(m.Get(f).Message().Descriptor().Fields().ByName("wait"))
					}
					require.JSONEq(t, jsonOfJSON(t, a.want, s.body), jsonOf(t, s.body))
				}
				require.Len(t, ids, 1, "it was sent again under another id")
			})
		}
	}
	// Nothing can be said to the service that was forgotten here.
	without := map[protoreflect.FullName][]protoreflect.Name{
		"govnode.v1.BeginCallRequest":              {"arguments", "context"}, // as JSON
		"govnode.v1.ApprovalServiceRequestRequest": {"arguments"},
		"govnode.v1.PutStandingRequest":            {"arguments"},
		"govnode.v1.ListStandingRequest":           {"scope", "name"},
		"govnode.v1.GetPolicyRequest":              {"digest"},
		"govnode.v1.ListSignalsRequest":            {"page_token"},
		"govnode.v1.EvaluateRequest":               nil, // whole, as they are given
		"govnode.v1.ScanRequest":                   nil,
	}
	for name, set := range fields {
		left, known := without[name]
		if known && left == nil {
			continue
		}
		d := descriptorOf(name)
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i).Name()
			if f != "consistency" && !slices.Contains(left, f) {
				require.True(t, set[f], "%s.%s is in no request", name, f)
			}
		}
	}
	require.Len(t, fields, 43, "kinds of requests")
}

// What the node objects to is an *Error, with its code and reason; where the outcome is
// not known a change is *Unknown under the id that was sent, and what reads is
// *Unavailable. Nothing is said to have come of it.
func TestEveryOperationTellsWhatWentWrong(t *testing.T) {
	for _, a := range acts() {
		for _, streams := range []bool{false, true} {
			if streams && !slices.Contains(slices.Collect(maps.Values(overStreams)), a.method) {
				continue
			}
			name := a.name + map[bool]string{true: ", over a stream"}[streams]
			t.Run("objection to "+name, func(t *testing.T) {
				ctx, o, c, _ := asked(t, a, streams, func(int) (string, connect.Code, string) { return "", connect.CodeNotFound, "NOT_THERE" })
				got, err := a.do(ctx, c)
				var e *client.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, connect.CodeNotFound, e.Code)
				require.Equal(t, client.Reason("NOT_THERE"), e.Reason)
				require.NotEmpty(t, e.Operation)
				require.Len(t, o.of(a.method), 1)
				nothing(t, a, got)
			})
			if a.method == "EndCall" {
				continue // is sent for longer than its caller wants
			}
			t.Run("no word of "+name, func(t *testing.T) {
				ctx, o, c, ends := asked(t, a, streams, func(int) (string, connect.Code, string) { return "", connect.CodeUnavailable, "OUTCOME_UNKNOWN" })
				*ends = true
				got, err := a.do(ctx, c)
				require.ErrorIs(t, err, context.Canceled)
				require.NotErrorAs(t, err, new(*client.Error))
				heard := o.of(a.method)
				require.Len(t, heard, 1)
				nothing(t, a, got)
				if a.reads {
					require.ErrorAs(t, err, new(*client.Unavailable))
					return
				}
				var u *client.Unknown
				require.ErrorAs(t, err, &u)
				require.NotEmpty(t, u.Operation)
				require.NotEmpty(t, u.ID)
				require.Contains(t, jsonOf(t, heard[0].body), `"`+u.ID+`"`)
			})
		}
	}
}

// nothing wants the result of an operation that has failed to be nothing.
func nothing(t *testing.T, a act, got any) {
	v := reflect.ValueOf(got)
	switch {
	case a.name == "Do": // the function was called
	case !v.IsValid(), v.Kind() == reflect.Map && v.Len() == 0:
	default:
		require.True(t, v.IsZero(), "%v", got)
	}
}

// Every exported method that asks the service is among the acts.
func TestEveryOperationIsTried(t *testing.T) {
	tried := map[string]bool{
		// They ask nothing, are asked for by all, or have tests of their own.
		"Name": true, "Leader": true, "Shutdown": true, "Session": true, "SessionWith": true, "Status": true, "Secret": true, "ID": true,
	}
	for _, a := range acts() {
		name, _, _ := strings.Cut(a.name, " ")
		tried[name] = true
	}
	for _, of := range []reflect.Type{reflect.TypeFor[*client.Client](), reflect.TypeFor[*client.OpenSession]()} {
		for i := range of.NumMethod() {
			require.True(t, tried[of.Method(i).Name], "%v.%s", of, of.Method(i).Name)
		}
	}
}

// A client without a namespace and a token is one of the namespace default, and what a
// TokenSource returns is shown, or is why nothing was sent.
func TestWhoAsks(t *testing.T) {
	for name, test := range map[string]struct {
		change           func(*client.Config)
		token, namespace string
		wrong            string
	}{
		"nobody":    {func(*client.Config) {}, "", "default", ""},
		"namespace": {func(c *client.Config) { c.Namespace = "team" }, "", "team", ""},
		"token":     {func(c *client.Config) { c.Token = "gn_a.b.id.word" }, "Bearer gn_a.b.id.word", "a.b", ""},
		"JWT":       {func(c *client.Config) { c.Token = "e30.e30.e30" }, "Bearer e30.e30.e30", "default", ""},
		"source":    {func(c *client.Config) { c.TokenSource = func() (string, error) { return "gn_a.id.word", nil } }, "Bearer gn_a.id.word", "", ""},
		"source, namespace": {func(c *client.Config) {
			c.Namespace = "a"
			c.TokenSource = func() (string, error) { return "gn_a.id.word", nil }
		}, "Bearer gn_a.id.word", "a", ""},
		"source that fails":  {func(c *client.Config) { c.TokenSource = func() (string, error) { return "", errors.New("no vault") } }, "", "", "TokenSource: no vault"},
		"no token of ours":   {func(c *client.Config) { c.Token = "gn_.id.word" }, "Bearer gn_.id.word", "default", ""},
		"no token of ours 2": {func(c *client.Config) { c.Token = "gn_team.word" }, "Bearer gn_team.word", "default", ""},
	} {
		for _, streams := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", over a stream"}[streams], func(t *testing.T) {
				o := &oracle{answer: func(string) (string, connect.Code, string) { return admits1h, 0, "" }}
				h := listen(t, o.handler())
				cfg := client.Config{Addresses: []string{h.URL}, DisableExchange: !streams, Logger: slog.New(slog.DiscardHandler)}
				test.change(&cfg)
				c, err := client.New(cfg)
				require.NoError(t, err)
				defer func() { _ = c.Close() }()
				_, err = c.Acquire(t.Context(), "gpu")
				if test.wrong != "" {
					var e *client.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, connect.CodeUnauthenticated, e.Code)
					require.ErrorContains(t, err, test.wrong)
					require.Empty(t, o.of("AcquireSlot"))
					return
				}
				require.NoError(t, err)
				header := o.of("AcquireSlot")[0].header
				require.Equal(t, []string{test.token, test.namespace}, []string{header.Get("Authorization"), header.Get("Govnode-Namespace")})
			})
		}
	}
}

func jsonOf(t *testing.T, m proto.Message) string {
	b, err := protojson.Marshal(m)
	require.NoError(t, err)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, b))
	return compact.String()
}

// jsonOfJSON is a text as the JSON of a message like another one.
func jsonOfJSON(t *testing.T, text string, like proto.Message) string {
	m := like.ProtoReflect().New().Interface()
	require.NoError(t, protojson.Unmarshal([]byte(text), m))
	return jsonOf(t, m)
}

func descriptorOf(name protoreflect.FullName) protoreflect.MessageDescriptor {
	file := govnodev1.File_govnode_v1_call_proto
	for _, f := range []protoreflect.FileDescriptor{
		file, govnodev1.File_govnode_v1_session_proto, govnodev1.File_govnode_v1_slot_proto, govnodev1.File_govnode_v1_limit_proto,
		govnodev1.File_govnode_v1_approval_proto, govnodev1.File_govnode_v1_policy_proto, govnodev1.File_govnode_v1_counter_proto, govnodev1.File_govnode_v1_access_proto,
	} {
		if d := f.Messages().ByName(name.Name()); d != nil {
			return d
		}
	}
	return nil
}

// A source of tokens that hangs holds up nobody for longer than he likes, and nothing was
// sent.
func TestTokenSourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
			c.TokenSource = func() (string, error) {
				<-goOn
				return "t", nil
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Acquire(ctx, "gpu")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		require.Zero(t, w.count("AcquireSlot"))
		close(goOn)
		require.NoError(t, c.Close())
	})
}

// A source of tokens that hangs says nothing about the nodes: whoever has a token again asks
// the one that led before.
func TestTokenSourceThatHangsIsNoFaultOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		goOn := make(chan struct{})
		w := &wire{hosts: map[string]http.Handler{}}
		for _, name := range []string{"a", "b", "c"} {
			n := granting(30 * time.Second)
			n.status = status(name, "a")
			w.hosts[name+":1"] = n.handler()
		}
		c := connected(t, w, []string{"a:1", "b:1", "c:1"}, func(c *client.Config) {
			c.Timeout, c.AttemptTimeout = 5*time.Second, time.Second
			c.TokenSource = func() (string, error) {
				if hangs.Load() {
					<-goOn
				}
				return "t", nil
			}
		})
		_, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		synctest.Wait()
		hangs.Store(true)
		_, err = c.Acquire(t.Context(), "gpu")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(500 * time.Millisecond) // no renewal ends when its token comes
		hangs.Store(false)
		close(goOn)
		synctest.Wait()
		w.mu.Lock()
		from := len(w.sent)
		w.mu.Unlock()
		_, err = c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.Equal(t, []string{"a:1 AcquireSlot"}, acquisitions(w, from))
		require.NoError(t, c.Close())
	})
}

// All who ask for a token at a time share one call of the source, and one that hangs does not
// keep the next from being made; one that panics ends no process.
func TestTokenSourceIsSharedByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn, asked, panics := make(chan struct{}), atomic.Int64{}, atomic.Bool{}
		defer close(goOn)
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
			c.TokenSource = func() (string, error) {
				switch {
				case asked.Add(1) == 1:
					<-goOn
				case panics.Load():
					panic("no token")
				}
				return "t", nil
			}
		})
		acquire := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := c.Acquire(ctx, "gpu")
			return err
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				for range 9 {
					require.ErrorIs(t, acquire(time.Second), context.DeadlineExceeded)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, asked.Load())
		time.Sleep(2 * time.Second)
		require.NoError(t, acquire(time.Second), "the source is asked again")
		panics.Store(true)
		require.ErrorContains(t, acquire(time.Second), "no token")
		panics.Store(false)
		require.NoError(t, c.Close())
	})
}
