package input

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A body is a request, or it is refused with the name of a field. What was read is
// written and read again as the same.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"sessionId":"s","callId":"c","tool":"t","arguments":{"a":[1,null,{"b":"x"}]},"ttl":"5s"}`))
	f.Add([]byte(`{"pools":[{"pool":"p","weight":"1"}]}`))
	f.Add([]byte(`{"priority":1e3,"x":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		codec, m := JSON("json"), new(v1.BeginCallRequest)
		if err := codec.Unmarshal(b, m); err != nil {
			var u *fault.Unread
			require.True(t, errors.As(err, &u), "%v", err)
			require.NotEmpty(t, u.Field)
			require.NotEmpty(t, u.Text)
			return
		}
		text, err := codec.Marshal(m)
		require.NoError(t, err)
		again := new(v1.BeginCallRequest)
		require.NoError(t, codec.Unmarshal(text, again))
		require.True(t, proto.Equal(m, again), "%s", text)
	})
}

// A message of the API is read as its bytes say, or not at all.
func FuzzProto(f *testing.F) {
	b, err := proto.Marshal(&v1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "t"})
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(v1.BeginCallRequest)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		fields := new(Fields)
		fields.ID("session_id", m.SessionId)
		fields.OptionalID("call_id", m.CallId)
		fields.Mapping("arguments", m.Arguments, "")
		_ = Fingerprint(m)
	})
}
