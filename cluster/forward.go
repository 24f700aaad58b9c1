package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A forwarder sends what waits on this node to the leader, in numbered batches
// over one stream, and gives the answers back. It ends with its stream, and its
// stream with its context.
type forwarder struct {
	address string
	queue   *queue
	metrics *metrics
	ctx     context.Context
	cancel  context.CancelFunc

	mu    sync.Mutex
	sent  map[uint64]*sentBatch // not answered
	batch uint64
}

// A sentBatch is under way. Its answers come in the order of its commands, in one
// message or in several.
type sentBatch struct {
	groups []*group
	open   []*group // of those; the first has no answer yet, or not all
	got    int      // answers of the first
}

type forwardStream = connect.BidiStreamForClientSimple[nodev1.ForwardRequest, nodev1.ForwardResponse]

// forwardTo returns the forwarder to the leader, which is begun if need be. One
// to a leader that has come after the caller looked is as good, and is not
// given up for the former one.
func (n *Node) forwardTo(leader string) *forwarder {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.forward; f != nil && f.ctx.Err() == nil {
		if now, _ := n.raft.LeaderWithID(); f.address == leader || f.address == string(now) {
			return f
		}
	}
	if n.forward != nil {
		n.forward.cancel()
	}
	f := &forwarder{
		address: leader, queue: newQueue(n.cfg.MaxQueue, batchSize), metrics: n.metrics,
		sent: make(map[uint64]*sentBatch),
	}
	f.ctx, f.cancel = context.WithCancel(n.ctx)
	n.forward = f
	client := n.peers.At(leader)
	go func() {
		f.end(f.run(client, n.cfg.RPCTimeout))
	}()
	return f
}

// run opens the stream and serves it until it breaks or is given up. Nothing is
// sent any more when it returns.
func (f *forwarder) run(client nodev1connect.NodeServiceClient, patience time.Duration) error {
	var sender sync.WaitGroup
	defer sender.Wait()
	defer f.cancel()
	stream, err := client.Forward(f.ctx)
	if err != nil {
		return err
	}
	// The transport waits for the end of the request's body before it looks at
	// the context, and whoever receives waits for the transport.
	context.AfterFunc(f.ctx, func() { _ = stream.CloseRequest() })
	// Nothing is sent before the other side has said that it leads.
	late := time.AfterFunc(patience, f.cancel)
	if err := stream.Send(&nodev1.ForwardRequest{}); err != nil {
		_, received := stream.Receive() // says why
		return errors.Join(received, err)
	}
	if _, err := stream.Receive(); err != nil {
		return err
	}
	if !late.Stop() {
		return errors.New("the leader did not answer in time")
	}
	sender.Go(func() { f.send(stream) })
	for {
		r, err := stream.Receive()
		if err != nil {
			return err
		}
		f.answer(r)
	}
}

// send takes what waits and sends it, batch by batch.
func (f *forwarder) send(stream *forwardStream) {
	for {
		groups := f.queue.take(f.ctx)
		if groups == nil {
			return
		}
		m := f.number(groups)
		if err := stream.Send(m); err != nil {
			f.unsent(m.GetBatch(), err)
			f.cancel()
			return
		}
		f.metrics.forwarded.Add(float64(len(m.GetCommands())))
	}
}

// number makes a batch of groups.
func (f *forwarder) number(groups []*group) *nodev1.ForwardRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batch++
	f.sent[f.batch] = &sentBatch{groups: groups, open: groups}
	n := 0
	for _, g := range groups {
		n += len(g.commands)
	}
	commands, lefts := make([]nodev1.ForwardedCommand, n), make([]durationpb.Duration, n)
	m := &nodev1.ForwardRequest{Batch: f.batch, Commands: make([]*nodev1.ForwardedCommand, 0, n)}
	now := time.Now()
	for _, g := range groups {
		for i := range g.commands {
			p, c, left := &g.commands[i], &commands[len(m.Commands)], &lefts[len(m.Commands)]
			lasts := p.until.Sub(now)
			left.Seconds, left.Nanos = int64(lasts/time.Second), int32(lasts%time.Second)
			c.Command, c.Left = p.raw, left
			m.Commands = append(m.Commands, c)
		}
	}
	return m
}

// take returns a batch, which is not under way any more if it is over. It is nil
// if it was not.
func (f *forwarder) take(n uint64, over bool) *sentBatch {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.sent[n]
	if over {
		delete(f.sent, n)
	}
	return b
}

// unsent answers a batch that did not leave as a whole. The leader makes nothing
// of a part of a message.
func (f *forwarder) unsent(n uint64, why error) {
	if b := f.take(n, true); b != nil {
		failAll(b.open, storage.Refused(elsewhere(why)))
	}
}

// answer gives the answers of one message to those who wait for them.
func (f *forwarder) answer(r *nodev1.ForwardResponse) {
	b := f.take(r.GetBatch(), !r.GetMore())
	if b == nil {
		return
	}
	b.answer(r.GetAnswers())
	if !r.GetMore() {
		failAll(b.open, storage.Lost(errors.New("the leader left answers out")))
		f.queue.free(b.groups)
	}
}

// answer takes the next answers. A group is done with its last one.
func (b *sentBatch) answer(answers []*nodev1.ForwardAnswer) {
	for _, a := range answers {
		if len(b.open) == 0 {
			return // more than were asked for
		}
		g := b.open[0]
		g.answers[b.got] = readAnswer(a)
		if b.got++; b.got == len(g.commands) {
			close(g.done)
			b.open, b.got = b.open[1:], 0
		}
	}
}

// end answers everything that is left when the stream has ended: what was sent
// is unknown, and what was not is not applied.
func (f *forwarder) end(err error) {
	f.queue.close(elsewhere(err))
	for _, b := range f.sent { // nobody else uses it any more
		failAll(b.open, storage.Lost(fmt.Errorf("the stream to the leader broke: %w", err)))
	}
}

// refusals are the reasons of commands that were not applied which the node that
// forwarded them has to know again, in the order in which they are looked for.
var refusals = []struct {
	why  error
	code nodev1.Failure
}{
	{storage.ErrInvalid, nodev1.Failure_FAILURE_INVALID},
	{errElsewhere, nodev1.Failure_FAILURE_NOT_LEADER},
	{errOverloaded, nodev1.Failure_FAILURE_OVERLOADED},
}

func writeAnswer(a *storage.Answer) *nodev1.ForwardAnswer {
	if a.Outcome == storage.Applied {
		return &nodev1.ForwardAnswer{Result: session.EncodeResult(&a.Result), Index: a.Index}
	}
	w := &nodev1.ForwardAnswer{Failure: nodev1.Failure_FAILURE_UNKNOWN, Text: bare(a.Err)}
	if a.Outcome == storage.NotApplied {
		w.Failure = nodev1.Failure_FAILURE_UNAVAILABLE
		for _, r := range refusals {
			if errors.Is(a.Err, r.why) {
				w.Failure = r.code
				break
			}
		}
	}
	return w
}

// bare returns the text of a reason without what its kind says anyway.
func bare(why error) string {
	for {
		switch w := why.(type) {
		case nil:
			return ""
		case *storage.Failure:
			why = w.Err
		case *storage.InvalidError:
			why = w.Why
		case *because:
			why = w.why
		default:
			return why.Error()
		}
	}
}

func readAnswer(a *nodev1.ForwardAnswer) storage.Answer {
	if a.GetFailure() == nodev1.Failure_FAILURE_UNSPECIFIED {
		r, err := session.DecodeResult(a.GetResult())
		if err != nil {
			return storage.Lost(err) // it was applied, but who knows how
		}
		return storage.Done(r, a.GetIndex())
	}
	said := errors.New(a.GetText())
	switch a.GetFailure() {
	case nodev1.Failure_FAILURE_UNAVAILABLE:
		return storage.Refused(said)
	case nodev1.Failure_FAILURE_INVALID:
		return storage.Refused(wrong(said))
	case nodev1.Failure_FAILURE_NOT_LEADER:
		return storage.Refused(elsewhere(said))
	case nodev1.Failure_FAILURE_OVERLOADED:
		return storage.Refused(errOverloaded)
	}
	return storage.Lost(said)
}
