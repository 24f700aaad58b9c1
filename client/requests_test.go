package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// What a caller says reaches the service: each field of what is given to a Client has
// its place in the request.
func TestRequestsHaveAllThatWasSaid(t *testing.T) {
	limit := int64(3)
	for _, c := range []struct {
		name   string
		given  any // all of its fields are set
		call   func(context.Context, *client.Client) error
		method string
		want   string
	}{
		{"a rate", client.Rate{Name: "R", Limit: 5, Per: 2 * time.Second, QueueLimit: 9}, nil, "PutRate",
			`{"rate": "R", "limit": 5, "per": "2s", "queueLimit": 9}`},
		{"a rate for which nobody waits", nil, func(ctx context.Context, c *client.Client) error {
			_, err := c.PutRate(ctx, client.Rate{Name: "R", Limit: 5, Per: time.Second, QueueLimit: client.NoQueue})
			return err
		}, "PutRate", `{"rate": "R", "limit": 5, "per": "1s", "queueLimit": 0}`},
		{"a rate with the usual queue", nil, func(ctx context.Context, c *client.Client) error {
			_, err := c.PutRate(ctx, client.Rate{Name: "R", Limit: 5, Per: time.Second})
			return err
		}, "PutRate", `{"rate": "R", "limit": 5, "per": "1s"}`},
		{"a take", client.Take{Rate: "R", ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Cost: 3, Wait: 5 * time.Second, Priority: 4}, nil, "TakeRate",
			`{"rate": "R", "cost": 3, "priority": 4, "requestId": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}`},
		{"a budget", client.Spending{Budget: "B", Parent: "Q", Amount: "5", Per: time.Hour}, nil, "PutBudget",
			`{"budget": "B", "parent": "Q", "amount": "5", "per": "3600s"}`},
		{"a pool", client.Pool{Name: "P", Slots: 5, BackpressureThreshold: 4, QueueLimit: 9}, nil, "PutPool",
			`{"pool": "P", "slots": 5, "backpressureThreshold": 4, "queueLimit": 9}`},
		{"a question", client.Question{
			Agent: "G", Tool: "T", ArgumentsJSON: `{"a":1}`, Message: "m", Session: "S", Timeout: time.Minute, AllowOnTimeout: true, Required: 2, Denials: 3,
		}, nil, "Request", `{"agentId": "G", "tool": "T", "argumentsJson": "{\"a\":1}", "message": "m", "sessionId": "S", "timeout": "60s", "onTimeout": "ON_TIMEOUT_ALLOW", "required": 2, "denials": 3}`},
		{"a standing approval", client.Standing{
			Scope: govnodev1.StandingScope_STANDING_SCOPE_AGENT, Name: "G", Tool: "T", ServerLabel: "L", ArgumentsJSON: `{"a":1}`, Uses: 3, Expiry: time.Hour,
		}, nil, "PutStanding", `{"scope": "STANDING_SCOPE_AGENT", "name": "G", "tool": "T", "serverLabel": "L", "argumentsJson": "{\"a\":1}", "uses": 3, "expiry": "3600s"}`},
		{"a vote", client.Vote{Approver: "amy", Reason: "why", RequestDigest: "sha256:x"}, nil, "Decide",
			`{"id": "A", "decision": "VOTE_DENY", "approver": "amy", "reason": "why", "requestDigest": "sha256:x"}`},
		{"a list of approvals", client.Approvals{State: govnodev1.ApprovalState_APPROVAL_STATE_DENIED, Session: "S", Agent: "G"}, nil, "List",
			`{"state": "APPROVAL_STATE_DENIED", "sessionId": "S", "agentId": "G", "pageSize": 7, "pageToken": "p"}`},
		{"a write", client.Write{TTL: time.Hour, IfVersion: "0"}, nil, "Set", `{"key": "K", "value": "v", "ttl": "3600s", "ifVersion": "0"}`},
		{"an append", client.Appending{TTL: time.Hour, IfLength: &limit}, nil, "Append", `{"key": "K", "items": ["a"], "ttl": "3600s", "ifLength": "3"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.given != nil {
				allSet(t, c.given)
				c.call = func(ctx context.Context, api *client.Client) error { return send(ctx, api, c.given) }
			}
			heard := &hearing{}
			api := heard.client(t)
			require.Error(t, c.call(t.Context(), api))
			require.Equal(t, c.method, heard.method)
			delete(heard.body, "client")
			delete(heard.body, "wait") // what is left of it
			var want map[string]any
			require.NoError(t, json.Unmarshal([]byte(c.want), &want))
			if _, named := want["requestId"]; !named {
				delete(heard.body, "requestId")
			}
			require.Equal(t, want, heard.body)
		})
	}
}

// allSet wants all fields of a struct set, of which one is given in two ways.
func allSet(t *testing.T, given any) {
	v := reflect.ValueOf(given)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "Arguments" { // or ArgumentsJSON
			require.False(t, v.Field(i).IsZero(), "%T.%s is not in the test", given, name)
		}
	}
}

func send(ctx context.Context, c *client.Client, given any) (err error) {
	switch g := given.(type) {
	case client.Rate:
		_, err = c.PutRate(ctx, g)
	case client.Take:
		err = c.TakeRate(ctx, g)
	case client.Spending:
		_, err = c.PutBudget(ctx, g)
	case client.Pool:
		_, err = c.PutPool(ctx, g)
	case client.Question:
		_, err = c.RequestApproval(ctx, g)
	case client.Standing:
		_, err = c.PutStanding(ctx, g)
	case client.Vote:
		_, err = c.Deny(ctx, "A", g)
	case client.Approvals:
		_, err = c.ListApprovals(ctx, g, 7, "p")
	case client.Write:
		_, err = c.Set(ctx, "K", "v", g)
	case client.Appending:
		_, err = c.Append(ctx, "K", []string{"a"}, g)
	}
	return err
}

// A hearing notes the last request.
type hearing struct {
	method string
	body   map[string]any
}

func (h *hearing) client(t *testing.T) *client.Client {
	mux := http.NewServeMux()
	noted := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(_ context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			procedure := req.Spec().Procedure
			if procedure == govnodev1connect.ClusterServiceStatusProcedure {
				return nil, connect.NewError(connect.CodeUnimplemented, errors.New("no cluster"))
			}
			b, err := protojson.Marshal(req.Any().(proto.Message))
			if err == nil {
				err = json.Unmarshal(b, &h.body)
			}
			h.method = lastOf(procedure)
			if err != nil {
				h.method = err.Error()
			}
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("that is all"))
		}
	}))
	mux.Handle(govnodev1connect.NewApprovalServiceHandler(govnodev1connect.UnimplementedApprovalServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewLimitServiceHandler(govnodev1connect.UnimplementedLimitServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewSlotServiceHandler(govnodev1connect.UnimplementedSlotServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewCounterServiceHandler(govnodev1connect.UnimplementedCounterServiceHandler{}, noted))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	c, err := client.New(client.Config{Addresses: []string{s.URL}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func lastOf(procedure string) string {
	for i := len(procedure) - 1; i >= 0; i-- {
		if procedure[i] == '/' {
			return procedure[i+1:]
		}
	}
	return procedure
}

// A rate that gives nothing says when to come again.
func TestARateSaysWhenToComeAgain(t *testing.T) {
	h, stop := service(t)
	defer stop()
	s := httptest.NewServer(h)
	defer s.Close()
	c, err := client.New(client.Config{Addresses: []string{s.URL}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = c.PutRate(t.Context(), client.Rate{Name: "R", Limit: 1, Per: time.Hour, QueueLimit: client.NoQueue})
	require.NoError(t, err)
	require.NoError(t, c.TakeRate(t.Context(), client.Take{Rate: "R", Wait: client.NoWait}))
	var refused *client.Refused
	require.ErrorAs(t, c.TakeRate(t.Context(), client.Take{Rate: "R", Wait: client.NoWait}), &refused)
	require.Equal(t, client.RateLimited, refused.Outcome)
	require.Greater(t, refused.RetryAfter, time.Minute)
}
