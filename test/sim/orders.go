package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/test/alone"
)

// Orders are what an operator does with a cluster that is whole, by its API, and what
// each answer and each node say of it.

const (
	// ordered is for how long one order may go on.
	ordered = 30 * time.Second
	// few are entries that a node may be behind while it is up to date.
	few = 4
)

// An operator gives orders to a cluster with which nothing else goes wrong. It goes on
// with nothing once nobody has answered, or something is wrong.
type operator struct {
	fleet *fleet
	w     *worker
	rng   *rand.Rand
	nodes map[*host]govnodev1connect.ClusterServiceClient
	base  []string // the members, in the order in which they came
	over  bool
}

// orders gives all of them, and reports whether the cluster is whole again.
func (f *fleet) orders(w *worker) bool {
	o := &operator{fleet: f, w: w, rng: w.rng, nodes: map[*host]govnodev1connect.ClusterServiceClient{}}
	for _, h := range f.hosts {
		o.nodes[h] = govnodev1connect.NewClusterServiceClient(w.http, "http://"+h.apiAddress())
	}
	for _, step := range []func(){o.whole, o.hands, o.whole, o.alone, o.copies, o.repairs, o.away, o.whole, o.leaves, o.whole} {
		if !o.over {
			step()
		}
	}
	if o.over {
		o.mend()
	}
	return !o.over && f.ready(healWithin) == nil
}

// mend lets everybody be a member again where the orders have ended early.
func (o *operator) mend() {
	for _, h := range o.fleet.hosts {
		if h.down() {
			_ = h.start(o.entrance(h))
		}
		if eventually(healWithin, func() error { return votes(h, 0) }) != nil {
			h.lose(false)
			_ = h.start(o.entrance(h))
			_ = eventually(healWithin, func() error { return votes(h, 0) })
		}
	}
}

// entrance is how a host becomes a member that may have been one.
func (o *operator) entrance(h *host) (e entrance) {
	for _, other := range o.fleet.hosts {
		if other != h {
			e.join = append(e.join, other.raftAddress())
		}
	}
	e.replace = h.disk.blank()
	return e
}

// wrong says what is wrong, if it is, and ends the orders.
func (o *operator) wrong(wrong bool, format string, args ...any) {
	if wrong && !o.over {
		o.over = true
		o.w.recorder.broke("orders", format, args...)
	}
}

// any returns a host that is none of some.
func (o *operator) any(but ...*host) *host {
	for {
		if h := o.fleet.hosts[o.rng.IntN(len(o.fleet.hosts))]; !slices.Contains(but, h) {
			return h
		}
	}
}

// at asks a node once.
func at[Q, R any](ask func(context.Context, Q) (R, error), q Q) (R, error) {
	ctx, cancel := context.WithTimeout(context.Background(), ordered)
	defer cancel()
	return ask(ctx, q)
}

// answer asks a node until it answers: with a whole cluster it does.
func answer[Q, R any](o *operator, what string, ask func(context.Context, Q) (R, error), q Q) (r R, err error) {
	for range 3 {
		if r, err = at(ask, q); err == nil || refusal(err) != "" {
			return r, err
		}
		time.Sleep(time.Second)
	}
	o.wrong(true, "%s has no answer, and nothing is wrong with the cluster: %v", what, err)
	return r, err
}

// done asks for what has to be done.
func done[Q, R any](o *operator, what string, ask func(context.Context, Q) (R, error), q Q) (r R) {
	if o.over {
		return r
	}
	r, err := answer(o, what, ask, q)
	o.wrong(err != nil, "%s is refused: %v", what, err)
	return r
}

// refused asks for what has to be refused for what a field has.
func refused[Q, R any](o *operator, what, field string, ask func(context.Context, Q) (R, error), q Q) {
	if o.over {
		return
	}
	_, err := answer(o, what, ask, q)
	o.wrong(err == nil || refusal(err) != "INVALID_FIELD "+field, "%s is not refused for its field %q: %v", what, field, err)
}

// refusal is why something cannot be done whoever asks, with the field that is wrong; empty
// where it can be, or nobody answers.
func refusal(err error) string {
	var ce *connect.Error
	if !errors.As(err, &ce) || !connect.IsWireError(err) || ce.Code() != connect.CodeInvalidArgument && ce.Code() != connect.CodeFailedPrecondition {
		return ""
	}
	text := string(reasonOf(err))
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if b, ok := m.(*errdetails.BadRequest); ok {
				for _, v := range b.FieldViolations {
					text += " " + v.Field
				}
			}
		}
	}
	return text
}

// status is what a node says now; nil if it says nothing.
func (o *operator) status(h *host) *v1.StatusResponse {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	s, err := o.nodes[h].Status(ctx, &v1.StatusRequest{})
	if err != nil {
		return nil
	}
	o.wrong(s.Node != h.name, "the status of %s is that of %q", h.name, s.Node)
	o.wrong(s.Backend != "raft" || s.Version != "sim", "the status of %s has backend %q and version %q", h.name, s.Backend, s.Version)
	for _, p := range s.Peers {
		i := slices.IndexFunc(o.fleet.hosts, func(h *host) bool { return h.name == p.Node })
		if i < 0 {
			o.wrong(true, "%s shows a member that there never was: %v", h.name, p)
			continue
		}
		o.wrong(p.Address != o.fleet.hosts[i].raftAddress() || p.ApiAddress != "" && p.ApiAddress != o.fleet.hosts[i].apiAddress(), "%s shows a wrong address: %v", h.name, p)
		o.wrong((p.Role == "leader") != (p.Node == s.Leader), "%s shows a role that is not that of %s, while %q leads: %v", h.name, p.Node, s.Leader, p)
		o.wrong(!slices.Contains([]string{"leader", "voter", "nonvoter"}, p.Role), "%s shows a role that there is not: %v", h.name, p)
		o.wrong((p.LastContact == nil) != (p.AppliedIndex == nil), "%s shows half of what it knows: %v", h.name, p)
		up := p.LastContact != nil && p.LastContact.AsDuration() < o.fleet.silent
		o.wrong(p.Up != up, "%s shows as up who was not heard of within %v, or not as up who was: %v", h.name, o.fleet.silent, p)
		o.wrong(p.AppliedIndex == nil && p.Lag != 0, "%s shows a lag of who was never heard of: %v", h.name, p)
		o.wrong(p.Up && p.LastContactAtLeast, "%s shows as up who was not heard of since it runs: %v", h.name, p)
		o.wrong(p.Node == s.SeenBy && (!p.Up || p.Lag != 0 || p.LastContact.AsDuration() != 0), "%s, who tells, is not up to date with itself: %v", s.SeenBy, p)
	}
	return s
}

// sees waits until a node says what it has to, which takes a moment.
func (o *operator) sees(h *host, what string, is func(*v1.StatusResponse) bool) (last *v1.StatusResponse) {
	if o.over {
		return nil
	}
	err := eventually(healWithin+2*o.fleet.silent, func() error {
		if last = o.status(h); o.over || last != nil && is(last) {
			return nil
		}
		return errors.New(what)
	})
	o.wrong(err != nil, "%s does not say that %s: %v", h.name, what, last)
	return last
}

func peer(s *v1.StatusResponse, name string) *v1.Peer {
	for _, p := range s.Peers {
		if p.Node == name {
			return p
		}
	}
	return &v1.Peer{}
}

func named(s *v1.StatusResponse) (names []string) {
	for _, p := range s.Peers {
		names = append(names, p.Node)
	}
	return names
}

// whole: every node says of all members what is.
func (o *operator) whole() {
	for _, h := range o.fleet.hosts {
		s := o.sees(h, "all is well", func(s *v1.StatusResponse) bool {
			if s.Health != "ok" || s.Leader == "" || s.SeenBy != s.Leader || s.Term == 0 || len(s.Peers) != len(o.fleet.hosts) {
				return false
			}
			return !slices.ContainsFunc(s.Peers, func(p *v1.Peer) bool {
				return !p.Up || p.Lag > few || p.Role == "nonvoter" || p.ApiAddress == ""
			})
		})
		if o.over {
			return
		}
		if o.base == nil {
			o.base = named(s)
		}
		o.wrong(!slices.Equal(o.base, named(s)), "%s shows the members as %v, and they came as %v", h.name, named(s), o.base)
	}
	key := alone.Prefix + "-orders-" + newID()
	h := o.any()
	before := o.status(h)
	set, err := o.w.counters[slices.Index(o.fleet.hosts, h)].Increment(context.Background(), &v1.IncrementRequest{Key: key, Amount: "1", Client: o.w.name})
	if err != nil || before == nil {
		o.over = true
		return
	}
	o.wrong(set.Index <= before.AppliedIndex, "%s said that it has applied entry %d, and a change came behind it at %d", h.name, before.AppliedIndex, set.Index)
	o.sees(h, fmt.Sprint("it has applied what it was asked for, at ", set.Index), func(s *v1.StatusResponse) bool { return s.AppliedIndex >= set.Index })
}

// leads returns who leads, in which term; nil if nobody says so twice.
func (o *operator) leads() (leader *host, term uint64) {
	_ = eventually(healWithin, func() error {
		for _, h := range o.fleet.hosts {
			first := o.status(h)
			if first == nil || first.Leader != h.name {
				continue
			}
			// A leader is named before the term is: the second time it led in that of the first.
			if second := o.status(h); second != nil && second.Leader == h.name && second.Term == first.Term {
				leader, term = h, second.Term
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	if leader == nil {
		o.over = true // elections are for others to judge
	}
	return leader, term
}

// hands: the leadership goes where it is told to.
func (o *operator) hands() {
	kept := 0
	for range 4 {
		l, term := o.leads()
		if o.over {
			return
		}
		to, by := o.any(l), o.any()
		req := &v1.TransferLeadershipRequest{}
		if o.rng.IntN(3) > 0 {
			req.Node = to.name
		}
		// Whom it is asked of may hear of the next one late.
		release := o.fleet.network.slow(time.Duration(o.rng.IntN(40))*time.Millisecond, links(by.name, o.fleet.names(), false, true)...)
		res, err := at(o.nodes[by].TransferLeadership, req)
		release()
		o.wrong(refusal(err) != "", "%s is asked to hand over to %q, and refuses: %v", by.name, req.Node, err)
		if err != nil {
			if o.fleet.ready(healWithin) != nil {
				o.over = true
			}
			continue
		}
		now, later := o.leads()
		if o.over {
			return
		}
		o.wrong(later == term, "%s said that the leadership of %s, in term %d, was handed over, and that leads still", by.name, l.name, term)
		if now == l {
			kept++ // it may have stepped down of itself, once
		}
		o.wrong(kept > 1, "the leadership of %s was handed over to another, and it has it again", l.name)
		if later == term+1 && now != l { // else somebody has called another election
			o.wrong(req.Node != "" && now.name != req.Node, "the leadership of %s was handed over to %s, and %s has it", l.name, req.Node, now.name)
			o.wrong(res.Leader != "" && res.Leader != now.name, "%s says that %s leads behind a transfer from %s to %s", by.name, res.Leader, l.name, now.name)
		}
		if o.fleet.ready(healWithin) != nil {
			o.over = true
		}
	}
	l, term := o.leads()
	if o.over {
		return
	}
	by := o.nodes[o.any()]
	res := done(o, "a transfer to who leads", by.TransferLeadership, &v1.TransferLeadershipRequest{Node: l.name})
	if now, later := o.leads(); !o.over {
		o.wrong(now == l && later != term, "a transfer to who leads, %s, has ended its term", l.name)
		o.wrong(later == term && res.Leader != l.name, "%q leads behind a transfer to %s, who leads", res.Leader, l.name)
	}
	refused(o, "a transfer to nobody", "node", by.TransferLeadership, &v1.TransferLeadershipRequest{Node: "nobody"})
	refused(o, "a transfer to what is no name", "node", by.TransferLeadership, &v1.TransferLeadershipRequest{Node: "a b"})
}

// alone: a node that reaches nobody says so.
func (o *operator) alone() {
	h := o.any()
	mend := o.fleet.network.hold(links(h.name, o.fleet.names(), true, true)...)
	o.sees(h, "it knows no leader, and sees nobody but itself", func(s *v1.StatusResponse) bool {
		return s.Leader == "" && s.SeenBy == h.name && s.Health != "ok" && s.Health != "" && len(s.Peers) == len(o.base) && !slices.ContainsFunc(s.Peers, func(p *v1.Peer) bool {
			return p.Up != (p.Node == h.name) || p.Role == "leader"
		})
	})
	mend()
	if o.fleet.ready(healWithin) != nil {
		o.over = true
	}
	o.whole()
}

// away: of a member that is down everybody says since when, and where it stood; and who
// begins meanwhile knows it from before.
func (o *operator) away() {
	l, _ := o.leads()
	if o.over {
		return
	}
	gone := o.any(l)
	stood := o.status(gone)
	if stood == nil {
		o.over = true
		return
	}
	gone.crash(o.rng.IntN(2) == 0)
	since := time.Now()
	key := alone.Prefix + "-orders-" + newID()
	for range 5 {
		if _, err := o.w.counters[slices.Index(o.fleet.hosts, l)].Increment(context.Background(), &v1.IncrementRequest{Key: key, Amount: "1", Client: o.w.name}); err != nil {
			o.over = true
			return
		}
	}
	hello := o.fleet.silent / 3
	down := func(s *v1.StatusResponse) bool {
		p := peer(s, gone.name)
		ago, last := time.Since(since), p.LastContact.AsDuration()
		ok := !p.Up && p.Role == "voter" && s.Health == "ok" && s.SeenBy == s.Leader && p.AppliedIndex != nil && *p.AppliedIndex <= stood.AppliedIndex+few && p.Lag >= 5
		return ok && !p.LastContactAtLeast && last <= ago+hello+2*time.Second && last >= ago-time.Second && (s.Node != s.Leader || s.AppliedIndex-p.Lag == *p.AppliedIndex)
	}
	for _, h := range o.fleet.hosts {
		if h != gone {
			o.sees(h, fmt.Sprintf("%s is down since it stood at %d, %v ago, and all is well with others", gone.name, stood.AppliedIndex, time.Since(since)), down)
		}
	}
	again := o.any(l, gone)
	if o.over {
		return
	}
	again.crash(false)
	began := time.Now()
	if again.start(o.entrance(again)) != nil || o.ready(gone) != nil {
		o.over = true
		return
	}
	took := time.Since(began)
	done(o, "a transfer to who began anew", o.nodes[again].TransferLeadership, &v1.TransferLeadershipRequest{Node: again.name})
	o.sees(l, fmt.Sprintf("%s was heard of last before %s began, and where it stood", gone.name, again.name), func(s *v1.StatusResponse) bool {
		p := peer(s, gone.name)
		ago := time.Since(began)
		return s.SeenBy == again.name && s.Health == "ok" && !p.Up && p.LastContactAtLeast && p.AppliedIndex != nil && *p.AppliedIndex <= stood.AppliedIndex+few && p.Lag >= 5 &&
			p.LastContact.AsDuration() <= ago && p.LastContact.AsDuration() >= ago-took-time.Second
	})
	if o.over {
		return
	}
	if gone.start(o.entrance(gone)) != nil || o.fleet.ready(healWithin) != nil {
		o.over = true
	}
}

// ready waits until all but one serve.
func (o *operator) ready(but *host) error {
	return eventually(healWithin, func() error {
		for _, h := range o.fleet.hosts {
			if s := o.status(h); h != but && (s == nil || s.Health != "ok") {
				return fmt.Errorf("%s: %v", h.name, s)
			}
		}
		return nil
	})
}

// leaves: a member, which may lead, is removed, is added without a vote while it is down,
// starts on an empty disk, and is given a vote.
func (o *operator) leaves() {
	gone := o.any()
	by := o.any(gone)
	if o.rng.IntN(3) == 0 {
		by = gone
	}
	before := o.status(by)
	index := done(o, "a removal", o.nodes[by].RemoveNode, &v1.RemoveNodeRequest{Node: gone.name, Force: o.rng.IntN(2) == 0}).GetIndex()
	if o.over || before == nil {
		o.over = true
		return
	}
	o.wrong(index < before.AppliedIndex, "a removal is answered with the index %d by who stood at %d", index, before.AppliedIndex)
	o.base = slices.DeleteFunc(o.base, func(name string) bool { return name == gone.name })
	by = o.any(gone)
	shows := func(h *host, what string, is func(p *v1.Peer) bool) {
		s := o.sees(h, "the leader tells", func(s *v1.StatusResponse) bool { return s.SeenBy == s.Leader && s.Health == "ok" })
		o.wrong(!o.over && !(slices.Equal(named(s), o.base) && is(peer(s, gone.name))), "%s of %v, and %s has not: %v", what, o.base, h.name, s)
	}
	for _, h := range o.fleet.hosts {
		if h != gone {
			shows(h, gone.name+" was removed", func(p *v1.Peer) bool { return p.Node == "" })
		}
	}
	o.sees(gone, "it is no member any more", func(s *v1.StatusResponse) bool {
		return strings.Contains(s.Health, "member") || strings.Contains(s.Health, "removed")
	})
	done(o, "a removal that was made", o.nodes[by].RemoveNode, &v1.RemoveNodeRequest{Node: gone.name})
	done(o, "a removal of who never was a member", o.nodes[by].RemoveNode, &v1.RemoveNodeRequest{Node: "nobody"})
	refused(o, "a removal of what is no name", "node", o.nodes[by].RemoveNode, &v1.RemoveNodeRequest{Node: "a b"})
	refused(o, "a transfer to who was removed", "node", o.nodes[by].TransferLeadership, &v1.TransferLeadershipRequest{Node: gone.name})
	if o.over {
		return
	}
	gone.lose(false)
	add := func(what, node, address string, nonvoter bool) {
		before := o.status(by)
		res := done(o, what, o.nodes[by].AddNode, &v1.AddNodeRequest{Node: node, Address: address, Nonvoter: nonvoter})
		o.wrong(!o.over && before != nil && res.Index < before.AppliedIndex, "%s is answered with the index %d by who stood at %d", what, res.GetIndex(), before.GetAppliedIndex())
	}
	no := func(what, field, node, address string) {
		refused(o, what, field, o.nodes[by].AddNode, &v1.AddNodeRequest{Node: node, Address: address, Nonvoter: true})
	}
	no("an addition at the address of another", "address", gone.name, by.raftAddress())
	no("an addition at what is no address", "address", gone.name, "nowhere")
	no("an addition at no address", "address", gone.name, "")
	no("an addition of what is no name", "node", "a b", gone.raftAddress())
	for range 2 {
		add("the addition of a node without a vote", gone.name, gone.raftAddress(), true)
		if !slices.Contains(o.base, gone.name) {
			o.base = append(o.base, gone.name)
		}
		shows(by, gone.name+" was added without a vote, as the last, and is not there", func(p *v1.Peer) bool {
			return p.Role == "nonvoter" && !p.Up && p.ApiAddress == ""
		})
	}
	no("an addition of a member at another address", "node", gone.name, "elsewhere:7000")
	no("an addition at the address of a member", "address", "nobody", gone.raftAddress())
	if o.over {
		return
	}
	e := o.entrance(gone)
	e.nonvoter, e.replace = true, false
	if gone.start(e) != nil || o.fleet.ready(healWithin) != nil {
		o.over = true
		return
	}
	listens := func(p *v1.Peer) bool { return p.Role == "nonvoter" }
	o.sees(by, gone.name+" gets everything, and has no vote", func(s *v1.StatusResponse) bool {
		p := peer(s, gone.name)
		return listens(p) && p.Up && p.Lag <= few && p.ApiAddress != ""
	})
	add("the addition of a node without a vote that is up", gone.name, gone.raftAddress(), true)
	shows(by, gone.name+" was added without a vote", listens)
	refused(o, "a transfer to who has no vote", "node", o.nodes[by].TransferLeadership, &v1.TransferLeadershipRequest{Node: gone.name})
	for range 2 {
		add("the addition of a node with a vote", gone.name, gone.raftAddress(), false)
		shows(by, gone.name+" was added with a vote", func(p *v1.Peer) bool { return p.Role == "voter" })
	}
	add("the addition without a vote of who has one", gone.name, gone.raftAddress(), true)
	shows(by, gone.name+" had a vote", func(p *v1.Peer) bool { return p.Role == "voter" })
}

// copies: a copy is of all that there is, one that is not whole changes nothing, and a whole
// one replaces everything on all nodes and ends leases.
func (o *operator) copies() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	own := alone.Prefix + "-orders-" + newID()
	set := func(key string) {
		if o.over {
			return
		}
		if _, err := o.w.node().Set(ctx, &v1.SetRequest{Key: own + key, Value: key, RequestId: newID(), Client: o.w.name}); err != nil {
			o.over = true
		}
	}
	holds := func(want bool, key, when string) {
		for i, h := range o.fleet.hosts {
			res, err := o.w.counters[i].Get(ctx, &v1.GetRequest{Key: own + key})
			if err != nil {
				o.over = true
				return
			}
			o.wrong(res.Found != want || want && res.Value != key, "%s, what was set %s the copy is at %s: %v", when, key, h.name, res)
		}
	}
	pool := own
	slots := govnodev1connect.NewSlotServiceClient(o.w.http, "http://"+o.any().apiAddress())
	take := func() (id string, token uint64) {
		if o.over {
			return "", 0
		}
		id = newID()
		res, err := slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: pool, SlotId: id, Client: o.w.name, Ttl: durationpb.New(10 * time.Minute)})
		if err != nil || res.Outcome != v1.Outcome_OUTCOME_ADMITTED {
			o.over = true
		}
		return id, res.GetToken()
	}
	if _, err := slots.PutPool(ctx, &v1.PutPoolRequest{Pool: pool, Slots: 1, RequestId: newID(), Client: o.w.name}); err != nil {
		o.over = true
	}
	set("before")
	id, first := take()
	if o.over {
		return
	}
	stream, err := o.nodes[o.any()].Snapshot(ctx, &v1.SnapshotRequest{})
	if err != nil {
		o.over = true
		return
	}
	var b []byte
	for stream.Receive() {
		b = append(b, stream.Msg().Chunk...)
	}
	err = errors.Join(stream.Err(), stream.Close())
	if err != nil {
		o.over = true
		return
	}
	_, err = session.ReadSnapshot(bytes.NewReader(b))
	o.wrong(err != nil, "a copy cannot be read: %v", err)
	set("behind")
	bring := func(b []byte) (*v1.RestoreResponse, error) {
		stream, err := o.nodes[o.any()].Restore(ctx)
		if err != nil {
			return nil, err
		}
		for chunk := range slices.Chunk(b, 1+o.rng.IntN(64<<10)) {
			if stream.Send(&v1.RestoreRequest{Chunk: chunk}) != nil {
				break // the answer says why
			}
		}
		return stream.CloseAndReceive()
	}
	for _, part := range [][]byte{b[:len(b)-1-o.rng.IntN(len(b)/2)], append(slices.Clone(b), 0), nil, slices.Concat(b[:len(b)/2], []byte{b[len(b)/2] ^ 1}, b[len(b)/2+1:])} {
		if o.over {
			return
		}
		res, err := bring(part)
		if err != nil && refusal(err) == "" {
			o.over = true
			return
		}
		o.wrong(refusal(err) != "BAD_SNAPSHOT", "%d bytes of what is no copy, or one of %d bytes, are not refused as that: %v, %v", len(part), len(b), res, err)
	}
	holds(true, "behind", "a copy that is not whole was refused")
	if o.over {
		return
	}
	res, err := bring(b)
	if o.wrong(refusal(err) != "", "a copy is refused: %v", err); err != nil {
		o.over = true
		return
	}
	held, err := slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: pool})
	o.wrong(err == nil && len(held.Slots) > 0, "a restore has left a lease: %v", held)
	renewed, err := slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Client: o.w.name, Slots: []*v1.SlotRef{{Pool: pool, SlotId: id, Token: first}}})
	o.wrong(err == nil && renewed.Results[0].Outcome == v1.Outcome_OUTCOME_RENEWED, "the lease of before a restore is renewed: %v", renewed)
	holds(false, "behind", "a copy was restored")
	holds(true, "before", "a copy was restored")
	for _, h := range o.fleet.hosts {
		s := o.status(h)
		o.wrong(s != nil && (res.Index == 0 || res.Index > s.AppliedIndex), "a restore is answered with the index %d, and %s, who has it, stands at %d", res.Index, h.name, s.GetAppliedIndex())
	}
	_, second := take()
	o.wrong(!o.over && second <= first, "token %d was given, and %d behind a restore", first, second)
}

// repairs: ids are taken again that are newer than the repair says.
func (o *operator) repairs() {
	ask := func(what string, req *v1.RepairIDsRequest) *v1.RepairIDsResponse {
		req.Client, req.RequestId = o.w.name, newID()
		first := done(o, what, o.nodes[o.any()].RepairIDs, req)
		again := done(o, what+", again", o.nodes[o.any()].RepairIDs, req)
		o.wrong(!o.over && (first.Index == 0 || again.Index < first.Index || again.Lowered != first.Lowered || again.NewerThan != req.NewerThan || req.NewerThan != 0 && first.NewerThan != req.NewerThan || first.NewerThan == 0),
			"%s, %v, is answered {%v} and again {%v}", what, req, first, again)
		return first
	}
	ask("a repair up to now", &v1.RepairIDsRequest{})
	ask("a repair up to a second", &v1.RepairIDsRequest{NewerThan: 1000})
	r := ask("a repair of what is repaired", &v1.RepairIDsRequest{NewerThan: 1000})
	o.wrong(!o.over && r.Lowered, "a repair of what was repaired says that it has opened something: %v", r)
	for _, newerThan := range []int64{-1, 1 << 60} {
		refused(o, "a repair of ids of no time", "newerThan", o.nodes[o.any()].RepairIDs, &v1.RepairIDsRequest{Client: o.w.name, RequestId: newID(), NewerThan: newerThan})
	}
}
