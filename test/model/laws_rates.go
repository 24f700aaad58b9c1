package model

import (
	"cmp"
	"slices"
	"time"

	"example.com/govnode/session"
)

// The law of rates: no window holds more than the limit under which somebody is
// admitted.

// A window is what was admitted at a rate, in order of time.
type window struct {
	limit    int32
	per      time.Duration // the longest that was asked under of late
	admitted []spending
	known    map[string]bool  // who was admitted ever
	held     map[string]int32 // under which limit, by those who wait for another rate
}

type spending struct {
	at    time.Duration
	who   string
	cost  int64
	limit int32
}

func (l *laws) window(k session.Key) *window {
	if l.rates[k] == nil {
		l.rates[k] = &window{known: map[string]bool{}, held: map[string]int32{}}
	}
	return l.rates[k]
}

// lasts takes over how long windows are. What shorter ones had let go of is not
// known to longer ones.
func (w *window) lasts(now, per time.Duration) {
	if per == w.per {
		return
	}
	w.admitted = slices.DeleteFunc(w.admitted, func(s spending) bool { return now-s.at >= min(per, w.per) })
	w.per = per
}

// holds takes note of the limit under which somebody who waits was given what he keeps
// until he is admitted, if he was; 0 is that of the rate. Anew: he waits since now.
func (w *window) holds(who string, limit int32, given, anew bool) {
	if anew {
		delete(w.held, who)
	}
	if _, known := w.held[who]; given && !known {
		w.held[who] = cmp.Or(limit, w.limit)
	}
}

// spends holds what is admitted to the law; a limit of 0 is that of the rate. Who
// was admitted before is not admitted again. Who claims has held his place since
// before others were admitted, under higher limits perhaps, which then count, as does
// the one under which he was given it.
func (l *laws) spends(s *session.State, k session.Key, who string, cost, limit int32, per time.Duration, claims bool) {
	w := l.window(k)
	if p, ok := s.Get(k).(*session.Pool); ok {
		w.lasts(l.now, p.Per)
	}
	if limit == 0 {
		limit, per = w.limit, w.per
	}
	if w.known[who] {
		return
	}
	w.known[who] = true
	if claims {
		limit = max(limit, w.held[who])
	}
	w.admitted = append(w.admitted, spending{l.now, who, int64(cost), limit})
	var sum int64
	for _, s := range w.admitted {
		if l.now-s.at < per {
			if sum += s.cost; claims {
				limit = max(limit, s.limit)
			}
		}
	}
	if sum > int64(limit) {
		l.breaks("%s admitted %d within %v, and its limit is %d: %v", k, sum, per, limit, w.admitted)
	}
}

// corrects takes back what a call did not use.
func (l *laws) corrects(who string, c *session.End) {
	if c.Tokens < 0 {
		return
	}
	for _, name := range c.Rates {
		w := l.window(session.PoolKey(c.NS, name))
		for i := range w.admitted {
			if s := &w.admitted[i]; s.who == who {
				s.cost = min(s.cost, c.Tokens)
			}
		}
	}
}
