package edictum_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"example.com/govnode/internal/edictum"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// An oracle is an API that answers as it is told to, and keeps what it was asked.
type oracle struct {
	mu     sync.Mutex
	asked  map[string][]string // requests as JSON, by method
	answer func(method string, request map[string]any) (string, error)
}

func (o *oracle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answering := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(connect.UnaryFunc) connect.UnaryFunc {
		return func(_ context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			procedure := req.Spec().Procedure
			method := procedure[strings.LastIndexByte(procedure, '/')+1:]
			raw, err := protojson.MarshalOptions{}.Marshal(req.Any().(proto.Message))
			if err != nil {
				return nil, err
			}
			fields := map[string]any{}
			if err := json.Unmarshal(raw, &fields); err != nil {
				return nil, err
			}
			delete(fields, "client")
			delete(fields, "requestId")
			if raw, err = json.Marshal(fields); err != nil { // keys in order, and no blanks
				return nil, err
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.asked[method] = append(o.asked[method], string(raw))
			fields["of"] = req.Header().Get("Govnode-Namespace")
			text, err := o.answer(method, fields)
			if err != nil {
				return nil, err
			}
			m := dynamicpb.NewMessage(req.Spec().Schema.(protoreflect.MethodDescriptor).Output())
			if err := protojson.Unmarshal([]byte(text), m); err != nil {
				return nil, connect.NewError(connect.CodeDataLoss, err)
			}
			return connect.NewResponse(m), nil
		}
	}))
	mux := http.NewServeMux()
	mux.Handle(govnodev1connect.NewApprovalServiceHandler(govnodev1connect.UnimplementedApprovalServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewCounterServiceHandler(govnodev1connect.UnimplementedCounterServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewPolicyServiceHandler(govnodev1connect.UnimplementedPolicyServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewAccessServiceHandler(govnodev1connect.UnimplementedAccessServiceHandler{}, answering))
	mux.Handle(govnodev1connect.NewClusterServiceHandler(govnodev1connect.UnimplementedClusterServiceHandler{}, answering))
	mux.ServeHTTP(w, r)
}

// before is an oracle behind the interface of the SDKs.
func before(t *testing.T, answer func(method string, request map[string]any) (string, error)) (*oracle, func(holder, method, path, body string) *httptest.ResponseRecorder) {
	o := &oracle{asked: map[string][]string{}, answer: answer}
	h := edictum.New(o, scriptKeys(t), slog.New(slog.DiscardHandler))
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return o, func(holder, method, path, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.Header.Set("Authorization", "bearer  "+holder) // as some write it
		req.Header.Set("X-Edictum-Agent-Id", "bot")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
}

// A key that says no more than its name and its hash is an agent's, of the namespace
// default and the environment production.
func TestWhatAKeyIsThatSaysNothing(t *testing.T) {
	of := ""
	o := &oracle{asked: map[string][]string{}, answer: func(_ string, request map[string]any) (string, error) {
		of = request["of"].(string)
		return `{}`, nil
	}}
	keys, err := edictum.ParseKeys([]byte("keys: [{name: a, hash: '" + edictum.HashOf("agent") + "'}]"))
	require.NoError(t, err)
	h := edictum.New(o, keys, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, h.Close()) }()
	for _, x := range [][2]string{{"PUT", "/v1/approvals/A"}, {"GET", "/v1/approvals"}, {"GET", "/v1/events?session_id=s"}, {"PUT", "/v1/rulesets/r"}, {"PUT", "/v1/agents/a/ruleset"}} {
		status, body := serve(h, x[0], x[1], "{}")
		require.Equal(t, 403, status, x)
		require.Contains(t, body, "the key a is that of an agent")
	}
	require.Empty(t, of)
	status, _ := serve(h, "GET", "/v1/rulesets/r/current", "")
	require.Equal(t, 404, status)
	require.Equal(t, "default", of)
	require.Equal(t, []string{`{"name":"edictum/production/r"}`}, o.asked["GetPolicy"])
}
