package record

import (
	"testing"

	"github.com/stretchr/testify/require"

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
