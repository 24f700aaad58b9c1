package alone

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	v1 "example.com/govnode/proto/govnode/v1"
)

// How much a namespace may have: so much, and no more. It is looked at one node, since what
// comes to others at the same time may pass a quota.

// quotaFields are all quotas, by their names in errors.
var quotaFields = []struct {
	name string
	of   func(*v1.Quotas) *int64
}{
	{"sessions", func(q *v1.Quotas) *int64 { return &q.Sessions }}, {"clients", func(q *v1.Quotas) *int64 { return &q.Clients }},
	{"pools", func(q *v1.Quotas) *int64 { return &q.Pools }}, {"policies", func(q *v1.Quotas) *int64 { return &q.Policies }},
	{"keys", func(q *v1.Quotas) *int64 { return &q.Keys }}, {"bytes", func(q *v1.Quotas) *int64 { return &q.Bytes }},
	{"waiters", func(q *v1.Quotas) *int64 { return &q.Waiters }}, {"followers", func(q *v1.Quotas) *int64 { return &q.Followers }},
	{"streams", func(q *v1.Quotas) *int64 { return &q.Streams }}, {"operations a second", func(q *v1.Quotas) *int64 { return &q.OperationsPerSecond }},
}

// A tenant is a namespace of its own of which one thing is bounded.
type tenant struct {
	*crowd
	at     *node
	name   string // of its quota
	quotas *v1.Quotas
}

// quotas bounds what stands in a namespace of its own, and what goes on in another, and lifts
// that again. Where people are known by what they show there is one namespace alone.
func quotas(s *script) {
	if s.known {
		return
	}
	for i := range 2 {
		t := &tenant{crowd: s.crowd(), at: s.nodes[s.rng.IntN(len(s.nodes))]}
		t.namespace = fmt.Sprint(s.own, "-", i)
		t.put(s.own, "max_tool_calls: 100\n")
		pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1000, RequestId: s.id(), Client: s.own}
		done(s, "put a pool there", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) {
			return n.slots.PutPool(t.in(ctx), pool)
		})
		item := &v1.AppendRequest{Key: s.own, Items: []string{"a"}, Ttl: long, RequestId: s.id(), Client: s.own}
		done(s, "append an item there", func(ctx context.Context, n *node) (*v1.AppendResponse, error) {
			return n.counters.Append(t.in(ctx), item)
		})
		things := t.things()
		switch n := s.rng.IntN(5); {
		case i == 0:
			t.counted(things[s.rng.IntN(len(things))])
		case n < 3:
			t.name = []string{"waiters", "followers", "streams"}[n]
			t.stays()
		case n == 3:
			t.paced()
		default:
			t.weighed()
		}
	}
}

// bound sets the quota, beside others that nothing here reaches; 0 lifts all of them. Then
// the node goes by it.
func (t *tenant) bound(most int64) {
	t.quotas = &v1.Quotas{}
	for _, q := range quotaFields {
		if *q.of(t.quotas) = most; q.name != t.name && most > 0 {
			*q.of(t.quotas) = int64(100000 * t.rng.IntN(2))
		}
	}
	put := &v1.PutQuotasRequest{RequestId: t.id(), Client: t.own, Namespace: t.namespace, Quotas: t.quotas}
	if res, ok := done(t.script, "put quotas", func(ctx context.Context, n *node) (*v1.PutQuotasResponse, error) { return n.access.PutQuotas(ctx, put) }); ok {
		t.alike("the quotas that are put", res.Quotas, t.quotas)
	}
	t.used()
}

// used is what the node knows to be used of the quota, when it has heard of all that was
// acknowledged before. It looks at quotas now and then, and so does when it is asked again
// after a while.
func (t *tenant) used() int64 {
	look := func() *v1.Quotas {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second)
		defer cancel()
		res, err := t.at.access.GetQuotas(ctx, &v1.GetQuotasRequest{Namespace: t.namespace})
		if err != nil {
			return nil
		}
		t.last, t.tries, t.steps = "get quotas", 1, t.steps+1
		t.alike("the quotas", res.Quotas, t.quotas)
		return res.Used
	}
	for range 2 * asks {
		if t.over {
			return 0
		}
		before := look()
		t.pause(300 * time.Millisecond)
		if now := look(); before != nil && now != nil {
			return *t.field(now)
		}
	}
	t.over = true
	return 0
}

func (t *tenant) field(of *v1.Quotas) *int64 {
	for _, q := range quotaFields {
		if q.name == t.name {
			return q.of(of)
		}
	}
	return new(int64)
}

// ask asks the node, and again while it does not answer. It returns the quota for which that
// is refused, if it is.
func (t *tenant) ask(step string, ask func(context.Context, *node) error) (quota string) {
	t.last = step + " there"
	for t.tries = 1; t.tries <= asks && !t.over && t.ctx.Err() == nil; t.tries++ {
		ctx, cancel := context.WithTimeout(t.ctx, 3*time.Second)
		err := ask(t.in(ctx), t.at)
		cancel()
		if err == nil || connect.IsWireError(err) && why(err) == "QUOTA_EXCEEDED" {
			t.steps++
			return metadata(err)["quota"]
		}
		if reason := refused(err); reason != "" {
			t.wrong(true, "it is refused: %s", reason)
			return ""
		}
		t.pause(200 * time.Millisecond)
	}
	t.over = true
	return ""
}

// outdated passes over a refusal that was wanted of a second node, which may just have begun
// and know of no quota yet.
func (t *tenant) outdated(want string) {
	t.over = t.over || want != "" && t.tries > 1
}

// counted makes as many of a thing as there is room for, and one more. What is there may be
// put again, and where one is gone there is room for another.
func (t *tenant) counted(x thing) {
	t.name = x.quota
	most, used := x.base+x.each+t.rng.Int64N(3), x.base
	t.bound(most)
	var ids []string
	name := func(i int) string { return fmt.Sprint(t.own, "-", i) }
	see := func() {
		if got := t.used(); !t.over {
			same(t.script, "what is used of "+t.name, got, used)
		}
	}
	one := func(want string) {
		i, id := len(ids), t.id()
		got := t.ask("make "+x.what, func(ctx context.Context, n *node) error { return x.add(ctx, n, name(i), id) })
		t.outdated(want)
		t.wrong(!t.over && got != want, "%d of %d %s are there, and one more is refused for the quota %q, want %q", used, most, t.name, got, want)
		if want == "" {
			ids, used = append(ids, id), used+x.each
		}
	}
	put := func(what, name, id string, put func(ctx context.Context, n *node, name, id string) error) {
		got := t.ask(what, func(ctx context.Context, n *node) error { return put(ctx, n, name, id) })
		t.wrong(!t.over && got != "", "%d of %d %s are there, and what adds nothing is refused for the quota %q", used, most, t.name, got)
	}
	see()
	for used+x.each <= most && !t.over {
		one("")
	}
	see()
	one(t.name)
	if t.over {
		return
	}
	put("ask again for "+x.what, name(0), ids[0], x.add)
	if x.again {
		put("put "+x.what+" again", name(0), t.id(), x.add)
	}
	if x.drop != nil {
		if put("drop "+x.what, name(0), t.id(), x.drop); !x.stays {
			used -= x.each
		}
		if see(); !x.stays {
			one("")
			put("ask again for "+x.what+" that is gone", name(0), ids[0], x.add)
			see()
		}
		one(t.name)
	}
	t.bound(0)
	one("")
	see()
}

// weighed sets values that are larger than may be, and as large.
func (t *tenant) weighed() {
	const most = 1000
	t.name = "bytes"
	t.bound(most)
	set := func(what, want string, add func(context.Context, *node) error) {
		got := t.ask(what, add)
		t.outdated(want)
		t.wrong(!t.over && got != want, "it is refused for the quota %q, want %q", got, want)
	}
	value := func(size int) func(context.Context, *node) error {
		req := &v1.SetRequest{Key: fmt.Sprint(t.own, size), Value: strings.Repeat("a", size), RequestId: t.id(), Client: t.own}
		return func(ctx context.Context, n *node) error { _, err := n.counters.Set(ctx, req); return err }
	}
	list := func(sizes ...int) func(context.Context, *node) error {
		req := &v1.AppendRequest{Key: t.own + "-sized", Ttl: long, RequestId: t.id(), Client: t.own}
		for _, size := range sizes {
			req.Items = append(req.Items, strings.Repeat("a", size))
		}
		return func(ctx context.Context, n *node) error { _, err := n.counters.Append(ctx, req); return err }
	}
	left := most - int(t.used()) // of the policy and the item that are there
	set("set what is too large", t.name, value(left+1))
	set("append what is too large", t.name, list(left, 1))
	if t.rng.IntN(2) == 0 {
		set("set what is as large", "", value(left))
	} else {
		set("append what is as large", "", list(left-1, 1))
	}
	t.bound(0)
	set("set what is large", "", value(most+1))
}

// paced does as much in a second as may be, and one thing more: it is told when there is
// room for that, and there is.
func (t *tenant) paced() {
	t.name = "operations a second"
	most := 2 + t.rng.Int64N(2)
	t.bound(most)
	t.pause(1100 * time.Millisecond) // it has a second's worth
	begun, wait := time.Now(), time.Duration(0)
	do := func(want string) {
		req := &v1.SetRequest{Key: t.own, Value: "a", RequestId: t.id(), Client: t.own}
		got := t.ask("set a value", func(ctx context.Context, n *node) error {
			_, err := n.counters.Set(ctx, req)
			wait = retryIn(err)
			return err
		})
		if t.tries > 1 || want != "" && time.Since(begun) > 800*time.Millisecond/time.Duration(most) {
			t.over = true // others may have been done, or there may be room again
		}
		t.wrong(!t.over && got != want, "of %d a second it is refused for the quota %q, want %q", most, got, want)
	}
	for range most {
		do("")
	}
	do(t.name)
	t.wrong(wait <= 0 || wait > time.Second/time.Duration(most)+time.Millisecond, "of %d a second there is room in %v", most, wait)
	if !t.over {
		t.pause(wait)
		do("")
	}
}

// retryIn is in which time an error says that it passes by itself.
func retryIn(err error) time.Duration {
	if ce := (*connect.Error)(nil); errors.As(err, &ce) {
		for _, d := range ce.Details() {
			if m, err := d.Value(); err == nil {
				if r, ok := m.(*errdetails.RetryInfo); ok {
					return r.RetryDelay.AsDuration()
				}
			}
		}
	}
	return 0
}
