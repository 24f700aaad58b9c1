package storage

import (
	"errors"

	"example.com/govnode/session"
)

// lostSight notes that nobody knows what became of a swap. Those that cannot be
// sent again stay in the round until it is known or they are late.
func (x *round) lostSight(d *draft, err error) {
	x.r.log.Warn("the connection to Redis broke with a round under way; finding out what became of it",
		"namespace", x.p.ns, "error", err)
	keys := make([]session.Key, len(x.wants))
	for i, w := range x.wants {
		keys[i] = w.key
	}
	x.r.cache.forget(keys)
	a := &attempt{stamp: d.s.stamp, results: d.results, writes: map[session.Key]stamp{}}
	for i, wrote := range d.wrote {
		if wrote {
			a.writes[keys[i]] = d.was[i].stamp
		}
	}
	a.batches = append([]*batch(nil), x.batches...)
	for _, b := range a.batches {
		b.sent = true
	}
	x.sent = append(x.sent, a)
}

// appliedBefore finds out whether a swap whose outcome was not known was
// applied, by the stamps of what it wrote, and answers its batches if so. If all
// that it would have written was written by others since, nobody can say: then
// commands that may be repeated are, and the others end with an unknown outcome.
func (x *round) appliedBefore(was []entry) bool {
	stamps := map[session.Key]stamp{}
	for i, w := range x.wants {
		stamps[w.key] = was[i].stamp
	}
	for _, a := range x.sent {
		if len(a.writes) == 0 {
			continue
		}
		untouched, overwritten := false, true
		for k, before := range a.writes {
			at, ok := stamps[k]
			if ok && at == a.stamp {
				x.answer(a.batches, a.results)
				x.r.tell()
				return true
			}
			untouched = untouched || ok && at == before
			overwritten = overwritten && ok && at != before
		}
		if !untouched && overwritten {
			x.dropUnrepeatable(a)
		}
	}
	return len(x.batches) == 0
}

// dropUnrepeatable answers those of an attempt that must not be applied twice.
func (x *round) dropUnrepeatable(a *attempt) {
	for _, b := range a.batches {
		for _, c := range b.cmds {
			if !session.Repeatable(c) {
				x.remove(b)
				b.fail(Lost(errors.New("the connection broke, and others have changed the records since")))
				break
			}
		}
	}
}

func (x *round) remove(b *batch) bool {
	for i, y := range x.batches {
		if y == b {
			x.batches = append(x.batches[:i], x.batches[i+1:]...)
			return true
		}
	}
	return false
}
