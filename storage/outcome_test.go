package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The outcome of a change is that of its own error: what it wraps may be of another change.
func TestOutcomeIsThatOfTheErrorItself(t *testing.T) {
	why := errors.New("why")
	inner := storage.Fail(storage.NotApplied, why)
	require.Equal(t, storage.Applied, storage.OutcomeOf(nil))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(inner))
	require.Equal(t, storage.Unknown, storage.OutcomeOf(fmt.Errorf("another: %w", inner)))
	require.Equal(t, storage.Unknown, storage.OutcomeOf(why))

	again := storage.Fail(storage.Unknown, inner)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(again))
	require.NotContains(t, again.Error(), storage.NotApplied.String(), "one outcome is told")
	require.ErrorIs(t, again, why)

	require.NoError(t, storage.Unread(nil))
	read := storage.Unread(inner)
	require.ErrorIs(t, read, why)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(read))
	require.NotContains(t, read.Error(), storage.NotApplied.String(), "a read says nothing of a change")
	require.Equal(t, read, storage.Unread(read))
}

// What was sent again without an answer to the first time is unknown where only that says
// no which has changed meanwhile.
func TestResent(t *testing.T) {
	why := errors.New("why")
	for code, changed := range map[session.Code]bool{
		session.Admitted: false, session.Done: false, session.NotFound: false,
		session.StaleAccess: true, // who may do what
		session.StaleID:     true, // which ids are remembered
	} {
		a := storage.Done(session.Result{Code: code}, 3)
		a.Resent(why)
		if changed {
			require.Equal(t, storage.Unknown, a.Outcome)
			require.ErrorIs(t, a.Failure(), why)
			continue
		}
		require.True(t, a.Again)
		require.NoError(t, a.Failure())
		require.Equal(t, code, a.Result.Code)
	}
	a := storage.Refused(why)
	a.Resent(errors.New("other"))
	require.Equal(t, storage.NotApplied, a.Outcome)
	require.ErrorIs(t, a.Err, why)
}

// What any command of an entry has found is told, not that of the first alone.
func TestAllLapsesAreTold(t *testing.T) {
	results := make([]session.Result, 4)
	results[1].Lapsed = []session.Lapse{{NS: "n", Call: "a"}}
	results[3].Lapsed = []session.Lapse{{NS: "n", Call: "b"}, {NS: "n", Call: "c"}}
	results[2].Folds = make([]session.Fold, 1)
	results[3].Folds = make([]session.Fold, 2)
	var l storage.Lapses
	l.TellLapses(results) // to nobody
	var calls []string
	l.OnLapse(func(all []session.Lapse) {
		for _, x := range all {
			calls = append(calls, x.Call)
		}
	})
	folds := 0
	l.OnFold(func(all []session.Fold) { folds += len(all) })
	l.TellLapses(results)
	require.Equal(t, []string{"a", "b", "c"}, calls)
	require.Equal(t, 3, folds)
	l.OnLapse(nil)
	l.TellLapses(results)
	require.Len(t, calls, 3)
	require.Equal(t, 6, folds)
}

// A view is of the present time, though nothing was changed since; and after a restore
// those who wait look again.
func TestMemoryViewAndRestoreAreOfNow(t *testing.T) {
	now := time.Duration(0)
	m := storage.NewMemory(func() time.Duration { return now })
	require.NoError(t, m.Close()) // nothing is settled beside the test
	by := session.Maker{Client: "c"}
	require.NoError(t, m.Apply(t.Context(), &session.Set{NS: "n", By: by, Key: "k", Value: session.Value{Text: "x"}, TTL: time.Second})[0].Err)
	find := func() int {
		v, err := m.View(t.Context(), "", storage.Nearby)
		require.NoError(t, err)
		require.Equal(t, now, v.Now)
		all, err := v.Find(session.Prefix(session.KindCounter, "n"), "", 10, nil)
		require.NoError(t, err)
		return len(all)
	}
	require.Equal(t, 1, find())
	var saved bytes.Buffer
	require.NoError(t, m.Save(t.Context(), &saved))
	now = time.Second
	require.Zero(t, find())
	<-m.Changed()
	require.Empty(t, m.Changed())
	require.NoError(t, m.Restore(t.Context(), &saved))
	require.Len(t, m.Changed(), 1)
}
