package record

import (
	"container/heap"
	"container/list"
	"crypto/rand"
	"slices"
	"sort"
)

// A partition is what the journal keeps of one namespace. All that a follower is
// told of places comes from here.
type partition struct {
	ns        string
	life      string         // names this partition in cursors; drawn, so that it tells nothing else
	records   queue[*Record] // in the order of their events
	next      uint64         // sequence of the next event; the first is 1
	followers int
	news      chan struct{} // closed when there are new events; nil if nobody waits
	idle      *list.Element // its place among those that may be forgotten; nil while it is none

	aged   room    // what it holds of the older half: the first of its records
	share  float64 // how much of the older half that is
	oldest uint64  // order of its first record
	at     int     // its place in heaviest, from 1 on; 0 if it is not there
}

// maxIdle bounds the partitions that are remembered though nothing is kept in them
// and nobody follows them. One that is forgotten begins anew with another life: no
// cursor of the old one passes for one of the new one.
const maxIdle = 4096

// partition returns that of a namespace, which is made where there is none; j.mu is held.
func (j *Journal) partition(ns string) *partition {
	p := j.partitions[ns]
	if p == nil {
		p = &partition{ns: ns, life: rand.Text(), next: 1}
		j.partitions[ns] = p
	}
	return p
}

// wake notes that a partition has a record or a follower again; j.mu is held.
func (j *Journal) wake(p *partition) {
	if p.idle != nil {
		j.idle.Remove(p.idle)
		p.idle = nil
	}
}

// settle notes where a partition has neither records nor followers any more, and
// forgets the one for which that has been so for longest, where there are too many;
// j.mu is held.
func (j *Journal) settle(p *partition) {
	if p.followers > 0 || len(p.records.live()) > 0 {
		return
	}
	p.records = queue[*Record]{}
	p.idle = j.idle.PushBack(p)
	if j.idle.Len() > j.mostIdle {
		forgotten := j.idle.Remove(j.idle.Front()).(*partition)
		delete(j.partitions, forgotten.ns)
	}
}

// A reading is a part of a partition as a follower gets it.
type reading struct {
	records []*Record
	missed  uint64          // events that are not kept any more
	next    uint64          // sequence from which to go on
	news    <-chan struct{} // closed when there is more; nil if there is now
}

// maxReading bounds the records of one reading.
const maxReading = 256

// read returns records with events from a sequence on.
func (j *Journal) read(p *partition, from uint64) reading {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := reading{next: from}
	if oldest := p.first(); from < oldest {
		r.missed, r.next = oldest-from, oldest
	}
	records := p.records.live()
	i := sort.Search(len(records), func(i int) bool { return records[i].first+records[i].events > r.next })
	r.records = slices.Clone(records[i:min(len(records), i+maxReading)])
	if n := len(r.records); n > 0 {
		last := r.records[n-1]
		r.next = last.first + last.events
		return r
	}
	if p.news == nil {
		p.news = make(chan struct{})
	}
	r.news = p.news
	return r
}

// first is the sequence of the oldest event that is kept.
func (p *partition) first() uint64 {
	if records := p.records.live(); len(records) > 0 {
		return records[0].first
	}
	return p.next
}

// bounds returns the sequences of the oldest event and of the next one.
func (j *Journal) bounds(p *partition) (oldest, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return p.first(), p.next
}

// enter counts a follower of a namespace in, if there is room for one more, and
// returns the partition that it follows; else nil.
func (j *Journal) enter(ns string, most int) *partition {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.followers >= most {
		return nil
	}
	j.followers++
	p := j.partition(ns)
	j.wake(p)
	p.followers++
	return p
}

func (j *Journal) leave(p *partition) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.followers--
	p.followers--
	j.settle(p)
}

// A room is so many records and bytes.
type room struct{ records, bytes int }

func (m *room) add(size int) {
	m.records++
	m.bytes += size
}

func (m *room) take(size int) {
	m.records--
	m.bytes -= size
}

func (m room) within(most room) bool { return m.records <= most.records && m.bytes <= most.bytes }

// share is how much of a room another is, by that of the two of which it is more
// (the dominant share): so nobody holds all of the bytes by few records.
func (m room) share(of room) float64 {
	return max(float64(m.records)/float64(of.records), float64(m.bytes)/float64(of.bytes))
}

// weigh puts a partition where it belongs by its share; j.mu is held.
func (j *Journal) weigh(p *partition) {
	if p.aged.records == 0 {
		heap.Remove(&j.largest, p.at-1)
		return
	}
	p.share, p.oldest = p.aged.share(j.older), p.records.live()[0].order
	if p.at == 0 {
		heap.Push(&j.largest, p)
	} else {
		heap.Fix(&j.largest, p.at-1)
	}
}

// heaviest are the partitions that hold something of the older half, as a heap:
// the first holds the most. Of two with the same share it is the one with the
// oldest record.
type heaviest []*partition

// Len implements heap.Interface.
func (h heaviest) Len() int { return len(h) }

// Less implements heap.Interface.
func (h heaviest) Less(a, b int) bool {
	if h[a].share != h[b].share {
		return h[a].share > h[b].share
	}
	return h[a].oldest < h[b].oldest
}

// Swap implements heap.Interface.
func (h heaviest) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].at, h[b].at = a+1, b+1
}

// Push implements heap.Interface.
func (h *heaviest) Push(x any) {
	p := x.(*partition)
	*h = append(*h, p)
	p.at = len(*h)
}

// Pop implements heap.Interface.
func (h *heaviest) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last], *h, p.at = nil, (*h)[:last], 0
	return p
}

// A queue is what comes in order, whose first can be taken out.
type queue[T any] struct {
	all  []T
	gone int // of the first of all, how many were taken out
}

func (q *queue[T]) live() []T { return q.all[q.gone:] }

func (q *queue[T]) push(r T) { q.all = append(q.all, r) }

// pop takes the first out. Where more are gone than are left, these move to the
// front, which costs one move at most for each that went; what has become much
// smaller gives its memory back.
func (q *queue[T]) pop() T {
	r := q.all[q.gone]
	clear(q.all[q.gone : q.gone+1])
	q.gone++
	if left := q.live(); q.gone >= 16 && q.gone > len(left) {
		n := copy(q.all, left)
		clear(q.all[n:])
		q.all, q.gone = q.all[:n], 0
		if cap(q.all) > 4*n+64 {
			q.all = slices.Clone(q.all)
		}
	}
	return r
}
