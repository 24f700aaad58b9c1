package record

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	v1 "example.com/govnode/proto/govnode/v1"
)

// hear is all that a follower is told now, a line for each message, without the
// names of lives.
func (fl *follower) hear(t *testing.T) (told []string) {
	t.Helper()
	for {
		r := fl.s.Journal.read(fl.part, fl.next)
		if r.missed > 0 {
			return append(told, fmt.Sprint("missed ", r.missed))
		}
		for _, rec := range r.records {
			require.NoError(t, fl.tell(rec, func(m *v1.FollowResponse) error {
				told = append(told, fmt.Sprint(m.Event.GetDecisionId(), " ", m.Event.GetType(), " ", m.Event.GetSequence(), " ", place(m.Cursor)))
				return nil
			}))
		}
		fl.next = r.next
		if r.news != nil {
			return append(told, "waits at "+place(fl.cursor()))
		}
	}
}

// place is a cursor without the name of its life.
func place(cursor string) string {
	words := strings.Split(cursor, ":")
	return words[0] + ":" + words[2]
}

// sought opens a follower of a namespace behind a cursor.
func (s *Teller) sought(t *testing.T, ns string, at cursor) *follower {
	t.Helper()
	p := s.Journal.enter(ns, maxFollowers)
	require.NotNil(t, p)
	return s.newFollower(t.Context(), &v1.FollowRequest{}, p, at)
}

// random is a record of a namespace: a check, a denial with three events, or the
// end of a call.
func random(rng *rand.Rand, ns, id string, size int) *Record {
	r := &Record{ID: id, NS: ns, Size: 1 + rng.IntN(size)}
	switch rng.IntN(4) {
	case 0:
		r.Input.Kind = engine.KindTool
	case 1:
		r.ID, r.After = "", make([]engine.Event, 1+rng.IntN(3))
		for i := range r.After {
			r.After[i] = engine.Event{Type: engine.CheckpointCreated, CallID: id}
		}
	default:
		r.Decision.Allowed = true
	}
	return r
}

// What a follower is told, and when, is the same whatever other namespaces do: they
// do not move its cursor, they do not wake it, and while it holds no more than its
// part they take nothing from it.
func TestViewIsOfOneNamespace(t *testing.T) {
	const own = 20
	view := func(t *testing.T, seed uint64, noise *rand.Rand) (told []string) {
		s := journaled(4*own*2, 1_000_000)
		others := func() {
			if noise == nil {
				return
			}
			for range noise.IntN(60) {
				ns := fmt.Sprint("other", noise.IntN(3))
				s.Journal.Add(random(noise, ns, fmt.Sprint("d", noise.IntN(1000), ns), 5000))
				if noise.IntN(10) == 0 {
					fl := s.sought(t, ns, cursor{})
					fl.hear(t)
					s.Journal.leave(fl.part)
				}
			}
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		others()
		live := s.sought(t, "own", cursor{})
		told = append(told, place(live.cursor()))
		var last cursor
		for i := range own {
			news := s.Journal.read(live.part, live.next).news
			others()
			if news != nil {
				select {
				case <-news:
					t.Fatal("others have woken it")
				default:
				}
			}
			s.Journal.Add(random(rng, "own", fmt.Sprint("own", i), 500))
			others()
			told = append(told, live.hear(t)...)
			back := s.sought(t, "own", last)
			told = append(told, fmt.Sprint("back ", back.gap.GetReason(), back.gap.GetMissed(), " ", place(back.cursor())))
			told = append(told, back.hear(t)...)
			if rng.IntN(3) == 0 {
				last = cursor{back.part.life, back.next - 1}
			}
			s.Journal.leave(back.part)
		}
		for i := range own {
			r := s.Journal.find("own", fmt.Sprint("own", i))
			told = append(told, fmt.Sprint("explains ", i, " ", r != nil))
		}
		return told
	}
	for seed := range uint64(50) {
		alone := view(t, seed, nil)
		require.Equal(t, alone, view(t, seed, rand.New(rand.NewPCG(seed, 1))), "seed %d", seed)
	}
}

// past is all that was ever added of one namespace.
type past struct {
	records []*Record
	sizes   int
	lives   []string // of its partition, in their order
	began   int      // events before the present life
	events  int
}

// A journal in a test keeps what it promises after every step of a random history.
func TestJournalLaws(t *testing.T) {
	forgotten, dropped, missed, fair := 0, 0, 0, 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		maxSize := []int{1, 50, 3000}[rng.IntN(3)]
		s := journaled(1+rng.IntN(40), 1+rng.IntN(4000))
		j := s.Journal
		j.mostIdle = rng.IntN(3)
		all, history := map[string]*past{}, []*Record(nil)
		type taken struct {
			cursor
			ns     string
			behind int // so many events of the namespace, of all its lives
		}
		var cursors []taken
		held := map[*partition]int{}
		namespaces := 1 + rng.IntN(12)
		for i := range 150 {
			ns := fmt.Sprint("ns", min(rng.IntN(namespaces), rng.IntN(namespaces))) // the first are busier
			h := all[ns]
			if h == nil {
				h = &past{}
				all[ns] = h
			}
			switch rng.IntN(8) {
			case 0: // somebody follows, for ever or for a moment
				fl := s.sought(t, ns, cursor{})
				h.seen(fl.part.life)
				require.Equal(t, h.events-h.began, int(fl.next-1), "seed %d", seed)
				cursors = append(cursors, taken{cursor{fl.part.life, fl.next - 1}, ns, h.events})
				if held[fl.part]++; rng.IntN(4) > 0 {
					held[fl.part]--
					j.leave(fl.part)
				}
			case 1: // somebody comes back
				if len(cursors) == 0 {
					continue
				}
				c := cursors[rng.IntN(len(cursors))]
				h, fl := all[c.ns], s.sought(t, c.ns, c.cursor)
				h.seen(fl.part.life)
				heard := fl.hear(t)
				told := len(heard) - 1 // it waits at the end
				switch {
				case fl.gap == nil:
					require.Equal(t, h.events, c.behind+told, "seed %d: nothing is missed unsaid", seed)
				case fl.gap.Reason == gapOverwritten:
					missed++
					require.Equal(t, h.events, c.behind+told+int(fl.gap.Missed), "seed %d: what is missed is its own, and all of it", seed)
				default:
					forgotten++
					require.NotEqual(t, c.life, h.lives[len(h.lives)-1], "seed %d", seed)
					require.Zero(t, fl.gap.Missed)
				}
				j.leave(fl.part)
			default:
				r := random(rng, ns, fmt.Sprint("d", i), maxSize)
				j.Add(r)
				h.seen(j.partitions[ns].life)
				h.records, h.sizes, h.events = append(h.records, r), h.sizes+r.Size, h.events+int(r.events)
				history = append(history, r)
			}
			j.requireBounded(t, held)

			// The latest of all are kept that the newer half has room for.
			var latest room
			for k, r := range slices.Backward(history) {
				latest.add(r.Size)
				if k < len(history)-1 && !latest.within(j.newer) {
					break
				}
				require.True(t, slices.Contains(j.partitions[r.NS].records.live(), r), "seed %d", seed)
			}
			for ns, h := range all {
				var kept []*Record
				if p := j.partitions[ns]; p != nil {
					kept = p.records.live()
				}
				gone := len(h.records) - len(kept)
				dropped += gone
				require.True(t, slices.Equal(h.records[gone:], kept), "seed %d: of a namespace the oldest goes first", seed)
				if n := len(all); len(h.records)*n <= j.older.records && h.sizes*n <= j.older.bytes {
					fair++
					require.Zero(t, gone, "seed %d: who holds no more than an even part keeps it", seed)
				}
			}
		}
	}
	for _, n := range []int{forgotten, dropped, missed, fair} {
		require.NotZero(t, n, "the histories show everything")
	}
}

// seen notes in which life the partition is; in a new one it counts from 1.
func (h *past) seen(life string) {
	if !slices.Contains(h.lives, life) {
		h.lives, h.began = append(h.lives, life), h.events
	}
}

// requireBounded looks at what is held, by sums and by order.
func (j *Journal) requireBounded(t *testing.T, held map[*partition]int) {
	t.Helper()
	require.True(t, j.aged.within(j.older))
	require.True(t, j.fresh.within(j.newer) || len(j.recent.live()) == 1)
	var kept, aged room
	used := 0
	for ns, p := range j.partitions {
		require.Equal(t, ns, p.ns)
		require.Equal(t, held[p], p.followers)
		var own room
		for i, r := range p.records.live() {
			kept.add(r.Size)
			if i < p.aged.records {
				own.add(r.Size)
			}
		}
		require.Equal(t, own, p.aged, "the oldest are in the older half")
		require.Equal(t, own.records > 0, p.at > 0)
		require.Equal(t, p.idle == nil, p.followers > 0 || len(p.records.live()) > 0)
		if p.idle == nil {
			used++
		}
		aged.records, aged.bytes = aged.records+own.records, aged.bytes+own.bytes
	}
	require.Equal(t, j.aged, aged)
	require.Equal(t, room{j.aged.records + j.fresh.records, j.aged.bytes + j.fresh.bytes}, kept)
	require.Len(t, j.recent.live(), j.fresh.records)
	require.LessOrEqual(t, len(j.byID), kept.records)
	require.Equal(t, j.idle.Len()+used, len(j.partitions))
	require.LessOrEqual(t, j.idle.Len(), j.mostIdle)
	for i, p := range j.largest {
		require.Equal(t, i+1, p.at)
		require.GreaterOrEqual(t, j.largest[0].share, p.share)
	}
}

// Who holds what, in the older half of a journal of 16 records and 1,600 bytes.
func TestWhoGivesWay(t *testing.T) {
	type run struct {
		ns      string
		records int
		size    int
	}
	for name, c := range map[string]struct {
		runs []run
		kept map[string]int
	}{
		"one alone has all of it":                 {[]run{{"a", 40, 1}}, map[string]int{"a": 16}},
		"a busy one takes nothing from few":       {[]run{{"a", 3, 1}, {"b", 2, 1}, {"c", 100, 1}}, map[string]int{"a": 3, "b": 2, "c": 11}},
		"also when it was first":                  {[]run{{"c", 100, 1}, {"a", 3, 1}, {"b", 2, 1}, {"c", 100, 1}}, map[string]int{"a": 3, "b": 2, "c": 11}},
		"two busy ones share":                     {[]run{{"a", 50, 1}, {"b", 50, 1}}, map[string]int{"a": 4, "b": 12}},
		"few records with many bytes are much":    {[]run{{"a", 2, 1}, {"b", 2, 450}, {"c", 8, 1}}, map[string]int{"a": 2, "b": 1, "c": 8}},
		"the busy one has half, whoever is there": {[]run{{"a", 2, 1}, {"b", 2, 1}, {"c", 2, 1}, {"d", 2, 1}, {"e", 30, 1}}, map[string]int{"a": 1, "b": 1, "c": 2, "d": 2, "e": 10}},
		"of even ones the oldest goes":            {[]run{{"a", 1, 1}, {"b", 1, 1}, {"c", 1, 1}, {"d", 1, 1}, {"e", 1, 1}, {"f", 1, 1}, {"g", 1, 1}, {"h", 1, 1}, {"i", 1, 1}, {"z", 9, 1}}, map[string]int{"c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1, "z": 9}},
	} {
		t.Run(name, func(t *testing.T) {
			s, added := journaled(16, 1600), 0
			for _, run := range c.runs {
				for range run.records {
					r := allowed(fmt.Sprint("d", added), run.size)
					r.NS = run.ns
					s.Journal.Add(r)
					added++
				}
			}
			kept := map[string]int{}
			for ns, p := range s.Journal.partitions {
				if n := len(p.records.live()); n > 0 {
					kept[ns] = n
				}
			}
			require.Equal(t, c.kept, kept)
		})
	}
}

// A namespace where nothing occurs is remembered, so that who comes back to it is
// told of no gap; of too many the one that was left first is forgotten, and that is
// told. What is kept or followed is never forgotten.
func TestForgottenNamespaces(t *testing.T) {
	s := journaled(DefaultJournalRecords, DefaultJournalBytes)
	visit := func(ns string, at cursor) (cursor, *v1.Gap) {
		fl := s.sought(t, ns, at)
		defer s.Journal.leave(fl.part)
		return cursor{fl.part.life, fl.next - 1}, fl.gap
	}
	followed := s.sought(t, "followed", cursor{})
	kept, _ := visit("kept", cursor{})
	s.Journal.Add(&Record{ID: "k", NS: "kept", Decision: engine.Decision{Allowed: true}, Size: 1})
	quiet, gap := visit("quiet", cursor{})
	require.Nil(t, gap)
	for i := range maxIdle - 1 {
		visit(fmt.Sprint("ns", i), cursor{})
	}
	again, gap := visit("quiet", quiet)
	require.Nil(t, gap)
	require.Equal(t, quiet, again)
	for i := range maxIdle {
		visit(fmt.Sprint("more", i), cursor{})
	}
	require.Len(t, s.Journal.partitions, maxIdle+2)
	_, gap = visit("quiet", quiet)
	require.Equal(t, gapRestarted, gap.GetReason())
	_, gap = visit("followed", cursor{followed.part.life, 0})
	require.Nil(t, gap)
	_, gap = visit("kept", kept)
	require.Nil(t, gap)
	require.Equal(t, []string{"k policy_check 1 n1:1", "waits at n1:1"}, s.sought(t, "kept", kept).hear(t))
}

// A follower that has fallen behind is told how many events of its namespace are
// gone, also where others have pushed them out.
func TestBehindByOthers(t *testing.T) {
	s := journaled(8, DefaultJournalBytes)
	fl := s.sought(t, "default", cursor{})
	for i := range 4 {
		s.Journal.Add(allowed(fmt.Sprint("d", i), 1))
	}
	for i := range 100 {
		r := allowed(fmt.Sprint("o", i), 1)
		r.NS = fmt.Sprint("other", i)
		s.Journal.Add(r)
	}
	require.Equal(t, []string{"missed 4"}, fl.hear(t))
	oldest, next := s.Journal.bounds(fl.part)
	require.Equal(t, []uint64{5, 5}, []uint64{oldest, next})
}

// A queue gives back the memory of what went: it holds no record that was taken out,
// and little room for more than there is.
func TestQueueGivesBack(t *testing.T) {
	var q queue[*Record]
	rng := rand.New(rand.NewPCG(1, 0))
	first, next := 0, 0
	for _, most := range []int{2000, 10, 300, 0, 50} {
		for range 20_000 {
			if left := next - first; left < most && rng.IntN(2) == 0 {
				q.push(&Record{order: uint64(next)})
				next++
			} else if left > 0 && (left > most || rng.IntN(2) == 0) {
				require.EqualValues(t, first, q.pop().order)
				first++
			}
			require.Len(t, q.live(), next-first)
		}
		for i, r := range q.all[:cap(q.all)] {
			require.Equal(t, i >= q.gone && i < len(q.all), r != nil)
		}
		require.LessOrEqual(t, cap(q.all), 4*(2*len(q.live())+16)+64)
	}
}
