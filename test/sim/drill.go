package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/check"
)

// The drill is what every run ends with, in a cluster that is whole: what is
// promised there in seconds.

const (
	drillTTL  = 3 * time.Second
	drillRest = 20 * time.Second // for which another node leads
	drillPool = "drill"
)

// drill reports whether all of it came about, and what it found. A leader hears late
// of the next one; one is gone before others hear of what it answered last; a node that
// does not lead is behind, and deaf; a call is denied while that cannot be written down;
// an operator does all that he can, where that is ordered; the leadership goes to another
// node and comes back, with a holder of a slot that is killed meanwhile; if outage is set
// there is no majority for a while; and the leader's time of day jumps.
func (f *fleet) drill(w *worker, outage, ordered bool) (done bool, broken []check.Violation) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	f.late(ctx, w)
	if f.ready(healWithin) != nil {
		return false, nil
	}
	f.heir(ctx, w)
	if f.ready(healWithin) != nil {
		return false, nil
	}
	f.behind(ctx, w)
	f.deaf(ctx, w)
	if f.ready(healWithin) != nil {
		return false, nil
	}
	f.unwritable(ctx, w)
	if ordered && !f.orders(w) {
		return false, nil
	}
	first := f.leader()
	if _, err := w.client.PutPool(context.Background(), client.Pool{Name: drillPool, Slots: 1}); err != nil || first == nil || !f.hand("") {
		return false, nil // elections are for others to judge
	}
	time.Sleep(drillRest)
	if f.leader() == first {
		return false, nil
	}
	took := func(at *host, id string, wait time.Duration) bool {
		req := &v1.AcquireSlotRequest{Pool: drillPool, SlotId: id, Client: w.name, Ttl: durationpb.New(drillTTL)}
		if wait > 0 {
			req.Wait = durationpb.New(wait)
		}
		c := govnodev1connect.NewSlotServiceClient(w.http, "http://"+at.apiAddress())
		res, err := c.AcquireSlot(ctx, req)
		return err == nil && res.Outcome == v1.Outcome_OUTCOME_ADMITTED
	}
	if !took(f.leader(), newID(), 0) { // by somebody who never renews
		return false, nil
	}
	at := time.Now()
	const most = drillTTL + leaseEnds
	if !f.hand(first.name) || time.Since(at) > most/2 { // likewise
		return false, nil
	}
	if l := f.leader(); l != nil && (!took(l, newID(), most-time.Since(at)) || time.Since(at) > most) {
		broken = append(broken, check.Violation{Check: "lapse", Text: fmt.Sprintf("a slot of %v whose holder was killed came free %v after it was granted, or not by then, with a leader that leads once more", drillTTL, time.Since(at))})
	}
	if outage {
		found, ok := f.outage(ctx, w)
		if broken = append(broken, found...); !ok {
			return false, broken
		}
	}
	if l := f.leader(); l != nil {
		l.clock.jump(1, time.Hour)
		time.Sleep(time.Second)
		took(l, newID(), 0) // whatever comes of it stands in the log with its time
	}
	return true, broken
}

// outage lets no node reach another for longer than a slot lasts that nobody renews
// meanwhile: of that time only the first seconds count, so that it is held behind it.
func (f *fleet) outage(ctx context.Context, w *worker) (broken []check.Violation, ok bool) {
	const pool, ttl, lasts = "outage", 30 * time.Second, 45 * time.Second
	if _, err := w.client.PutPool(ctx, client.Pool{Name: pool, Slots: 1}); err != nil {
		return nil, false
	}
	slots := govnodev1connect.NewSlotServiceClient(w.http, "http://"+f.hosts[0].apiAddress())
	took, err := slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: pool, SlotId: newID(), Client: w.name, Ttl: durationpb.New(ttl)})
	if err != nil || took.Outcome != v1.Outcome_OUTCOME_ADMITTED {
		return nil, false
	}
	var cut []link
	for _, name := range f.names() {
		cut = append(cut, links(name, f.names(), true, false)...)
	}
	mend := f.network.hold(cut...)
	time.Sleep(lasts)
	mend()
	mended := time.Now()
	if f.ready(healWithin) != nil {
		return nil, false
	}
	res, err := slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: pool})
	if since := time.Since(mended); err == nil && since < ttl/2 && len(res.Slots) != 1 {
		broken = append(broken, check.Violation{Check: "outage", Text: fmt.Sprintf("a slot of %v ended in %v without a majority, and %v behind them", ttl, lasts, since)})
	}
	return broken, true
}

// late lets a leader hear later than others that it leads no more, and reads from it
// what was changed meanwhile.
func (f *fleet) late(ctx context.Context, w *worker) {
	l := f.leader()
	if l == nil {
		return
	}
	at := slices.Index(f.hosts, l)
	faster := f.network.slow(300*time.Millisecond, links(l.name, f.names(), false, true)...)
	defer faster()
	time.Sleep(time.Second)
	var handing sync.WaitGroup
	handing.Go(func() { _ = l.up().TransferLeadership(ctx, "") })
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		o := check.Op{Client: w.name, Kind: check.Increment, Object: counters[0], ID: newID(), Amount: 1, Call: w.recorder.now()}
		o = w.sendTo(ctx, w.counters[(at+1)%len(f.hosts)], o, false)
		w.recorder.done(o)
		if o.Outcome == check.Applied {
			w.readAt(ctx, w.counters[at], o.Object)
		}
	}
	handing.Wait()
}

// heir cuts a leader off right behind an answer, before others have heard that what it
// answered is committed, and reads from each of them, until one leads and for a while then,
// with disks that leave some time between the two.
func (f *fleet) heir(ctx context.Context, w *worker) {
	l := f.leader()
	if l == nil {
		return
	}
	const slow = 60 * time.Millisecond
	leads := slices.Index(f.hosts, l)
	faster := f.network.slow(slow, links(l.name, f.names(), true, false)...)
	var mend []func()
	for i, h := range f.hosts {
		if i != leads {
			mend = append(mend, h.disk.slow(slow))
		}
	}
	o := check.Op{Client: w.name, Kind: check.Increment, Object: counters[0], ID: newID(), Amount: 1, Call: w.recorder.now()}
	o = w.sendTo(ctx, w.counters[leads], o, false)
	w.recorder.done(o)
	mend = append(mend, f.network.hold(links(l.name, f.names(), true, true)...), faster)
	var reads sync.WaitGroup
	for i := range f.hosts {
		if i != leads {
			reads.Go(func() {
				for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					w.readAt(ctx, w.counters[i], o.Object)
				}
			})
		}
	}
	reads.Wait()
	for _, m := range mend {
		m()
	}
}

// behind lets a node that does not lead be slow to write, so that it applies late and one after
// another what is acknowledged without it, and reads from it what was acknowledged last. Then
// it is told to kill whose session it does not have yet.
func (f *fleet) behind(ctx context.Context, w *worker) {
	l := f.leader()
	if l == nil {
		return
	}
	leads := slices.Index(f.hosts, l)
	at := (leads + 1 + w.rng.IntN(len(f.hosts)-1)) % len(f.hosts)
	mend := f.hosts[at].disk.slow(100 * time.Millisecond)
	var reads sync.WaitGroup
	for i := range 24 {
		o := check.Op{Client: w.name, Kind: check.Increment, Object: counters[i%len(counters)], ID: newID(), Amount: 1, Call: w.recorder.now()}
		o = w.sendTo(ctx, w.counters[leads], o, false)
		w.recorder.done(o)
		if o.Outcome == check.Applied {
			reads.Go(func() { w.readAt(ctx, w.counters[at], o.Object) })
		}
		time.Sleep(time.Duration(w.rng.IntN(150)) * time.Millisecond) // else it applies all of them at once
	}
	reads.Wait()
	w.killedAt(ctx, leads, at)
	mend()
}

// deaf lets a node that does not lead hear nothing of the others for a while, and for longer
// than it keeps a request that it can hand to nobody. What it has been asked for comes to the
// leader, and the answer does not come back. Without an id it is not sent again.
func (f *fleet) deaf(ctx context.Context, w *worker) {
	f.hearsNothing(w, 3*time.Second, func(at int, under *sync.WaitGroup) {
		under.Go(func() { w.onceAt(ctx, w.counters[at]) })
	})
	if f.ready(healWithin) != nil {
		return
	}
	const lasts = 9 * time.Second
	f.hearsNothing(w, lasts, func(at int, under *sync.WaitGroup) {
		for i := range 4 {
			o := check.Op{Client: w.name, Kind: check.Increment, Object: counters[i%len(counters)], ID: newID(), Amount: 1, Call: w.recorder.now()}
			under.Go(func() { w.recorder.done(w.sendFor(ctx, 2*lasts, w.counters[at], o, false)) })
			time.Sleep(time.Duration(w.rng.IntN(500)) * time.Millisecond)
		}
	})
}

// hearsNothing lets a node that does not lead hear nothing of the others for a time from when
// it was asked, and waits for who has asked.
func (f *fleet) hearsNothing(w *worker, lasts time.Duration, ask func(at int, under *sync.WaitGroup)) {
	l := f.leader()
	if l == nil {
		return
	}
	at := (slices.Index(f.hosts, l) + 1 + w.rng.IntN(len(f.hosts)-1)) % len(f.hosts)
	mend := f.network.hold(links(f.hosts[at].name, f.names(), false, true)...)
	var under sync.WaitGroup
	ask(at, &under)
	time.Sleep(lasts)
	mend()
	under.Wait()
}

// unwritable lets the policy deny a call while no audit log can be written.
func (f *fleet) unwritable(ctx context.Context, w *worker) {
	s := w.open(ctx)
	if s == nil {
		return
	}
	var releases []func()
	for _, h := range f.hosts {
		releases = append(releases, h.audit.fill())
	}
	var denied sync.WaitGroup
	denied.Go(func() { w.denied(ctx, s) })
	time.Sleep(time.Second)
	for _, release := range releases {
		release()
	}
	denied.Wait()
	_, _ = s.Close(ctx)
}

// hand gives the leadership to a host, any if it has no name, and reports whether
// that leads.
func (f *fleet) hand(to string) bool {
	l := f.leader()
	if l == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if l.up().TransferLeadership(ctx, to) != nil {
		return false
	}
	return eventually(healWithin, func() error {
		if now := f.leader(); now == nil || now == l || to != "" && now.name != to {
			return fmt.Errorf("%s does not lead", to)
		}
		return f.ready(time.Second)
	}) == nil
}

// timed holds log time to the time in which the entries were written: between two
// of them passes at least as much as their stamps say, but for what a disk took.
type timed struct {
	most   time.Duration // by how much time was ahead of a stamp
	broken []check.Violation
}

// diskTakes is how long an entry may take from its stamp to a disk.
const diskTakes = 15 * time.Second

func (t *timed) entry(index uint64, stamp, written time.Duration) {
	ahead := written - stamp
	if ahead < t.most-diskTakes && len(t.broken) == 0 {
		t.broken = append(t.broken, check.Violation{Check: "time", Text: fmt.Sprintf(
			"entry %d is stamped with %v and was written at %v: log time has gone on by %v more than time has", index, stamp, written, t.most-ahead)})
	}
	t.most = max(t.most, ahead)
}
