package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A request that is no call of a method keeps the status of HTTP that it had,
// and learns what to send instead.
func TestRequestsThatAreNoCalls(t *testing.T) {
	n := furnished(t)
	const begin, follow, exchange = "/govnode.v1.CallService/BeginCall", "/govnode.v1.EventService/Follow", "/govnode.v1.CallService/Exchange"
	for _, test := range []struct {
		method, path, contentType string
		status                    int
		code, says                string
	}{
		{"POST", begin, "text/plain", 415, "invalid_argument", `Content-Type: is "text/plain"; send application/json with a JSON object`},
		{"POST", begin, "application/x-www-form-urlencoded", 415, "invalid_argument", `is "application/x-www-form-urlencoded"; send application/json`},
		{"POST", begin, "", 415, "invalid_argument", `Content-Type: is missing; send application/json`},
		{"POST", begin, "application/connect+json", 415, "invalid_argument", `send application/json`},
		{"POST", begin, "AKIAIOSFODNN7CANARY0", 415, "invalid_argument", `send application/json`},
		{"POST", follow, "application/json", 415, "invalid_argument", `this method is a stream: use a client of Connect, gRPC or gRPC-Web, whose types are application/connect+json`},
		{"POST", exchange, "application/connect+json", 505, "invalid_argument", `protocol: is HTTP/1.1; this method is a stream in both directions and needs HTTP/2. BatchCalls does without`},
		{"GET", begin, "", 405, "invalid_argument", `method: is "GET"; send POST`},
		{"PUT", begin, "application/json", 405, "invalid_argument", `method: is "PUT"; send POST`},
		{"POST", "/govnode.v1.CallService/beginCall", "application/json", 404, "unimplemented", `CallService has no such method; it has BeginCall, EndCall, CancelCall, BatchCalls, Exchange, spelt like this`},
		{"POST", "/govnode.v1.CallService/", "application/json", 404, "unimplemented", `CallService has no such method`},
		{"POST", "/govnode.v1.Calls/BeginCall", "application/json", 404, "unimplemented", `the services are AccessService, ApprovalService, CallService, ClusterService, CounterService, DecisionService, EventService, LimitService, PolicyService, SessionService, SlotService`},
		{"POST", "/v1/BeginCall", "application/json", 404, "unimplemented", `the API is POST /govnode.v1.SERVICE/METHOD`},
		{"GET", "/", "", 404, "unimplemented", `GET /healthz, /readyz and /metrics`},
		{"GET", "/AKIAIOSFODNN7CANARY0/" + strings.Repeat("x", 4000), "", 404, "unimplemented", `there is nothing here`},
	} {
		req, err := http.NewRequest(test.method, n.url+test.path, strings.NewReader(`{}`))
		require.NoError(t, err)
		if test.contentType != "" {
			req.Header.Set("Content-Type", test.contentType)
		}
		res, err := n.http.Do(req)
		require.NoError(t, err)
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, test.status, res.StatusCode, "%v: %s", test, raw)
		require.Equal(t, "application/json", res.Header.Get("Content-Type"), "%v", test)
		var body struct{ Code, Message string }
		require.NoError(t, json.Unmarshal(raw, &body), "%s", raw)
		require.Equal(t, test.code, body.Code, "%v", test)
		require.Contains(t, body.Message, test.says)
		require.NotContains(t, body.Message, canary)
		require.Less(t, len(raw), 2000)
		require.NotEmpty(t, res.Header.Get(fault.ReasonHeader))
	}
}

// Clients of the protocols get the same in the way of theirs, and what is not
// usual but right is answered.
func TestMisdirectedClients(t *testing.T) {
	n := furnished(t)
	plain := &http.Client{Transport: &http.Transport{Protocols: h2c()}}
	for name, option := range map[string]connect.ClientOption{"connect": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb()} {
		c := connect.NewClient[emptypb.Empty, emptypb.Empty](plain, n.url+"/govnode.v1.CallService/Nothing", option)
		_, err := c.CallUnary(n.ctx(), connect.NewRequest(&emptypb.Empty{}))
		require.Equal(t, connect.CodeUnimplemented, connect.CodeOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "CallService has no such method", name)

		events := clientsOf(plain, n.url, option).events // flushed as they come
		stream, err := events.Follow(n.ctx(), &v1.FollowRequest{})
		require.NoError(t, err)
		require.True(t, stream.Receive(), "%s: %v", name, stream.Err())
		require.NoError(t, stream.Close())
	}
	status, answer := n.post("SessionService/GetSession", `{"sessionId":"s"}`, "Content-Type", "application/json;charset=UTF-8")
	require.Equal(t, http.StatusOK, status, "%v", answer)
}

func h2c() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}
