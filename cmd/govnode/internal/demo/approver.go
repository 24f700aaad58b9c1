package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// The approver of the demo, which is a process of its own: it looks for payments
// that somebody has to agree to, and decides about them.

// What the approver says to a payment, in its ledger.
const (
	saidYes = "yes"
	saidNo  = "no"
)

// approverOrders is what the approver is told, as the first line of its standard
// input. The line after it is "stop".
type approverOrders struct {
	Addresses []string `json:"addresses"` // the first is asked, the others while it does not answer
	Ledger    string   `json:"ledger"`
	Most      int      `json:"most"` // that a payment may be
}

func demoApproverCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "approver",
		Short:  "The process of demo that decides about payments",
		Hidden: true, // it is of no use without its parent
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return terminal.ExitWith(runApprover(cmd.Context(), cmd.InOrStdin()))
		},
	}
}

// An approver is the process that decides.
type approver struct {
	orders approverOrders
	ledger *ledger
	at     int // of the addresses, the one that is asked
}

func runApprover(ctx context.Context, stdin io.Reader) (err error) {
	var a approver
	lines, err := hearOrders(stdin, &a.orders)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	go obey(lines, map[string]func(){"stop": sync.OnceFunc(func() { close(stop) })})
	if a.ledger, err = openLedger(a.orders.Ledger); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.ledger.close()) }()
	tick := time.NewTicker(pollOfDemo)
	defer tick.Stop()
	for {
		if err := a.round(ctx); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
	}
}

// round decides about all that is pending. What gets no answer is pending in the
// next round, or has been decided.
func (a *approver) round(ctx context.Context) error {
	pending, err := ask(ctx, a, func(ctx context.Context, n remote.Node) (*govnodev1.ApprovalServiceListResponse, error) {
		return n.Approvals.List(ctx, &govnodev1.ApprovalServiceListRequest{State: govnodev1.ApprovalState_APPROVAL_STATE_PENDING})
	})
	if err != nil {
		return nil
	}
	for _, p := range pending.GetApprovals() {
		if err := a.decide(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// decide notes down its vote, gives it, and notes down where that stands in the
// log. It is asked for once and at one node: the answer to a repetition would stand
// behind the vote itself.
func (a *approver) decide(ctx context.Context, p *govnodev1.Approval) error {
	var payment struct {
		Amount int `json:"amount"`
	}
	if err := json.Unmarshal([]byte(p.GetArguments()), &payment); err != nil {
		return fmt.Errorf("the arguments of %s: %w", p.GetId(), err)
	}
	at, decision := entry{What: wroteIntent, Session: p.GetSessionId(), ID: p.GetCallId(), Outcome: saidYes}, govnodev1.Vote_VOTE_APPROVE
	if payment.Amount > a.orders.Most {
		at.Outcome, decision = saidNo, govnodev1.Vote_VOTE_DENY
	}
	if err := a.ledger.write(at); err != nil {
		return err
	}
	decided, err := ask(ctx, a, func(ctx context.Context, n remote.Node) (*govnodev1.ApprovalServiceDecideResponse, error) {
		return n.Approvals.Decide(ctx, &govnodev1.ApprovalServiceDecideRequest{
			Id: p.GetId(), Decision: decision, Approver: "amy", Reason: fmt.Sprintf("up to %d is fine", a.orders.Most),
			RequestId: remote.NewRequestID(), Client: "demo-approver",
		})
	})
	if err != nil {
		return nil
	}
	at.What, at.Index = wroteAnswer, decided.GetIndex()
	return a.ledger.write(at)
}

// ask asks one node. If that gives no answer the next one is asked the next time.
func ask[A any](ctx context.Context, a *approver, send func(context.Context, remote.Node) (A, error)) (A, error) {
	address := a.orders.Addresses[a.at%len(a.orders.Addresses)]
	answer, err := remote.Ask(ctx, &config.Config{Addr: address, Namespace: "default", Timeout: 2 * time.Second}, send)
	if err != nil {
		a.at++
	}
	return answer, err
}
