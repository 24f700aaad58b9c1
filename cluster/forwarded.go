package cluster

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/window"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The leader's side of forwarding: batches of other nodes come in over a
// stream, what the leader has no room for is refused, and their answers go back.
// The other side is in forward.go.

const (
	// maxBatches bounds the batches of one stream that have no answer yet;
	// beyond it the stream is not read.
	maxBatches = 2 * inFlight
	// maxLeft bounds how long a forwarded command may wait.
	maxLeft = 10 * time.Minute
	// maxPart bounds the answers of one message. A batch has others as well
	// where it has more of them; one that is larger by itself has a message of
	// its own.
	maxPart = 256 << 10
)

type servedStream = connect.BidiStream[nodev1.ForwardRequest, nodev1.ForwardResponse]

// Forward implements nodev1connect.NodeServiceHandler. It returns, and so ends
// the stream, as soon as anything cannot be received or sent: who forwarded what
// has no answer then knows that it gets none.
func (s *service) Forward(ctx context.Context, stream *servedStream) error {
	if _, err := s.lead(); err != nil {
		return err
	}
	if _, err := stream.Receive(); err != nil {
		return err
	}
	if err := stream.Send(&nodev1.ForwardResponse{}); err != nil {
		return err
	}
	var (
		sending sync.Mutex
		answers sync.WaitGroup
		lock    sync.Mutex
		places  = window.New(&lock, window.Limits{InFlight: maxBatches})
	)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer answers.Wait() // nothing is sent when this method has returned
	batches := receive(ctx, stream, end)
	for {
		lock.Lock()
		_, err := places.Admit(ctx, 1)
		lock.Unlock()
		if err != nil {
			return err
		}
		var m *nodev1.ForwardRequest
		select {
		case m = <-batches:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if m == nil {
			return nil
		}
		g := decodeBatch(m)
		if err := s.submit(g); err != nil {
			clear(g.answers)
			g.fail(storage.Refused(err))
		}
		answers.Go(func() {
			select {
			case <-g.done:
			case <-ctx.Done():
				return
			}
			send := func(r *nodev1.ForwardResponse) error {
				sending.Lock()
				defer sending.Unlock()
				return stream.Send(r)
			}
			if err := sendAnswers(m.GetBatch(), g.answers, send); err != nil {
				// What a message says may have kept it from being sent; the
				// stream would stay.
				end(err)
				return
			}
			lock.Lock()
			places.Leave(window.InFlight, window.Size{Count: 1})
			lock.Unlock()
		})
	}
}

// receive passes on what comes until nothing more does, or ends the stream if
// that fails. A stream that has ended fails whoever receives from it.
func receive(ctx context.Context, stream *servedStream, end context.CancelCauseFunc) <-chan *nodev1.ForwardRequest {
	batches := make(chan *nodev1.ForwardRequest)
	go func() {
		for {
			m, err := stream.Receive()
			if errors.Is(err, io.EOF) {
				close(batches)
				return
			}
			if err != nil {
				end(err)
				return
			}
			select {
			case batches <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches
}

// sendAnswers sends the answers of a batch, in messages that are bounded: the
// size of commands says nothing about that of their answers, which may bring
// whole sessions.
func sendAnswers(batch uint64, answers []storage.Answer, send func(*nodev1.ForwardResponse) error) error {
	r := &nodev1.ForwardResponse{Batch: batch}
	size := 0
	for i := range answers {
		a := writeAnswer(&answers[i])
		n := len(a.GetResult()) + len(a.GetText())
		if len(r.Answers) > 0 && size+n > maxPart {
			r.More = true
			if err := send(r); err != nil {
				return err
			}
			r, size = &nodev1.ForwardResponse{Batch: batch}, 0
		}
		r.Answers = append(r.Answers, a)
		size += n
	}
	return send(r)
}

// submit gives a group to the leadership of this moment: a stream may outlast
// one.
func (s *service) submit(g *group) error {
	l := s.n.leading.Load()
	if l == nil || s.n.draining.Load() {
		return errElsewhere
	}
	s.n.admitForwarded(g)
	return l.submit(g)
}

// decodeBatch makes a group of a batch. What cannot be decoded is answered
// alone. That a command was damaged on its way is no fault of its caller, who
// may send it again.
func decodeBatch(m *nodev1.ForwardRequest) *group {
	now := time.Now()
	commands := make([]pending, len(m.GetCommands()))
	for i, f := range m.GetCommands() {
		commands[i] = pending{raw: f.GetCommand(), until: now.Add(min(f.GetLeft().AsDuration(), maxLeft))}
	}
	g := newGroup(commands)
	for i := range commands {
		c, err := session.DecodeCommand(commands[i].raw)
		switch {
		case errors.Is(err, session.ErrDamaged):
			g.answers[i] = storage.Refused(err)
		case err != nil:
			g.answers[i] = storage.Refused(wrong(err))
		}
		commands[i].cmd = c
	}
	return g
}

// errOverloaded is the answer to a command that this node, as the leader, was
// passed on by another and has no room for.
var errOverloaded error = overloaded{}

type overloaded struct{}

func (overloaded) Error() string { return "the leader is near its memory limit and takes nothing new" }

// Overloaded tells those who do not know this package what the error means.
func (overloaded) Overloaded() bool { return true }

// AdmitForwarded has the node, when it leads, ask admit about each command that
// another node passes on to it, before the command has a place in the log. One
// that is not admitted is not applied, for a reason with the method Overloaded,
// which returns true; the others of its batch go on. What is asked of this node
// directly is for its caller to look at. Nil, as in the beginning, admits
// everything.
//
// admit is called on the goroutines of the connections and must not block.
func (n *Node) AdmitForwarded(admit func(session.Command) bool) {
	if admit == nil {
		n.admission.Store(nil)
		return
	}
	n.admission.Store(&admit)
}

// admitForwarded answers what is not admitted of a group.
func (n *Node) admitForwarded(g *group) {
	admit := n.admission.Load()
	if admit == nil {
		return
	}
	for i := range g.commands {
		if a := &g.answers[i]; !answered(a) && !(*admit)(g.commands[i].cmd) {
			*a = storage.Refused(errOverloaded)
		}
	}
}
