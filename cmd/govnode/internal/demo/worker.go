package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/client"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A worker of the demo, which is a process of its own: what it asks for, and
// what it writes into its ledger about it.

// Every worker goes through the same list of attempts, session after session.
const (
	allowedTool   = "search"
	forbiddenTool = "shell"
	// attemptsBeyond is how many more attempts each session makes than it may
	// have calls: some of them are refused for other reasons before, and its
	// limit must refuse the rest.
	attemptsBeyond = 14
)

// workerOrders is what a worker is told, as the first line of its standard
// input. The lines after it are "hold", to keep the next slot until it is
// killed, and "stop".
type workerOrders struct {
	Index     int           `json:"index"`
	Addresses []string      `json:"addresses"`
	Ledger    string        `json:"ledger"`
	Policy    string        `json:"policy"`
	Pool      string        `json:"pool"`
	CallLimit int           `json:"callLimit"` // of each session
	TTL       time.Duration `json:"ttl"`
}

func (o *workerOrders) name() string { return fmt.Sprintf("demo-worker-%d", o.Index) }

// call is the call that an id stands for. The parent makes the same one to
// learn what became of it.
func (o *workerOrders) call(id, tool string) client.Call {
	return client.Call{ID: id, Tool: tool, TTL: o.TTL, Pools: []client.Want{{Pool: o.Pool}, {Pool: turnstile}}}
}

// client is a client under the worker's own name, with which its slots are
// remembered.
func (o *workerOrders) client() (*client.Client, error) {
	return client.New(client.Config{Addresses: o.Addresses, Name: o.name()})
}

func demoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "One of the worker processes of demo",
		Hidden: true, // it is of no use without its parent
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return terminal.ExitWith(runWorker(cmd.Context(), cmd.InOrStdin()))
		},
	}
}

// A worker is one process of the fleet of demo.
type worker struct {
	orders  workerOrders
	client  *client.Client
	ledger  *ledger
	holding atomic.Bool   // the next slot is kept
	stop    chan struct{} // closed when there is nothing more to begin
}

func runWorker(ctx context.Context, stdin io.Reader) (err error) {
	if ctx == nil {
		ctx = context.Background()
	}
	w := &worker{stop: make(chan struct{})}
	lines, err := hearOrders(stdin, &w.orders)
	if err != nil {
		return fmt.Errorf("demo worker: %w", err)
	}
	go obey(lines, map[string]func(){
		"hold": func() { w.holding.Store(true) },
		"stop": sync.OnceFunc(func() { close(w.stop) }),
	})
	if w.ledger, err = openLedger(w.orders.Ledger); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.ledger.close()) }()
	if w.client, err = w.orders.client(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.client.Close()) }()
	return w.work(ctx)
}

func (w *worker) stopping() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// work opens one session after another and makes its attempts in each.
func (w *worker) work(ctx context.Context) error {
	for n := 1; !w.stopping(); n++ {
		id := fmt.Sprintf("%s/s%d", w.orders.name(), n)
		if err := w.ledger.write(entry{What: wroteSession, Session: id}); err != nil {
			return err
		}
		var session *client.OpenSession
		err := w.insist("", "", func() (err error) {
			session, err = w.client.CreateSession(ctx, client.Session{ID: id, Agent: w.orders.name(), Policy: w.orders.Policy})
			return err
		})
		if err != nil {
			return fmt.Errorf("session %s: %w", id, err)
		}
		for i := range w.orders.CallLimit + attemptsBeyond {
			if w.stopping() {
				return nil
			}
			if err := w.attempt(ctx, session, i); err != nil {
				return fmt.Errorf("call %d of session %s: %w", i, id, err)
			}
			if i%4 == 3 {
				if err := w.slot(ctx, fmt.Sprintf("s%d-%d", n, i), i); err != nil {
					return fmt.Errorf("slot %d of session %s: %w", i, id, err)
				}
			}
		}
	}
	return nil
}

// attempt is number i of a session: most wait for their slot, some only for a
// moment or not at all, and some call a tool that the policy forbids.
func (w *worker) attempt(ctx context.Context, session *client.OpenSession, i int) error {
	tool := allowedTool
	if i%9 == 8 {
		tool = forbiddenTool
	}
	call := w.orders.call(fmt.Sprintf("c%d", i), tool)
	call.Wait = patience(i)
	at := entry{Session: session.ID(), ID: call.ID, Tool: tool}
	var open *client.OpenCall
	took, err := w.ask(at, func() (lease, error) {
		var err error
		open, err = session.Begin(ctx, call)
		if err != nil {
			return nil, err
		}
		return open, nil
	}, func() (token, passed uint64) {
		return tokenIn(open.Begun(), w.orders.Pool), tokenIn(open.Begun(), turnstile)
	})
	if err != nil || !took {
		return err
	}
	if err := w.use(at, open, tokenIn(open.Begun(), w.orders.Pool), i); err != nil {
		return err
	}
	failed := i%5 == 4
	status := client.Succeeded
	if failed {
		status = client.Failed
	}
	at.Failed = failed
	return w.finish(at, "ENDED", func() error { return open.End(ctx, status) })
}

// slot takes a slot of the pool without a call.
func (w *worker) slot(ctx context.Context, id string, i int) error {
	at := entry{ID: id}
	var held *client.Slot
	took, err := w.ask(at, func() (lease, error) {
		var err error
		held, err = w.client.Acquire(ctx, w.orders.Pool, client.SlotID(id), client.TTL(w.orders.TTL), client.Wait(patience(i)))
		if err != nil {
			return nil, err
		}
		return held, nil
	}, func() (token, passed uint64) { return held.Token(), 0 })
	if err != nil || !took {
		return err
	}
	if err := w.use(at, held, held.Token(), i); err != nil {
		return err
	}
	return w.finish(at, "RELEASED", held.Release)
}

func patience(i int) time.Duration {
	switch {
	case i%6 == 5:
		return 30 * time.Millisecond
	case i%10 == 7:
		return client.NoWait
	}
	return 10 * time.Second
}

func tokenIn(begun *govnodev1.BeginCallResponse, pool string) uint64 {
	for _, g := range begun.GetGrants() {
		if g.GetPool() == pool {
			return g.GetToken()
		}
	}
	return 0
}

// A lease is what calls and slots have in common.
type lease interface {
	Deadline() time.Time
	Lost() <-chan struct{}
}

// ask notes down the intent, asks until there is an answer, and notes that
// down. It reports whether the slot was granted.
func (w *worker) ask(at entry, ask func() (lease, error), granted func() (token, passed uint64)) (took bool, err error) {
	at.What = wroteIntent
	if err := w.ledger.write(at); err != nil {
		return false, err
	}
	var l lease
	err = w.insist(at.Session, at.ID, func() (err error) {
		l, err = ask()
		return err
	})
	at.What = wroteAnswer
	if at.Outcome = outcomeOf(err); at.Outcome != "" {
		return false, w.ledger.write(at)
	}
	if err != nil {
		return false, err
	}
	at.Outcome = admitted
	at.Token, at.Passed = granted()
	if err := w.ledger.write(at); err != nil {
		return false, err
	}
	at.What, at.Until = wroteEnter, machineTime()+time.Until(l.Deadline())
	return true, w.ledger.write(at)
}

// insist does something again, with the same ids, until somebody says what
// became of it. Nobody else could: so a worker that is told to stop goes on
// with this.
func (w *worker) insist(session, id string, do func() error) error {
	for {
		err := do()
		if !isUnanswered(err) {
			return err
		}
		if id != "" {
			if err := w.ledger.write(entry{What: wroteUnknown, Session: session, ID: id, Note: err.Error()}); err != nil {
				return err
			}
		}
	}
}

// use works in the slot for a while, or until it is lost.
func (w *worker) use(at entry, l lease, token uint64, i int) error {
	at.Token = token
	end := time.NewTimer(time.Duration(80+i*37%170) * time.Millisecond)
	defer end.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	finished := end.C
	if w.holding.Load() {
		finished = nil
		at.What = wroteHolding
		if err := w.ledger.write(at); err != nil {
			return err
		}
	}
	deadline := l.Deadline()
	for {
		at.What = ""
		select {
		case <-finished:
			at.What = wroteLeave
		case <-l.Lost():
			at.What = wroteLost
			if err := w.ledger.write(at); err != nil {
				return err
			}
			at.What = wroteLeave
		case <-look.C:
			if d := l.Deadline(); d.After(deadline) {
				deadline = d
				at.What, at.Until = wroteRenewed, machineTime()+time.Until(d)
				if err := w.ledger.write(at); err != nil {
					return err
				}
			}
			continue
		}
		return w.ledger.write(at)
	}
}

// finish notes down that a call or slot is given back, does it, and notes down
// what became of that.
func (w *worker) finish(at entry, good string, do func() error) error {
	at.What = wroteFinish
	if err := w.ledger.write(at); err != nil {
		return err
	}
	err := w.insist(at.Session, at.ID, do)
	at.What, at.Outcome = wroteDone, good
	if refused := outcomeOf(err); refused != "" {
		at.Outcome, err = refused, nil
	}
	if err != nil {
		return err
	}
	return w.ledger.write(at)
}
