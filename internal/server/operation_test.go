package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Operations point at their answers among those of their message. Who waits has its own,
// where what the wait brings is put: it waits for long, and must not keep the others.
func TestWhoWaitsKeepsItsOwnAnswer(t *testing.T) {
	call := func() *begin {
		return &begin{cmd: &session.Begin{NS: "n", Session: "s", Call: "c", Wait: time.Hour}, until: time.Now().Add(time.Hour)}
	}
	slot, rate, queued, stopped := &acquire{cmd: &session.Acquire{}}, &take{cmd: &session.TakeRate{}}, call(), call()
	for name, x := range map[string]struct {
		op     operation
		result session.Result
		answer **storage.Answer
	}{
		"a slot":          {slot, session.Result{Code: session.Queued}, &slot.answer},
		"a rate":          {rate, session.Result{Code: session.Queued}, &rate.answer},
		"a call":          {queued, session.Result{Code: session.Queued}, &queued.answer},
		"a call kept out": {stopped, session.Result{Code: session.Stopped, Signal: &session.Halt{}}, &stopped.answer},
	} {
		t.Run(name, func(t *testing.T) {
			answers := []storage.Answer{{}, storage.Done(x.result, 7)}
			again, err := x.op.take(t.Context(), answers[1:])
			require.NoError(t, err)
			require.False(t, again)
			require.Same(t, &answers[1], *x.answer)
			w := x.op.waiting()
			require.NotNil(t, w)
			require.NotSame(t, &answers[1], *x.answer)
			require.EqualValues(t, 7, (*x.answer).Index)
			if w.Held == nil {
				require.Same(t, w.Answer, *x.answer)
			}
		})
	}
}
