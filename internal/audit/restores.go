package audit

import (
	"time"
)

// A restore replaces the whole state by an older one, and raises its generation. Changes
// of an older generation may have been taken back by it, chains and all.
//
// The generation alone does not tell: that of a Redis goes up as well where it has lost
// what it had acknowledged, and then what is missing is to be named. So a restore counts
// if a line tells of it, and if the state stands behind it: one that was rolled back to
// before the restore does not.

// RestoredEvent is the type of the lines that tell of a restore.
const RestoredEvent = "snapshot_restored"

// A restore is one that a line tells of.
type restore struct {
	generation uint32 // of the state behind it, or that it has if the restore came into force; 0 if nobody knows that
	unknown    bool   // whether it came into force, or which generation that is
	at         time.Time
}

func (v *verifier) noteRestore(at *placed) {
	when, err := time.Parse(time.RFC3339Nano, at.At)
	if err != nil {
		v.wrong(at, "the time of the restore cannot be read: %v", err)
		return
	}
	v.restores = append(v.restores, restore{at.Generation, at.Outcome == "unknown" || at.Generation == 0, when})
}

// takenBack reports whether a restore may have taken a change back.
func (v *verifier) takenBack(l *link) bool {
	stands := v.against.Heads.generation(l.Chain.Namespace())
	if l.Generation >= stands {
		return false
	}
	at, err := time.Parse(time.RFC3339Nano, l.at)
	for _, r := range v.restores {
		switch {
		case r.generation > l.Generation && r.generation <= stands:
			return true
		case r.unknown && err == nil && !at.After(r.at.Add(clocksApart)):
			return true
		}
	}
	return false
}

// generation is that at which the state of a namespace stands, as far as is known: no
// change of it is of a newer one.
func (h *Heads) generation(ns string) uint32 {
	newest := h.Generations[ns]
	for _, l := range h.Links {
		if l.Chain.Namespace() == ns {
			newest = max(newest, l.Generation)
		}
	}
	return newest
}

// clocksApart is by how much the clocks of two nodes may differ.
const clocksApart = time.Minute

// mayBeLater reports whether a change may have been made after the heads were read.
func (h *Heads) mayBeLater(l *link) bool {
	at, err := time.Parse(time.RFC3339Nano, l.at)
	return err == nil && at.After(h.At.Add(-clocksApart))
}
