package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/engine"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What is judged slowly holds up nothing else of its stream.

// held is a guardrail that thinks about the tool "slow" until it is let go.
func held(asked chan<- struct{}, free <-chan struct{}) guard {
	return func(call engine.GuardrailCall) (engine.GuardrailResult, error) {
		if call.ToolName == "slow" {
			asked <- struct{}{}
			<-free
		}
		return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
	}
}

func slowFrame(tag uint64) *v1.Operation {
	return beginFrame(tag, "s", fmt.Sprint("slow", tag), func(r *v1.BeginCallRequest) { r.Tool = "slow" })
}

// However many calls of a stream are behind a guardrail that takes long, the other
// ones of the stream are answered.
func TestSlowGuardrailsHoldUpNobodyElse(t *testing.T) {
	asked, free := make(chan struct{}), make(chan struct{})
	n := startGuarded(t, held(asked, free))
	c, err := client.New(client.Config{Addresses: []string{n.url}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	s := c.Session("s")
	fast := func() {
		call, err := s.Begin(n.ctx(), client.Call{Tool: "fast"})
		require.NoError(t, err)
		require.NoError(t, call.End(n.ctx(), client.Succeeded))
	}
	fast()
	const slow = 4 // twice as many messages as the client has unanswered
	answers := make(chan error, slow)
	for range slow {
		go func() {
			call, err := s.Begin(n.ctx(), client.Call{Tool: "slow", Wait: client.NoWait})
			if err == nil {
				err = call.End(n.ctx(), client.Succeeded)
			}
			answers <- err
		}()
		<-asked // its message held nothing else
		for range 20 {
			fast()
		}
	}
	require.Empty(t, answers)
	close(free)
	for range slow {
		require.NoError(t, <-answers)
	}
}

// A call that a guardrail holds is admitted in the end although its caller has gone:
// then the client ends it.
func TestACallIsAbandonedThatAGuardrailHolds(t *testing.T) {
	asked, free := make(chan struct{}), make(chan struct{})
	n := startGuarded(t, held(asked, free))
	c, err := client.New(client.Config{Addresses: []string{n.url}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithCancel(n.ctx())
	began := make(chan error)
	go func() {
		_, err := c.Session("s").Begin(ctx, client.Call{Tool: "slow"})
		began <- err
	}()
	<-asked
	cancel()
	require.ErrorAs(t, <-began, new(*client.Unknown))
	time.Sleep(200 * time.Millisecond) // the service knows no such call
	close(free)
	eventually(t, "the call is ended", func() bool {
		s, err := c.Session("s").Read(n.ctx())
		return err == nil && s.GetExecutions() == 1 && len(s.GetOpenCalls()) == 0
	})
}

// What is set apart is told to the other side, has its answer in the end, and
// does not count among the unanswered; it has a bound of its own, beyond which it
// is refused.
func TestFramesSetApart(t *testing.T) {
	const most = 4096
	asked, free := make(chan struct{}, most+1), make(chan struct{})
	n := startGuarded(t, held(asked, free))
	l := n.exchange()
	sent := uint64(0)
	for sent < most {
		frames := make([]*v1.Operation, 512)
		for i := range frames {
			sent++
			frames[i] = slowFrame(sent)
		}
		l.send(frames...)
	}
	apart := map[uint64]bool{}
	for len(apart) < most {
		m, err := l.stream.Receive()
		require.NoError(t, err)
		require.Empty(t, m.Answers)
		for _, tag := range m.Apart {
			apart[tag] = true
		}
	}
	l.send(slowFrame(most+1), endFrame(most+2, "s", "none"))
	all := l.receive(2)
	require.Equal(t, "OVERLOADED", all[most+1][0].GetError().GetReason(), "%v", all[most+1])
	require.Contains(t, all[most+1][0].GetError().GetMessage(), "nothing was applied")
	require.Equal(t, time.Second, all[most+1][0].GetError().GetRetryAfter().AsDuration())
	require.Equal(t, "NOT_FOUND", all[most+2][0].GetError().GetReason(), "others go on: %v", all[most+2])
	close(free)
	for tag, a := range l.receive(most) {
		require.NotNil(t, a[0].GetBegin(), "%d: %v", tag, a)
	}
	l.send(slowFrame(most + 3)) // there is room again
	require.NotNil(t, l.one().GetBegin())
	require.NoError(t, l.stream.CloseRequest())
	_, err := l.stream.Receive()
	require.Error(t, err, "nothing is left to be answered")
}

// distant is a store whose records of one kind are not there nearby, and whose reads of them as
// of now take until it is let go.
type distant struct {
	storage.Store
	kind  byte // 0: none
	asked chan struct{}
	free  chan struct{}
}

func (s *distant) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if k.Kind() == s.kind && r == storage.Nearby {
		return storage.Found{}, nil
	}
	if k.Kind() == s.kind {
		s.asked <- struct{}{}
		select {
		case <-s.free:
		case <-ctx.Done():
		}
	}
	return s.Store.Get(ctx, k, r)
}

// What cannot be told by what is on the node is found out apart, and not where the next
// messages are received.
func TestReadsAsOfNowHoldUpNobodyElse(t *testing.T) {
	slot := func(id string) *v1.SlotRef { return &v1.SlotRef{Pool: "q", SlotId: id, Token: 1} }
	renew := func(slots ...*v1.SlotRef) *v1.RenewSlotsRequest {
		return &v1.RenewSlotsRequest{Client: "w", Slots: slots}
	}
	for what, x := range map[string]struct {
		kind  byte
		owes  bool
		frame *v1.Operation
	}{
		"a policy":                       {session.KindPolicy, false, beginFrame(1, "s", "c")},
		"the policy of an end":           {session.KindPolicy, false, endFrame(1, "s", "runs")},
		"slots of a namespace that owes": {session.KindClient, true, &v1.Operation{Tag: 1, Op: &v1.Operation_Renew{Renew: renew(slot("none"))}}},
	} {
		t.Run(what, func(t *testing.T) {
			n := start(t)
			n.putPolicy(policy()...)
			n.session("s")
			n.begin("s", "runs")
			n.putPool("q", 1)
			store := &distant{Store: n.store, kind: x.kind, asked: make(chan struct{}, 8), free: make(chan struct{})}
			late := startOn(t, store) // which has compiled nothing
			if x.owes {
				n.putQuotas("default", session.Quotas{Operations: 1})
				_, err := late.slots.RenewSlots(n.ctx(), renew(slices.Repeat([]*v1.SlotRef{slot("none")}, 50)...))
				require.NoError(t, err)
			}
			l := late.exchange()
			l.send(x.frame)
			<-store.asked
			l.send(&v1.Operation{Tag: 2, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "none", SlotId: "s"}}})
			require.Contains(t, l.receive(1), uint64(2))
			close(store.free)
			require.Contains(t, l.receive(1), uint64(1))
		})
	}
}
