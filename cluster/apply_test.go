package cluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Whatever attempts come to, in whatever order: what one of them may have done no
// later one takes back, and its own error says why nobody knows.
func TestWhatMayHaveBeenAppliedStaysUnknown(t *testing.T) {
	lost, full := errors.New("the stream broke"), errors.New("full")
	attempts := map[string]func() storage.Answer{
		"lost":      func() storage.Answer { return storage.Lost(lost) },
		"elsewhere": func() storage.Answer { return storage.Refused(errElsewhere) },
		"no leader": func() storage.Answer { return storage.Refused(errNoLeader) },
		"refused":   func() storage.Answer { return storage.Refused(full) },
		"applied":   func() storage.Answer { return storage.Done(session.Result{}, 7) },
	}
	// follow makes each kind of attempt after those that were made, as long as the
	// answer is not the last word.
	var follow func(made []string, maybe error, may bool)
	follow = func(made []string, maybe error, may bool) {
		if len(made) == 5 {
			return
		}
		for name, attempt := range attempts {
			made, may := append(made[:len(made):len(made)], name), may || name == "lost"
			a := attempt()
			final, maybe := settle(&pending{cmd: increment("r")}, maybe, &a)
			require.Equal(t, name == "applied" || name == "refused", final, "%v", made)
			switch {
			case name == "applied":
				require.Equal(t, storage.Applied, a.Outcome, "%v", made)
			case may: // the caller may give up here, and is told this
				require.Equal(t, storage.Unknown, a.Outcome, "%v", made)
				require.ErrorIs(t, a.Err, lost, "%v", made)
			default:
				require.Equal(t, storage.NotApplied, a.Outcome, "%v", made)
			}
			if !final {
				follow(made, maybe, may)
			}
		}
	}
	follow(nil, nil, false)

	// Who may do what is looked at before the id is: that it has changed since says nothing
	// about the first time.
	for name, maybe := range map[string]error{"first": nil, "again": lost} {
		a := storage.Done(session.Result{Code: session.StaleAccess}, 7)
		final, _ := settle(&pending{cmd: increment("r")}, maybe, &a)
		require.True(t, final)
		require.Equal(t, maybe != nil, a.Outcome == storage.Unknown, name)
		require.ErrorIs(t, a.Err, maybe)
	}

	a := storage.Lost(lost)
	final, _ := settle(&pending{cmd: increment("")}, nil, &a)
	require.True(t, final, "what nobody would know again is not sent again")
}

// Attempts are given up when there was no leader for as long as is to be borne, counted
// from the first that found none behind one that found one.
func TestHowLongNoLeaderIsBorne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backoff{patience: 5 * time.Second}
		require.False(t, b.found(errNoLeader))
		time.Sleep(4 * time.Second)
		require.False(t, b.found(errNoLeader))
		require.False(t, b.found(errors.New("another")), "there is one")
		time.Sleep(4 * time.Second)
		require.False(t, b.found(errNoLeader), "which is gone")
		time.Sleep(5*time.Second - 1)
		require.False(t, b.found(errNoLeader))
		time.Sleep(time.Nanosecond)
		require.True(t, b.found(errNoLeader))
		forever := backoff{}
		require.False(t, forever.found(errNoLeader))
		time.Sleep(time.Hour)
		require.False(t, forever.found(errNoLeader))
	})
}
