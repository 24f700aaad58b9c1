package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/govnode/test/alone"
	"example.com/govnode/test/check"
)

// handedOn is how soon another node leads when a leader has ended in order, which is
// sooner than any notices that one has died.
const handedOn = 400 * time.Millisecond

// goes lets nodes go at which others wait, in a cluster that is whole: one that leads and one
// that does not, in order and by a crash.
//
// Whom a leader hands on to may fail to be elected, once in a while, and then it takes as long
// as if the leader had died: that it is so three times in a row is wrong.
func (f *fleet) goes(ctx context.Context, w *worker) (done bool, broken []check.Violation) {
	late := 0
	ends := []bool{true, w.rng.IntN(2) == 0}
	for i := 0; i < len(ends); i++ {
		inOrder := ends[i]
		l := f.leader()
		if l == nil {
			return false, broken
		}
		at := w.rng.IntN(len(f.hosts))
		if i == 0 || late > 0 || w.rng.IntN(2) == 0 {
			at = slices.Index(f.hosts, l)
		}
		h := f.hosts[at]
		leave := func() { h.crash(false) }
		if inOrder {
			leave = func() {
				_ = h.stop()
				if err := eventually(handedOn, func() error {
					if f.leader() == nil {
						return fmt.Errorf("%s led and has ended in order, and nobody leads in its place %v later", h.name, handedOn)
					}
					return nil
				}); err == nil {
					late = 0
				} else if late++; late < 3 {
					ends = append(ends, true)
				} else {
					broken = append(broken, check.Violation{Check: "stop", Text: err.Error()})
				}
			}
		}
		whole := w.alone.Goes(ctx, alone.Going{Node: at, InOrder: inOrder, Go: leave, Keep: 12 * time.Second})
		var names entrance
		for _, other := range f.hosts {
			if other != h {
				names.join = append(names.join, other.raftAddress())
			}
		}
		if h.down() {
			if err := h.start(names); err != nil {
				broken = append(broken, check.Violation{Check: "stop", Text: fmt.Sprintf("%s does not start again: %v", h.name, err)})
			}
		}
		if f.ready(healWithin) != nil || !whole {
			return false, broken
		}
	}
	return true, broken
}

// Goes is what befalls those who wait at a node that goes, for who runs real processes with
// which nothing is wrong else.
func (l Workload) Goes(ctx context.Context, g alone.Going) (whole bool, broken []string, err error) {
	rec := &recorder{start: l.Start}
	w, err := l.worker(0, rec)
	if err != nil {
		return false, nil, err
	}
	whole = w.alone.Goes(ctx, g)
	for _, v := range rec.broken {
		broken = append(broken, v.String())
	}
	return whole, broken, w.close()
}
