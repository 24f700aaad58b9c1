package cluster

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// An error means on the node that asked what it meant on the one that was asked, and names the same
// field.
func TestWhatAnErrorOfAnotherNodeMeans(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		want  storage.Outcome
		is    error
		field string
		text  string
	}{
		"it leads no more":     {errElsewhere, storage.NotApplied, errElsewhere, "", ""},
		"it knows no leader":   {errNoLeader, storage.NotApplied, errElsewhere, "", ""},
		"a field is wrong":     {invalidField("address", "%s is taken", "it"), storage.NotApplied, storage.ErrInvalid, "address", "it is taken"},
		"another one is wrong": {invalidField("node", "node: %s", "what"), storage.NotApplied, storage.ErrInvalid, "node", "node: what"},
		"it is wrong":          {invalid(errors.New("why")), storage.NotApplied, storage.ErrInvalid, "", "why"},
		"it was not done":      {notApplied(errors.New("why")), storage.NotApplied, nil, "", "why"},
		"nobody knows":         {unknown(errors.New("why")), storage.Unknown, nil, "", "why"},
		"there is no time":     {errors.New("why"), storage.NotApplied, nil, "", "why"},
	} {
		t.Run(name, func(t *testing.T) {
			err := sent(wireError(tt.err))
			require.Equal(t, tt.want, storage.OutcomeOf(err))
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			require.ErrorContains(t, err, tt.text)
			var bad interface{ Field() (name, text string) }
			require.Equal(t, tt.field != "", errors.As(err, &bad))
			if bad != nil {
				name, text := bad.Field()
				require.Equal(t, []string{tt.field, tt.text}, []string{name, text})
			}
		})
	}
	require.NoError(t, sent(wireError(nil)))
	lost := errors.New("lost")
	require.Equal(t, storage.Unknown, storage.OutcomeOf(sent(lost)))
	require.Equal(t, lost, remote(lost))
}

// A node that drains, or does not lead, sends those who ask it to the leader.
func TestWhoIsAskedAndDoesNotLead(t *testing.T) {
	s := &service{new(Node)}
	_, err := s.lead()
	require.ErrorIs(t, remote(err), errElsewhere)
	leads := new(leadership)
	s.n.leading.Store(leads)
	l, err := s.lead()
	require.NoError(t, err)
	require.Same(t, leads, l)
	s.n.draining.Store(true)
	_, err = s.lead()
	require.ErrorIs(t, remote(err), errElsewhere)
}

// Whoever tells of its state hears of this node's, where it has one to tell of. What is no digest is
// not taken for one.
func TestStatesAreTold(t *testing.T) {
	n := &Node{cfg: Config{ID: "n1"}}
	theirs, own := session.Digest{1}, session.Digest{2}
	tell := func(node string, digest []byte) []byte {
		answer, err := (&service{n}).CompareState(t.Context(), &nodev1.CompareStateRequest{Node: node, Index: 7, Digest: digest})
		require.NoError(t, err)
		return answer.GetDigest()
	}
	require.Empty(t, tell("n2", theirs[:]))
	for _, digest := range [][]byte{nil, theirs[:31], append(theirs[:], 0)} {
		require.Empty(t, tell("n3", digest), "it is none")
	}
	require.Equal(t, map[string]session.Digest{"n2": theirs}, n.states.of(7))
	n.states.note(7, "n1", own)
	require.Equal(t, own[:], tell("n2", theirs[:]))
}
