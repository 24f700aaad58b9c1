package server_test

import (
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A message that is too large is refused with its reason, over Connect and in a
// stream; over gRPC with its code.
func TestMessagesThatAreTooLarge(t *testing.T) {
	n := furnished(t)
	large := beginFrame(1, "s", "large", func(r *v1.BeginCallRequest) { r.ArgumentsJson = strings.Repeat(" ", 257<<10) })
	for name, c := range map[string]clients{"proto": n.clients, "JSON": n.h2(connect.WithProtoJSON()), "gzip": n.h2(connect.WithSendGzip())} {
		_, err := c.calls.BeginCall(n.ctx(), large.GetBegin())
		requireRefused(t, err, connect.CodeResourceExhausted, "TOO_LARGE", "larger than configured max 262144")
		require.Equal(t, "request", info(t, err).Metadata["field"], name)
	}
	for _, option := range []connect.ClientOption{connect.WithProtoJSON(), connect.WithGRPC()} {
		stream := n.exchange(option)
		stream.send(large)
		_, err := stream.stream.Receive()
		requireRefused(t, err, connect.CodeResourceExhausted, "TOO_LARGE", "larger than configured max 262144")
	}
	_, err := n.h2(connect.WithGRPC()).calls.BeginCall(n.ctx(), large.GetBegin())
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	require.Len(t, n.getSession("s").OpenCalls, 1, "nothing changed")
}

// What connect refuses by itself, before a handler sees it, has its reason too, also
// in the header (post looks at that).
func TestWhatConnectRefusesHasAReason(t *testing.T) {
	n := furnished(t)
	for name, headers := range map[string][]string{
		"invalid_argument": {"Connect-Timeout-Ms", "soon"},
		"unimplemented":    {"Content-Encoding", "x-none"},
	} {
		status, answer := n.post("CallService/BeginCall", `{"sessionId":"s"}`, headers...)
		require.NotEqual(t, http.StatusOK, status)
		require.Equal(t, name, answer["code"])
		require.Equal(t, "INVALID_FIELD", reasonIn(answer))
	}
	_, answer := n.post("CallService/BeginCall", `{`)
	require.Equal(t, "INVALID_FIELD", reasonIn(answer))
	_, answer = n.post("CallService/BeginCall", `{}`, input.NamespaceHeader, "no/such")
	require.Equal(t, "INVALID_FIELD", reasonIn(answer))
}

// An error with details of its own goes out as it is, and an answer too.
func TestErrorsWithDetailsStayAsTheyAre(t *testing.T) {
	n := furnished(t)
	_, err := n.calls.BeginCall(n.ctx(), &v1.BeginCallRequest{SessionId: "s", CallId: "x", Tool: "t", Ttl: durationpb.New(0)})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "ttl: is 0s")
	require.Equal(t, "ttl", info(t, err).Metadata["field"])
	require.NotContains(t, err.Error(), "request:")
}

// What a caller sent comes back short.
func TestErrorsQuoteLittle(t *testing.T) {
	n := furnished(t)
	long := strings.Repeat("k", 10_000)
	for field, body := range map[string]string{
		"metadata[" + long[:40] + "…]": `{"sessionId":"s","callId":"x","tool":"t","metadata":{"` + long + `":"v"}}`,
		`metadata["a\nb"]`:             `{"sessionId":"s","callId":"x","tool":"t","metadata":{"a\nb":"v"}}`,
		"request: ":                    `{"sessionId":"s","callId":"x","tool":"t","` + long + `":"v"}`,
	} {
		_, answer := n.post("CallService/BeginCall", body)
		require.Contains(t, answer["message"], field)
		require.Less(t, len(answer["message"].(string)), 400)
		require.Equal(t, "INVALID_FIELD", reasonIn(answer))
	}
	_, answer := n.post("SessionService/CreateSession", `{"agentId":"a","policy":{"name":"p"},"attributes":{"`+long+`":"v"}}`)
	require.Contains(t, answer["message"], "attributes["+long[:40]+"…]: ")
	require.Less(t, len(answer["message"].(string)), 200)
}
