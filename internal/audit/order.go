package audit

import (
	"cmp"
	"slices"
	"time"
)

// A part is what one file has of a node's lines, as they stand in it.
type part struct {
	lines []*placed
	began time.Time // the time of the first line; zero if it has none
}

func (p *part) first() *placed { return p.lines[0] }
func (p *part) last() *placed  { return p.lines[len(p.lines)-1] }

// follows reports whether a part goes on where another one ends.
func (p *part) follows(q *part) bool {
	return p.first().Seq == q.last().Seq+1 && next(q.last().hash, p.first().body) == p.first().hash
}

// ordered puts the lines of a node in the order in which they were written, though its
// files were given in any. Their lines are not moved.
//
// Numbers alone do not tell where a log was begun anew, since then two files begin with
// line 1, and those behind them may be of either. So a part belongs to the log whose end
// its first line was sealed on, else to the newest that had been begun when it was
// written; and logs follow each other in the order of the times at which they began.
func ordered(lines []*placed) []*placed {
	var parts []*part
	byFile := map[string]*part{}
	for _, l := range lines {
		p := byFile[l.file]
		if p == nil {
			p = &part{}
			p.began, _ = time.Parse(time.RFC3339Nano, l.At)
			byFile[l.file] = p
			parts = append(parts, p)
		}
		p.lines = append(p.lines, l)
	}
	slices.SortStableFunc(parts, func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.first().Seq, b.first().Seq), a.began.Compare(b.began), cmp.Compare(a.first().file, b.first().file))
	})
	var logs [][]*part
	for _, p := range parts {
		at := -1
		for i, log := range logs {
			if p.follows(log[len(log)-1]) {
				at = i
				break
			}
			if p.first().Seq > 1 && !log[0].began.After(p.began) && (at < 0 || !log[0].began.Before(logs[at][0].began)) {
				at = i
			}
		}
		if at < 0 {
			logs = append(logs, []*part{p})
		} else {
			logs[at] = append(logs[at], p)
		}
	}
	slices.SortStableFunc(logs, func(a, b []*part) int { return a[0].began.Compare(b[0].began) })
	all := make([]*placed, 0, len(lines))
	for _, log := range logs {
		for _, p := range log {
			all = append(all, p.lines...)
		}
	}
	return all
}
