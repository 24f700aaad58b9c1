package storagetest

import (
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
	"example.com/govnode/storage"
)

// Histories gives one random history of commands to the bare state machine and
// to each store, and wants equal answers after every step and equal records at
// the end. Equal seeds make equal histories. What they did is added to did.
//
// Stores settle what has run out when they see fit, so two things are not
// compared: which command happened to be the one that found a lapse, and
// records before everything that has run out was settled.
func Histories(t *testing.T, seed uint64, steps int, stores map[string]Timed, did *sessiontest.Tally) {
	var now atomic.Int64
	clock := func() time.Duration { return time.Duration(now.Load()) }
	opened := make(map[string]storage.Store)
	for name, open := range stores {
		opened[name] = open(t, clock)
	}
	h := &history{T: t, model: session.New(), from: sessiontest.New(seed), r: rand.New(rand.NewPCG(seed, 1)), stores: opened, did: did}
	t.Logf("seed %d", seed)
	h.send(0, sessiontest.Setup())
	for range steps {
		step := h.from.Step()
		now.Add(int64(step.After))
		h.send(clock(), h.next(step.Commands))
	}
	// A command at the present time lets every store be there.
	h.send(clock(), []session.Command{&session.Tick{}})
	h.compare()
}

// A Timed store gives commands the log time that now returns. Between opens it
// is closed when its test ends.
type Timed func(t *testing.T, now func() time.Duration) storage.Store

type history struct {
	*testing.T
	model  *session.State
	from   *sessiontest.History
	r      *rand.Rand
	stores map[string]storage.Store
	sent   int
	did    *sessiontest.Tally
}

// next makes the commands of a step: those of the history, with the tokens that
// their senders have, and sometimes the claims of those whose turn has come.
func (h *history) next(commands []session.Command) (out []session.Command) {
	if h.r.IntN(3) == 0 {
		out = h.from.Claims(h.model)
	}
	for _, c := range commands {
		if c = sessiontest.Tokens(h.model, c); session.Validate(c) == nil {
			out = append(out, c)
		}
	}
	return out
}

// send applies the commands everywhere.
func (h *history) send(at time.Duration, commands []session.Command) {
	h.Helper()
	if len(commands) == 0 {
		return
	}
	h.sent += len(commands)
	want := h.model.ApplyAll(at, commands)
	for i, c := range commands {
		h.did.Note(c, &want[i])
	}
	for name, s := range h.stores {
		for i, a := range s.Apply(h.Context(), commands...) {
			require.NoError(h, a.Err, "%s: command %d (%T)", name, h.sent, commands[i])
			got := a.Result
			got.Lapsed, want[i].Lapsed = nil, nil
			require.Equal(h, encode(want[i]), encode(got), "%s: command %d (%T): want %+v, got %+v", name, h.sent, commands[i], want[i], got)
		}
	}
}

func encode(r session.Result) string { return string(session.EncodeResult(&r)) }

// compare wants the records of the model in every store, once all have settled
// what has run out.
func (h *history) compare() {
	h.Helper()
	for more := true; more; {
		var keys []session.Key
		keys, more = h.model.DueKeys(session.MaxTick)
		h.model.ApplyAll(h.model.Now(), []session.Command{&session.Tick{Keys: keys}})
	}
	want := sessiontest.Dump(h.model)
	require.NotEmpty(h, want)
	for name, s := range h.stores {
		var got map[session.Key]string
		require.Eventually(h, func() bool {
			got = dump(h.T, s)
			return maps.Equal(want, got)
		}, patience, 10*time.Millisecond, "%s: records differ: %v", name, difference(want, &got))
	}
}

func dump(t *testing.T, s storage.Store) map[session.Key]string {
	v, err := s.View(t.Context(), "", storage.Latest)
	if err != nil {
		t.Error(err)
		return nil
	}
	found, err := v.Find("", "", 1<<20, nil)
	if err != nil {
		t.Error(err)
	}
	all := make(map[session.Key]string, len(found))
	for _, e := range found {
		all[e.Key] = string(session.EncodeRecord(e.Record))
	}
	return all
}

// A lazy difference is printed only if it is asked for, as it is then.
type lazy struct {
	want map[session.Key]string
	got  *map[session.Key]string
}

func difference(want map[session.Key]string, got *map[session.Key]string) lazy {
	return lazy{want, got}
}

func (d lazy) String() string {
	text := ""
	for k, v := range d.want {
		if (*d.got)[k] != v {
			text += string(k) + " "
		}
	}
	for k := range *d.got {
		if _, ok := d.want[k]; !ok {
			text += "+" + string(k) + " "
		}
	}
	return text
}
