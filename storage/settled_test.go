package storage

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

func digestOf(i int) session.Digest { return session.Digest{byte(i), byte(i >> 8), byte(i >> 16), 1} }

func noteOne(s *Settled, i int, changed bool) {
	cmd := &session.Increment{NS: "n"}
	cmd.Authorize(&session.Authority{Audited: digestOf(i)})
	res := session.Result{Code: session.Done}
	if changed {
		res.Chain = (*session.Chain)(nil).Next(0, session.Done, digestOf(i))
		res.Chain.N = uint64(i)
	}
	s.Note([]session.Command{cmd}, []session.Result{res}, uint64(100+i))
}

// What was changed is found behind a mark, and told when it comes later.
func TestSettled(t *testing.T) {
	var s Settled
	noteOne(&s, 1, true)
	require.Nil(t, s.Find(digestOf(1), 0, nil), "nobody has asked to keep it")
	s.Keep()
	told := make(chan Answer, 8)
	tell := func(a Answer) { told <- a }
	noteOne(&s, 1, true)
	mark := s.Mark()
	noteOne(&s, 1, false) // a repeat
	require.Empty(t, s.Find(digestOf(1), mark, tell))
	require.Empty(t, s.Find(digestOf(1), mark, tell), "one of the two is told")
	noteOne(&s, 2, true)
	for range 2 { // sent twice, it may have waited at first
		noteOne(&s, 1, true)
		a := <-told
		require.Equal(t, Applied, a.Outcome)
		require.EqualValues(t, 1, a.Result.Chain.N)
		require.EqualValues(t, 101, a.Index)
	}
	require.Len(t, s.Find(digestOf(1), mark, tell), 2)
	require.Len(t, s.Find(digestOf(1), 0, tell), 3)
	require.Empty(t, told)
	require.Len(t, s.Find(digestOf(2), mark, tell), 1, "what is found may come once more")
	noteOne(&s, 2, true)
	require.EqualValues(t, 2, (<-told).Result.Chain.N)
}

// It is bounded, and the newest stay.
func TestSettledIsBounded(t *testing.T) {
	var s Settled
	s.Keep()
	told := make(chan uint64, 1)
	for i := range settledAsked + 1 {
		require.Empty(t, s.Find(digestOf(i), 0, func(a Answer) { told <- a.Result.Chain.N }))
	}
	require.Len(t, s.asked, settledAsked)
	noteOne(&s, 0, true) // who asked for it is forgotten
	noteOne(&s, settledAsked, true)
	require.EqualValues(t, settledAsked, <-told)
	require.Empty(t, told)
	for i := range settledKept + 10 {
		noteOne(&s, i, true)
	}
	require.Len(t, s.latest, settledKept)
	for i, there := range map[int]int{9: 0, 10: 1, settledKept - 1: 1, settledKept + 9: 1} {
		require.Len(t, s.Find(digestOf(i), 0, func(Answer) {}), there, fmt.Sprint(i))
	}
}
