package window

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errOver = errors.New("over")

// A parcel is an item of the tests.
type parcel struct {
	n    int
	size Size
	gone bool
}

func (p *parcel) Size() Size { return p.size }
func (p *parcel) Take() bool { return !p.gone }

// single returns an item of one member.
func single(n, bytes int) *parcel { return &parcel{n: n, size: Size{1, bytes}} }

// locked runs f under a lock.
func locked(l sync.Locker, f func()) {
	l.Lock()
	defer l.Unlock()
	f()
}

// What a message is made of, and what stays in line.
func TestMessages(t *testing.T) {
	limits := Limits{Message: Size{3, 100}, Messages: 2, InFlight: 5}
	for name, tt := range map[string]struct {
		limits Limits
		line   []*parcel
		want   [][]int // numbers of the members of each message, nothing being answered
		rest   int
	}{
		"nobody":                   {limits, nil, nil, 0},
		"few go together":          {limits, []*parcel{single(1, 10), single(2, 10)}, [][]int{{1, 2}}, 0},
		"bounded by count":         {limits, []*parcel{single(1, 0), single(2, 0), single(3, 0), single(4, 0)}, [][]int{{1, 2, 3}, {4}}, 0},
		"bounded by bytes":         {limits, []*parcel{single(1, 60), single(2, 40), single(3, 1)}, [][]int{{1, 2}, {3}}, 0},
		"a large one goes alone":   {limits, []*parcel{single(1, 101), single(2, 1)}, [][]int{{1}, {2}}, 0},
		"a large one in between":   {limits, []*parcel{single(1, 1), single(2, 500)}, [][]int{{1}, {2}}, 0},
		"bounded in flight":        {limits, []*parcel{single(1, 0), single(2, 0), single(3, 0), single(4, 0), single(5, 0), single(6, 0)}, [][]int{{1, 2, 3}, {4, 5}}, 1},
		"bounded messages":         {Limits{Message: Size{1, 0}, Messages: 2}, []*parcel{single(1, 0), single(2, 0), single(3, 0)}, [][]int{{1}, {2}}, 1},
		"no bounds":                {Limits{}, []*parcel{single(1, 1e9), single(2, 1e9)}, [][]int{{1, 2}}, 0},
		"the gone are left out":    {limits, []*parcel{{n: 1, size: Size{1, 99}, gone: true}, single(2, 99), {n: 3, size: Size{1, 1}, gone: true}}, [][]int{{2}}, 0},
		"all gone":                 {limits, []*parcel{{n: 1, size: Size{1, 1}, gone: true}}, nil, 0},
		"some that stay together":  {limits, []*parcel{{n: 1, size: Size{2, 10}}, {n: 2, size: Size{2, 10}}}, [][]int{{1}, {2}}, 0},
		"who does not fit waits":   {limits, []*parcel{{n: 1, size: Size{3, 10}}, {n: 2, size: Size{3, 10}}, single(3, 1)}, [][]int{{1}}, 2},
		"more than a window alone": {limits, []*parcel{{n: 1, size: Size{9, 10}}, single(2, 1)}, [][]int{{1}}, 1},
		"as large as a message":    {limits, []*parcel{single(1, 1), {n: 2, size: Size{0, 100}}, single(3, 1)}, [][]int{{1}, {2}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				q := NewQueue[*parcel](&mu, tt.limits)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				locked(&mu, func() {
					for _, p := range tt.line {
						require.NoError(t, q.Add(p))
					}
					var got [][]int
					for {
						m, err := q.Next(ctx, nil)
						if err != nil {
							require.ErrorIs(t, err, context.DeadlineExceeded, "nothing goes before there is an answer")
							break
						}
						var numbers []int
						for _, p := range m {
							numbers = append(numbers, p.n)
						}
						got = append(got, numbers)
					}
					require.Equal(t, tt.want, got)
					line, size := q.Line()
					require.Len(t, line, tt.rest)
					want := Size{}
					for _, p := range line {
						want = want.plus(p.size)
					}
					require.Equal(t, want, size)
				})
			})
		})
	}
}

// The line is bounded, by number and by bytes; who comes first has a place whoever
// waits.
func TestTheLineIsBounded(t *testing.T) {
	var mu sync.Mutex
	q := NewQueue[*parcel](&mu, Limits{Line: Size{3, 100}})
	mu.Lock()
	defer mu.Unlock()
	require.ErrorIs(t, q.Add(&parcel{n: 1, size: Size{4, 1}}), ErrFull)
	require.ErrorIs(t, q.Add(single(2, 101)), ErrFull)
	require.NoError(t, q.Add(single(3, 60)))
	require.ErrorIs(t, q.Add(single(4, 41)), ErrFull)
	require.NoError(t, q.Add(single(5, 40)))
	require.NoError(t, q.Add(single(6, 0)))
	require.ErrorIs(t, q.Add(single(7, 0)), ErrFull)
	require.NoError(t, q.AddFirst(single(8, 50)))
	line, size := q.Line()
	require.Equal(t, []int{8, 3, 5, 6}, []int{line[0].n, line[1].n, line[2].n, line[3].n})
	require.Equal(t, Size{4, 150}, size)
	left := q.Close(errOver)
	require.Len(t, left, 4)
	require.ErrorIs(t, q.Add(single(9, 0)), errOver)
	require.ErrorIs(t, q.AddFirst(single(9, 0)), errOver)
}

// A class has its bound, beyond which members stay what they are; a change of
// class makes room for one who waits, and keeps the bytes.
func TestClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		w := New(&mu, Limits{InFlight: 2, Waiting: 1, Apart: 2, Bytes: 100})
		next := make(chan int)
		go func() {
			for {
				var n int
				locked(&mu, func() { n, _ = w.Admit(t.Context(), 5) })
				next <- n
				if n == 0 {
					return
				}
			}
		}()
		admitted := func() int {
			synctest.Wait()
			select {
			case n := <-next:
				return n
			default:
				return 0
			}
		}
		do := func(f func()) { locked(&mu, f) }
		require.Equal(t, 2, admitted())
		require.Zero(t, admitted(), "there is no third place")
		do(func() { require.Equal(t, 1, w.Move(InFlight, Waiting, 2)) })
		require.Equal(t, 1, admitted())
		do(func() { require.Zero(t, w.Move(InFlight, Waiting, 1)) })
		require.Zero(t, admitted())
		do(func() { require.Equal(t, 1, w.Move(Waiting, Apart, 1)) })
		require.Zero(t, admitted(), "which makes no place")
		do(func() {
			w.Hold(100)
			require.Equal(t, 1, w.Move(InFlight, Apart, 1))
		})
		require.Zero(t, admitted(), "bytes are bounded, whose ever they are")
		do(func() { w.Leave(Apart, Size{1, 1}) })
		require.Equal(t, 1, admitted())
		do(func() {
			w.Close(errOver)
			require.False(t, w.Over())
			w.Leave(Apart, Size{1, 50})
			w.Leave(InFlight, Size{2, 49})
			require.True(t, w.Over())
			require.Equal(t, [classes]int{}, w.count)
			require.Zero(t, w.bytes)
			_, err := w.Admit(t.Context(), 1)
			require.ErrorIs(t, err, errOver)
		})
		<-next
	})
}

// However members come, turn out to take long, are answered and give up: there
// are never more than the bounds, everybody goes in his turn, nobody is
// forgotten, and nothing is left at the end.
func TestNobodyIsForgotten(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			limits := Limits{
				InFlight: 1 + r.IntN(8), Waiting: 1 + r.IntN(4), Apart: 1 + r.IntN(4), Bytes: 50 + r.IntN(200),
				Message: Size{1 + r.IntN(5), 20 + r.IntN(100)}, Messages: 1 + r.IntN(3), Line: Size{Count: 5 + r.IntN(20)},
			}
			type under struct {
				*parcel
				class Class
				of    *bool // its message was heard of
			}
			var mu sync.Mutex
			var sent []int
			var open []under
			q := NewQueue[*parcel](&mu, limits)
			over := make(chan error)
			go func() {
				mu.Lock()
				defer mu.Unlock()
				for {
					m, err := q.Next(t.Context(), nil)
					if err != nil {
						q.Idle()
						over <- err
						return
					}
					require.LessOrEqual(t, len(m), limits.Message.Count)
					heard := new(bool)
					for _, p := range m {
						sent, open = append(sent, p.n), append(open, under{p, InFlight, heard})
					}
				}
			}()
			check := func() {
				require.LessOrEqual(t, q.Count(InFlight), limits.InFlight)
				require.LessOrEqual(t, q.Count(Waiting), limits.Waiting)
				require.LessOrEqual(t, q.Count(Apart), limits.Apart)
				require.LessOrEqual(t, q.bytes, limits.Bytes+limits.Message.Bytes)
				require.LessOrEqual(t, q.Messages(), limits.Messages)
				require.Equal(t, len(open), q.Count(InFlight)+q.Count(Waiting)+q.Count(Apart))
			}
			hear := func(u *under) {
				if !*u.of {
					*u.of = true
					q.Heard()
				}
			}
			answer := func(i int) {
				hear(&open[i])
				q.Leave(open[i].class, open[i].size)
				open = append(open[:i], open[i+1:]...)
			}
			var want []int
			waiting := map[int]*parcel{}
			step := func(n int) {
				switch k := r.IntN(10); {
				case k < 5:
					p := single(n, r.IntN(20))
					if err := q.Add(p); err == nil {
						want, waiting[n] = append(want, n), p
					} else {
						require.ErrorIs(t, err, ErrFull)
						line, _ := q.Line()
						require.Len(t, line, limits.Line.Count)
					}
				case k == 5 && len(open) > 0:
					u := &open[r.IntN(len(open))]
					hear(u)
					to := []Class{Waiting, Apart}[r.IntN(2)]
					if u.class != to && q.Move(u.class, to, 1) == 1 {
						u.class = to
					}
				case k == 6:
					line, _ := q.Line()
					if len(line) > 0 {
						line[r.IntN(len(line))].gone = true
					}
				case len(open) > 0:
					answer(r.IntN(len(open)))
				}
				check()
			}
			for n := range 1000 {
				locked(&mu, func() { step(n) })
				if r.IntN(3) == 0 {
					synctest.Wait()
					locked(&mu, func() {
						check()
						line, _ := q.Line()
						require.False(t, len(line) > 0 && !q.waits, "who waits for a place has somebody who waits for it")
						require.False(t, q.ready() && q.waits, "nobody waits although there is a place")
					})
				}
			}
			for rest := true; rest; { // everything is answered
				synctest.Wait()
				locked(&mu, func() {
					for len(open) > 0 {
						answer(0)
					}
					line, _ := q.Line()
					rest = len(line) > 0
				})
			}
			synctest.Wait()
			locked(&mu, func() {
				for len(open) > 0 {
					answer(0)
				}
				require.Equal(t, [classes]int{}, q.count)
				require.Zero(t, q.bytes)
				require.Zero(t, q.Messages())
				require.Zero(t, q.size)
				require.Empty(t, q.Close(errOver))
			})
			require.ErrorIs(t, <-over, errOver)
			i := 0
			for _, n := range want {
				if i < len(sent) && sent[i] == n {
					i++
				} else {
					require.True(t, waiting[n].gone, "%d was forgotten, or overtaken", n)
				}
			}
			require.Equal(t, len(sent), i)
		})
	}
}

// Who waits is woken when the window closes, and when his context ends; the place
// that he waited for is then another's.
func TestWaitsEnd(t *testing.T) {
	why := errors.New("why")
	for name, wait := range map[string]func(context.Context, sync.Locker, *Queue[*parcel]) error{
		"for a place": func(ctx context.Context, l sync.Locker, q *Queue[*parcel]) (err error) {
			locked(l, func() {
				_, err = q.Admit(ctx, 1)
				if err == nil {
					_, err = q.Admit(ctx, 1)
				}
			})
			return err
		},
		"for a message": func(ctx context.Context, l sync.Locker, q *Queue[*parcel]) (err error) {
			locked(l, func() { _, err = q.Next(ctx, nil) })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				q := NewQueue[*parcel](&mu, Limits{InFlight: 1})
				ctx, cancel := context.WithCancelCause(t.Context())
				got := make(chan error)
				go func() { got <- wait(ctx, &mu, q) }()
				synctest.Wait()
				cancel(why)
				require.ErrorIs(t, <-got, why)
				locked(&mu, func() { q.Leave(InFlight, Size{q.Count(InFlight), 0}) })
				go func() { got <- wait(t.Context(), &mu, q) }()
				synctest.Wait()
				locked(&mu, func() { q.Close(errOver); q.Close(why) })
				require.ErrorIs(t, <-got, errOver, "the first reason counts")
				require.ErrorIs(t, wait(t.Context(), &mu, q), errOver)
			})
		})
	}
}

// What is in line when nobody is let in any more still goes, unless it is taken
// out; then there is no next message.
func TestClosedWithoutALine(t *testing.T) {
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	q := NewQueue[*parcel](&mu, Limits{})
	require.NoError(t, q.Add(single(1, 0)))
	q.Window.Close(errOver)
	m, err := q.Next(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, m, 1)
	_, err = q.Next(t.Context(), m[:0])
	require.ErrorIs(t, err, errOver)
}

// An operation through a window costs no allocation.
func TestNoAllocation(t *testing.T) {
	var mu sync.Mutex
	q := NewQueue[*parcel](&mu, Limits{InFlight: 10, Messages: 2, Message: Size{10, 1000}, Line: Size{100, 0}})
	p, ctx := single(1, 10), t.Context()
	room := make([]*parcel, 0, 10)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		mu.Lock()
		defer mu.Unlock()
		if q.Add(p) != nil {
			t.Fail()
		}
		m, _ := q.Next(ctx, room)
		q.Move(InFlight, Waiting, len(m))
		q.Heard()
		q.Leave(Waiting, p.size)
	}))
}

// BenchmarkQueue is what one operation costs, from many goroutines.
func BenchmarkQueue(b *testing.B) {
	var mu sync.Mutex
	q := NewQueue[*parcel](&mu, Limits{InFlight: 1024, Messages: 2, Message: Size{512, 1 << 17}})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go func() {
		var m []*parcel
		for {
			mu.Lock()
			next, err := q.Next(ctx, m[:0])
			if err != nil {
				mu.Unlock()
				return
			}
			for _, p := range next {
				q.Leave(InFlight, p.size)
			}
			q.Heard()
			m = next
			mu.Unlock()
		}
	}()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		p := single(1, 100)
		for pb.Next() {
			mu.Lock()
			_ = q.Add(p)
			mu.Unlock()
			runtime.Gosched()
		}
	})
}
