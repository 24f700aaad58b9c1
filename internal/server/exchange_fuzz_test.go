package server_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
)

// Whatever stands in a message of a stream, each frame has an answer and the
// stream an end, and nothing within the node breaks by it.
func FuzzExchange(f *testing.F) {
	for _, frames := range [][]*v1.Operation{
		nil,
		{beginFrame(1, "s", "a"), endFrame(2, "s", "a"), {Tag: 3}},
		{{Tag: 1, Timeout: durationpb.New(-time.Second), Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "p", SlotId: "x"}}}},
		{{Tag: 1, Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "p", SlotId: "x", Token: 1}}}},
	} {
		b, err := proto.Marshal(&v1.ExchangeRequest{Frames: frames})
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte("\xff\xff"))
	f.Add([]byte("00")) // a field that no message has
	n := start(f)
	n.putPolicy(roomy...)
	n.session("s")
	client := n.h2Client()
	defer client.CloseIdleConnections()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 64<<10 {
			return
		}
		var m v1.ExchangeRequest
		read := input.Proto().Unmarshal(b, &m) == nil
		if read {
			for _, o := range m.Frames {
				if wait := o.GetTimeout(); !wait.IsValid() || wait.AsDuration() > 20*time.Millisecond {
					o.Timeout = durationpb.New(20 * time.Millisecond) // nobody waits for long
				}
			}
			var err error
			b, err = proto.Marshal(&m)
			require.NoError(t, err)
		}
		answers, end := n.rawExchange(t, client, envelope(b))
		require.NotContains(t, end, `"internal"`)
		if !read {
			require.Contains(t, end, `"error"`)
			return
		}
		require.NotContains(t, end, `"error"`)
		answered := map[uint64]int{}
		for _, a := range answers {
			require.NotEqual(t, "internal", a.GetError().GetCode(), "%v", a)
			answered[a.Tag]++
		}
		for _, o := range m.Frames {
			answered[o.Tag]--
		}
		for tag, more := range answered { // one that had to wait may have said so before
			require.GreaterOrEqual(t, more, 0, "tag %d", tag)
		}
	})
}

// envelope is one message on a stream of Connect's.
func envelope(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// rawExchange sends bytes on a stream, and returns its answers and the JSON at its
// end.
func (n *node) rawExchange(t *testing.T, client *http.Client, body []byte) (answers []*v1.OperationResult, end string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+"/govnode.v1.CallService/Exchange", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/connect+proto")
	res, err := client.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	for {
		var head [5]byte
		_, err := io.ReadFull(res.Body, head[:])
		require.NoError(t, err, "a stream without an end")
		b := make([]byte, binary.BigEndian.Uint32(head[1:]))
		_, err = io.ReadFull(res.Body, b)
		require.NoError(t, err)
		if head[0]&2 != 0 {
			return answers, string(b)
		}
		var m v1.ExchangeResponse
		require.NoError(t, proto.Unmarshal(b, &m))
		answers = append(answers, m.Answers...)
	}
}
