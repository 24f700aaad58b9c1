package server_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/storage"
)

// What cannot be read in JSON is told by the field in which it stands, and what
// it must be, in the words of JSON.
func TestJSONThatCannotBeRead(t *testing.T) {
	n := furnished(t)
	for _, tt := range []struct{ method, body, field, text string }{
		{"SlotService/PutPool", `{"pool":"q","slots":"many"}`, "slots", `is a text; it must be a whole number from -2147483648 to 2147483647`},
		{"SlotService/PutPool", `{"pool":"q","slots":1.5}`, "slots", `is 1.5; it must be a whole number`},
		{"SlotService/PutPool", `{"pool":7,"slots":1}`, "pool", `is 7; it must be a text`},
		{"SlotService/DeletePool", `{"pool":"q","force":"yes"}`, "force", `is a text; it must be true or false`},
		{"SlotService/ReleaseSlot", `{"pool":"q","slotId":"x","token":-1}`, "token", `is -1; it must be a whole number from 0 on`},
		{"CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","ttl":5}`, "ttl", `is 5; it must be a duration in seconds, such as "1.5s"`},
		{"CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","arguments":[1]}`, "arguments", `is a list; it must be an object`},
		{"CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","kind":"KIND_TOOLS"}`, "kind", `is a text; it must be one of KIND_TOOL, KIND_MODEL`},
		{"CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","metadata":{"a: b":1}}`, `metadata["a: b"]`, `is 1; it must be a text`},
		{"CallService/BatchCalls", `{"operations":[{"tag":1},{"tag":2,"end":{"status":"done"}}]}`, "operations[1].end.status", `is a text; it must be one of STATUS_SUCCEEDED, STATUS_FAILED, STATUS_CANCELLED`},
		{"CallService/BatchCalls", `{"operations":[{"tag":1,"end":{"session":"s"}}]}`, "operations[0].end", `has no field "session"; it may have sessionId, callId`},
		{"CallService/BatchCalls", `{"operations":{}}`, "operations", `is an object; it must be a list`},
		{"CounterService/BatchGet", `{"keys":["a",null]}`, "keys[1]", `is null; it must be a text`},
		{"SlotService/PutPool", `{"pol":"q"}`, "request", `has no field "pol"; it may have pool, slots`},
		{"SlotService/PutPool", `[]`, "request", `is a list; it must be an object`},
		{"SlotService/PutPool", `{"pool":}`, "request", `is no JSON: invalid character '}' looking for beginning of value at byte 9`},
		{"SlotService/PutPool", ``, "request", `the body is empty; send a JSON object`},
		{"CallService/EndCall", `{"sessionId":"s","callId":"x","status":9}`, "status", "is 9, which is none of its values; it must be one of STATUS_CANCELLED, STATUS_FAILED, STATUS_SUCCEEDED"},
		{"CallService/EndCall", `{"sessionId":"s","callId":"x"}`, "status", "is required"},
	} {
		status, answer := n.post(tt.method, tt.body)
		require.Equal(t, 400, status, "%s: %v", tt.body, answer)
		require.Contains(t, answer["message"], tt.field+": "+tt.text, tt.body)
		require.NotContains(t, answer["message"], "proto", tt.body)
		require.Equal(t, "INVALID_FIELD", reasonIn(answer), tt.body)
		require.Equal(t, tt.field, fieldIn(answer), tt.body)
	}
}

// What is not known in protobuf is told as well, and what is of another type.
func TestProtoThatCannotBeRead(t *testing.T) {
	n := furnished(t)
	before := n.everything()
	for _, tt := range []struct {
		change      func(r *v1.BeginCallRequest)
		field, text string
	}{
		{func(r *v1.BeginCallRequest) { alien(r, 9999) }, "request", "has no field with the number 9999"},
		{func(r *v1.BeginCallRequest) { alien(r, 12) }, "tokens", "is of another type; it must be a whole number"},
		{func(r *v1.BeginCallRequest) { alien(r, 7) }, "pools", "is of another type; it must be a list"},
		{func(r *v1.BeginCallRequest) { r.Ttl = durationpb.New(time.Minute); alien(r.Ttl, 77) }, "ttl", "has no field with the number 77"},
		{func(r *v1.BeginCallRequest) {
			r.Pools = []*v1.Want{{Pool: "gpu"}, {Pool: "other"}}
			alien(r.Pools[1], 77)
		}, "pools[1]", "has no field with the number 77"},
		{func(r *v1.BeginCallRequest) {
			r.Arguments = &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewBoolValue(true)}}
			alien(r.Arguments.Fields["a"], 77)
		}, `arguments.fields["a"]`, "has no field with the number 77"},
	} {
		for name, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}} {
			_, err := n.h2(opts...).calls.BeginCall(n.ctx(), beginRequest("s", "x", tt.change))
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%s: %v", name, err)
			require.ErrorContains(t, err, tt.field+": "+tt.text, name)
			if name == "connect" {
				require.Equal(t, tt.field, info(t, err).Metadata["field"])
			}
			_, err = n.h2(opts...).calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
				{Tag: 1, Op: &v1.Operation_Begin{Begin: beginRequest("s", "x", tt.change)}},
			}})
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%s: %v", name, err)
		}
	}
	require.Equal(t, before, n.everything())
}

// alien adds a field of 32 bits, which no message of the API has.
func alien(m proto.Message, number protowire.Number) {
	x := m.ProtoReflect()
	x.SetUnknown(protowire.AppendFixed32(protowire.AppendTag(x.GetUnknown(), number, protowire.Fixed32Type), 7))
}

// fieldIn is the field that an error in JSON names in its metadata.
func fieldIn(answer map[string]any) any {
	for _, d := range answer["details"].([]any) {
		if debug, ok := d.(map[string]any)["debug"].(map[string]any); ok {
			if meta, ok := debug["metadata"].(map[string]any); ok {
				return meta["field"]
			}
		}
	}
	return nil
}

// An answer in JSON has the fields that are false, 0 or empty, too.
func TestJSONHasWhatIsFalse(t *testing.T) {
	n := furnished(t)
	n.putPolicy("name: strict", "allowed_tools: [other]")
	_, answer := n.post("PolicyService/Evaluate", `{"policy":{"name":"strict"},"tool":"t"}`)
	require.Equal(t, false, answer["decision"].(map[string]any)["allowed"], "%v", answer)
	_, answer = n.post("CounterService/Get", `{"key":"none"}`)
	require.Equal(t, false, answer["found"], "%v", answer)
	_, answer = n.post("SlotService/PutPool", `{"pool":"fresh","slots":2}`)
	require.EqualValues(t, 0, answer["pool"].(map[string]any)["inUse"], "%v", answer)
}

// A slot that is not given back because of its token is told why.
func TestFencedSaysWhy(t *testing.T) {
	n := start(t)
	_, err := n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "q", Slots: 1})
	require.NoError(t, err)
	got, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "x", Client: "k"})
	require.NoError(t, err)
	for token, why := range map[uint64]string{0: "no token is given", got.Token + 1: "is not the one under which the slot is held"} {
		res, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "x", Client: "k", Token: token})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_FENCED, res.Outcome)
		require.Contains(t, res.Reason, why)
	}
	res, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "x", Client: "k", Token: got.Token})
	require.NoError(t, err)
	require.Empty(t, res.Reason)
}

// What is wrong with a change of members names its field, also where it was the
// leader who said so.
func TestMembersNameTheField(t *testing.T) {
	refused := storage.Fail(storage.NotApplied, fieldProblem{})
	n := start(t, func(c *server.Config) { c.Cluster = &picky{fellows: &fellows{}, err: refused} })
	_, answer := n.post("ClusterService/RemoveNode", `{"node":"n1"}`)
	require.Equal(t, "node", fieldIn(answer), "%v", answer)
	require.Contains(t, answer["message"], "node: is the only voter")
}

// picky is a cluster that refuses changes.
type picky struct {
	*fellows
	err error
}

func (p *picky) RemoveNode(context.Context, string, bool) error { return p.err }

type fieldProblem struct{}

func (fieldProblem) Error() string              { return "node: is the only voter" }
func (fieldProblem) Field() (name, text string) { return "node", "is the only voter" }
func (fieldProblem) Unwrap() error              { return storage.ErrInvalid }
