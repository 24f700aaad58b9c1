package redis

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// Nodes whose rounds write the same record would make each other's void: of
// those that are under way at once, one counts. So a node that loses a round
// stands in line, in a list of the namespace in Redis. The swap of the one whose
// turn it is calls the next in line and tells it the records that it needs, and
// its node goes to the end. All that came meanwhile goes into its next round.
//
// A turn is a hint and protects nothing, the stamps do. Whoever is called and
// gone is passed over, whoever does not use its turn is not waited for beyond a
// short time, and a node that hears nothing tries its luck.

const (
	// hotFor is how long a record counts as one that several nodes write.
	hotFor = time.Second
	// quietFor is how long a node listens for its turn when there is none.
	quietFor = 5 * time.Second
	// A node waits for its turn eight times as long as it usually takes, and
	// no shorter or longer than this.
	leastWait = 25 * time.Millisecond
	mostWait  = 250 * time.Millisecond
	// maxTold bounds what is told with a turn, in bytes of values.
	maxTold = 256 << 10
)

// turns is where a lane stands in line.
type turns struct {
	called chan []told // with what was told; capacity 1

	// Of the goroutine that runs the lane.
	waits bool // stands in line; see line
	since time.Duration
	usual time.Duration // how long a turn takes to come
	holds bool          // was called and has not swapped yet

	line atomic.Bool // stands in line, for others to see

	mu        sync.Mutex
	name      string // under which it is called; empty: it does not listen
	listening bool
	hot       map[session.Key]time.Duration // when another node last wrote it
}

// told is a record as the node before has written it.
type told struct {
	key   session.Key
	entry wire.Entry
}

// wish returns what the next swap says of turns. Told are the records that other
// nodes write too, and those that several commands of the round are about.
// Alone means that no other node was seen to write them.
func (l *lane) wish(wants []wire.Want, was []wire.Entry, more bool) (w wire.Turn, alone bool) {
	t := &l.turns
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.name == "" {
		return w, t.called != nil && !t.listening
	}
	w.Name, w.More = t.name, "0"
	if more {
		w.More = "1"
	}
	now, size := l.r.cfg.monotonic(), 0
	var numbers []string
	for i := range wants {
		at, hot := t.hot[wants[i].Key]
		if size += was[i].Value; (wants[i].Refs > 1 || hot && now-at < hotFor) && size <= maxTold {
			numbers = append(numbers, strconv.Itoa(i+1))
		} else {
			size -= was[i].Value
		}
	}
	w.Told = strings.Join(numbers, ",")
	return w, false
}

// standIn notes what the reply to a swap says of the line.
func (l *lane) standIn(waits string) {
	t := &l.turns
	t.waits, t.holds = waits == "1", false
	t.line.Store(t.waits)
	t.since = l.r.cfg.monotonic()
	if waits == "2" {
		l.listen(nil)
	}
}

// await waits for the turn of this node, if it stands in line.
func (l *lane) await() {
	t := &l.turns
	if !t.waits && len(t.called) == 0 {
		return
	}
	timer := time.NewTimer(min(max(8*t.usual, leastWait), mostWait))
	defer timer.Stop()
	select {
	case news := <-t.called:
		t.usual += (l.r.cfg.monotonic() - t.since - t.usual) / 8
		t.holds = true
		l.learn(news)
	case <-timer.C:
	case <-l.r.ctx.Done():
	}
	t.waits = false
	t.line.Store(false)
}

// learn takes what was told for the latest. A record that others write and that
// was not told is looked at anew.
func (l *lane) learn(news []told) {
	t := &l.turns
	now := l.r.cfg.monotonic()
	t.mu.Lock()
	var forget []session.Key
	for k, at := range t.hot { // order-free: each for itself
		if now-at >= hotFor {
			delete(t.hot, k)
		} else if !slices.ContainsFunc(news, func(n told) bool { return n.key == k }) {
			forget = append(forget, k)
		}
	}
	for _, n := range news {
		t.hot[n.key] = now
	}
	t.mu.Unlock()
	l.r.cache.forget(forget)
	for _, n := range news {
		l.r.cache.put(n.key, n.entry)
	}
	l.r.tell() // slots may have been handed to some who wait here; their claims come with this turn
}

// inLine reports whether a namespace's records are told to this node soon, so
// that it need not look when it hears that they have changed.
func (r *Store) inLine(ns string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[ns]
	return l != nil && l.turns.line.Load()
}

// pass gives a turn away that there is no use for.
func (l *lane) pass() {
	if !l.turns.holds {
		return
	}
	ctx, cancel := l.r.trip()
	defer cancel()
	e, err := l.p.d.serving(ctx)
	if err != nil {
		return // then nobody has a use for it
	}
	s := l.r.beginSwap(l.p, e, nil)
	s.Turn, _ = l.wish(nil, nil, false)
	now, mono := l.p.d.clock.now()
	if _, _, err := l.r.send(unwatch(ctx), s, nil, now, mono); err != nil {
		l.r.log.Debug("cannot pass a turn on; the next does not wait long for it", "namespace", l.p.NS, "error", err)
	}
	l.standIn(s.waits)
}

// listen listens for turns from now on, since another node writes the records.
func (l *lane) listen(contended []session.Key) {
	t := &l.turns
	if t.called == nil {
		return // a lane for one round
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range contended {
		t.hot[k] = l.r.cfg.monotonic()
	}
	if !t.listening && l.r.begin() {
		t.listening = true
		go func() {
			defer l.r.work.Done()
			l.hear()
		}()
	}
}

// hear notes when this node is called, until that has not happened for a while.
func (l *lane) hear() {
	t := &l.turns
	defer t.setName("", false)
	name := l.p.Turns() + ":" + l.r.name
	sub, where := l.subscribe(name)
	if sub == nil {
		return
	}
	stop := context.AfterFunc(l.r.ctx, func() { sub.Close() })
	defer stop()
	defer sub.Close()
	for {
		v, err := sub.ReceiveTimeout(l.r.ctx, quietFor)
		if err != nil {
			return // it is done again when a round is lost
		}
		switch v := v.(type) {
		case *redis.Subscription:
			t.setName(name, true)
		case *redis.Message:
			l.call(readTold(l.p, v.Payload))
			if l.p.d.current().runid != where {
				return // the slot has moved
			}
		}
	}
}

// subscribe listens at the server on which the swaps run, and returns which that
// is; nil if it is not found. The members of a Redis Cluster pass on to each
// other what is published, but a swap passes over whoever does not listen at its
// own. When a slot has moved swaps are led to where it is now, and the client
// learns later that it has: so where it would listen is held against the epoch.
func (l *lane) subscribe(name string) (sub *redis.PubSub, where string) {
	cluster, ok := l.r.client.(*redis.ClusterClient)
	if !ok {
		where = l.p.d.current().runid
		return l.r.client.Subscribe(l.r.ctx, name), where
	}
	ctx, cancel := context.WithTimeout(l.r.ctx, quietFor)
	defer cancel()
	for ; ctx.Err() == nil; rest(ctx, silentPause) {
		where = l.p.d.current().runid
		if one, err := cluster.MasterForKey(ctx, name); err == nil {
			if info, err := one.Info(ctx, "server").Result(); err == nil && parseInfo(info)["run_id"] == where {
				return one.Subscribe(l.r.ctx, name), where
			}
		}
		cluster.ReloadState(ctx)
	}
	return nil, ""
}

func (t *turns) setName(name string, listening bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.name, t.listening = name, listening
}

// call hands the turn to whoever runs the lane; the latest counts.
func (l *lane) call(news []told) {
	select {
	case <-l.turns.called:
	default:
	}
	l.turns.called <- news
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start() // to pass it on, if nothing waits
}

// readTold reads the records that are told with a turn: each the length of its
// key, the key, the length of the value, the value. What cannot be read is left
// out; the swap finds that out.
func readTold(p *place, message string) (all []told) {
	text := func() (s string, ok bool) {
		if len(message) < 4 {
			return "", false
		}
		n := int(binary.BigEndian.Uint32([]byte(message[:4])))
		if message = message[4:]; n > len(message) {
			return "", false
		}
		s, message = message[:n], message[n:]
		return s, true
	}
	for {
		name, _ := text()
		value, ok := text()
		if !ok {
			return all
		}
		k := session.Key(strings.TrimPrefix(name, p.Record("")))
		e, err := wire.DecodeValue(k, value)
		if e.Seen = p.d.r.cfg.monotonic(); err == nil {
			all = append(all, told{k, e})
		}
	}
}
