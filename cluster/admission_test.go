package cluster

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A leader asks about each command that is passed on to it, and about none of
// its own. What it does not admit was not applied, and the rest of the batch is
// not held up by it.
func TestWhatIsPassedOnIsAdmittedOneByOne(t *testing.T) {
	c := newCluster(t, 2, nil)
	leader, follower := c.leader(), c.follower()
	var asked atomic.Int32
	leader.AdmitForwarded(func(c session.Command) bool {
		asked.Add(1)
		i, ok := c.(*session.Increment)
		return !ok || i.By.Request != "no"
	})
	answers := follower.Apply(within(t, 10*time.Second), increment("a"), increment("no"), increment("b"))
	require.NoError(t, answers[0].Err)
	require.Equal(t, storage.NotApplied, answers[1].Outcome)
	var refused interface{ Overloaded() bool }
	require.True(t, errors.As(answers[1].Err, &refused) && refused.Overloaded(), "%v", answers[1].Err)
	require.NoError(t, answers[2].Err)
	require.EqualValues(t, 3, asked.Load())
	require.EqualValues(t, 2, count(t, follower, storage.Latest))

	_, _, err := storage.One(t.Context(), leader, increment("no"))
	require.NoError(t, err, "its own callers are for others to look at")
	require.EqualValues(t, 3, count(t, leader, storage.Latest), "the id was not used up by the refusal")
	leader.AdmitForwarded(nil)
	_, _, err = storage.One(within(t, 10*time.Second), follower, increment("no"))
	require.NoError(t, err)
	require.EqualValues(t, 3, asked.Load())
}

// Only the refusal is read as one: another reason for not applying a command
// does not say that there is no room.
func TestOnlyARefusalIsReadAsOne(t *testing.T) {
	for _, test := range []struct {
		err        error
		overloaded bool
	}{{errOverloaded, true}, {errFull, false}, {errTooLate, false}, {errDraining, false}} {
		a := readAnswer(writeAnswer(new(storage.Refused(test.err))))
		require.Equal(t, storage.NotApplied, a.Outcome)
		require.ErrorContains(t, a.Err, test.err.Error())
		require.Equal(t, test.overloaded, errors.As(a.Err, new(interface{ Overloaded() bool })), test.err)
	}
}

// A reason keeps its kind and its own words on its way to the node that asked,
// whatever words those are, and gets none beside them.
func TestAReasonKeepsItsWords(t *testing.T) {
	for kind, of := range map[error]func(error) error{storage.ErrInvalid: storage.Invalid, errElsewhere: elsewhere} {
		for _, said := range []string{"why", kind.Error() + ": why", ""} {
			a := storage.Refused(of(errors.New(said)))
			for range 2 { // a node that passes on
				a = readAnswer(writeAnswer(&a))
				require.ErrorIs(t, a.Err, kind)
				require.ErrorContains(t, a.Err, kind.Error()+": "+said)
				require.Equal(t, said, bare(a.Err))
			}
		}
	}
}

// A result that cannot be read was applied all the same: it is unknown, and
// never "not applied".
func TestAResultThatCannotBeReadIsUnknown(t *testing.T) {
	a := readAnswer(&nodev1.ForwardAnswer{Result: []byte{0xff, 0xff}, Index: 7})
	require.Equal(t, storage.Unknown, a.Outcome)
	require.Error(t, a.Err)
}
