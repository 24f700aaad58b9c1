package record

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/internal/server/members"
	v1 "example.com/govnode/proto/govnode/v1"
)

// Each message has the cursor behind which a follower goes on: behind a gap he is still
// told of those that come after it, and of nothing from before.
func TestGapsOfSeveralNodesHaveTheirCursors(t *testing.T) {
	g := &gathering{
		s: &Teller{Node: "a"}, at: map[string]string{"a": "a.1", "b": "b.1", "c": "c.1"}, silent: map[string]bool{},
		members: map[string]bool{"a": true, "b": true, "c": true}, messages: make(chan heard, 3), open: make(chan struct{}),
	}
	g.messages <- heard{"a", &v1.FollowResponse{Cursor: "a.2"}, nil}
	g.messages <- heard{"b", &v1.FollowResponse{Cursor: "b.2", Gap: &v1.Gap{Node: "b"}}, nil}
	g.messages <- heard{"c", &v1.FollowResponse{Cursor: "c.2", Gap: &v1.Gap{Node: "c"}}, nil}
	var told []string
	require.NoError(t, g.firstWords(t.Context(), func(m *v1.FollowResponse) error {
		told = append(told, m.Gap.GetNode()+" "+m.Cursor)
		return nil
	}))
	require.Equal(t, []string{"b a.2,b.2,c.1", "c a.2,b.2,c.2", " a.2,b.2,c.2"}, told)
}

// A node that says nothing for longer than it ever does is given up, as one whose power
// is cut; whoever reads slowly meanwhile is not its silence.
func TestSilentNodesAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		speaks, words := io.Pipe()
		to := &http.Client{Transport: silent{speaks}}
		g := &gathering{s: &Teller{Client: to}, messages: make(chan heard), open: make(chan struct{})}
		close(g.open)
		ended := make(chan error)
		begun := time.Now()
		go func() {
			ended <- (&voice{g: g, node: "b"}).listen(t.Context(), members.Peer{Node: "b", APIAddress: "b:1"}, &v1.FollowRequest{})
		}()
		for range 2 {
			time.Sleep(followBeat)
			_, err := words.Write([]byte{0, 0, 0, 0, 0}) // a message with nothing in it
			require.NoError(t, err)
			time.Sleep(2 * followPatience) // until somebody takes it
			require.NoError(t, (<-g.messages).err)
		}
		require.Error(t, <-ended)
		require.Equal(t, 2*(followBeat+2*followPatience)+followPatience, time.Since(begun))
	})
}

// A node that answers when the first cursor has gone out may have had something to tell
// since, which is said, though nothing has failed; one that answers in time has not.
func TestWhoAnswersBehindTheFirstCursor(t *testing.T) {
	for after, gap := range map[time.Duration]string{peerTimeout - time.Second: "", peerTimeout + time.Second: "b UNHEARD"} {
		synctest.Test(t, func(t *testing.T) {
			s := journaled(8, DefaultJournalBytes)
			s.Cluster, s.Client = twoMembers{}, &http.Client{Transport: slow(after)}
			ctx, cancel := context.WithCancel(t.Context())
			part := s.Journal.enter("default", maxFollowers)
			err := s.followAll(ctx, &v1.FollowRequest{Cluster: true}, part, nil, func(m *v1.FollowResponse) error {
				if !strings.Contains(m.Cursor, "b:1:7") {
					require.Equal(t, []string{"b"}, m.Unreachable)
					require.NotEmpty(t, gap)
					return nil
				}
				require.Equal(t, gap, strings.TrimSpace(m.Gap.GetNode()+" "+m.Gap.GetReason()))
				cancel()
				return nil
			})
			require.Equal(t, connect.CodeCanceled, connect.CodeOf(err))
			synctest.Wait()
		})
	}
}

type twoMembers struct{ members.Cluster }

func (twoMembers) Status(context.Context) (members.Status, error) {
	return members.Status{Peers: []members.Peer{{Node: "n1"}, {Node: "b", APIAddress: "b:1"}}}, nil
}

// slow says where it stands after a while, and then nothing.
type slow time.Duration

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(time.Duration(s)):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	body, words := io.Pipe()
	m, err := proto.Marshal(&v1.FollowResponse{Cursor: "b:1:7"})
	if err != nil {
		return nil, err
	}
	go func() { _, _ = words.Write(append([]byte{0, 0, 0, 0, byte(len(m))}, m...)) }()
	return silent{body}.RoundTrip(r)
}

// silent answers with a stream that ends with its request.
type silent struct{ body *io.PipeReader }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	context.AfterFunc(r.Context(), func() { _ = s.body.CloseWithError(r.Context().Err()) })
	go func() { _, _ = io.Copy(io.Discard, r.Body) }()
	return &http.Response{
		StatusCode: http.StatusOK, Body: s.body, Request: r, ProtoMajor: 2, Header: http.Header{"Content-Type": {"application/connect+proto"}},
	}, nil
}

// A node that is no member any more ends with a gap; if it is one again it goes on behind
// what it had told, and one that was never heard of has nothing to be missed.
func TestWhoLeavesIsMissedOnce(t *testing.T) {
	g := &gathering{
		s: &Teller{Node: "a"}, req: &v1.FollowRequest{}, at: map[string]string{"a": "a.1", "b": "b.1"}, left: map[string]string{},
		silent: map[string]bool{"b": true, "c": true}, members: map[string]bool{"a": true, "b": true, "c": true},
	}
	m, err := g.take(heard{"b", nil, errNoMember})
	require.NoError(t, err)
	require.Equal(t, []string{"b", "LEFT", "a.1"}, []string{m.Gap.GetNode(), m.Gap.GetReason(), m.Cursor})
	require.Equal(t, []string{"c"}, m.Unreachable)
	require.False(t, g.members["b"], "it is followed again when it is one")
	again := g.request("b", true)
	require.Equal(t, "b.1", again.After)
	require.False(t, again.FromOldest)
	m, err = g.take(heard{"c", nil, errNoMember})
	require.NoError(t, err)
	require.Nil(t, m.Gap)
	require.Empty(t, m.Unreachable)
	require.True(t, g.request("c", true).FromOldest, "all of it is new")
}
