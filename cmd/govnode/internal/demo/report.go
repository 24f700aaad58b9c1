package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A demoReport is what the demo has found.
type demoReport struct {
	Seconds         float64        `json:"seconds"`
	Workers         int            `json:"workers"`
	Sessions        int            `json:"sessions"`
	Admitted        int            `json:"admitted"`
	Refused         map[string]int `json:"refused"`
	Resolved        int            `json:"resolved"` // outcomes learned by sending the same id again
	LeasesLost      int            `json:"leasesLost"`
	MostSlots       int            `json:"mostSlots"`
	SlotLimit       int            `json:"slotLimit"`
	OverLimit       int            `json:"overLimit"`
	Leaked          int            `json:"leaked"`
	LostOrDoubled   int            `json:"lostOrDoubled"`
	Stop            gate           `json:"stop"`
	Rate            gate           `json:"rate"`
	Budget          gate           `json:"budget"`
	Approval        gate           `json:"approval"`
	LongestSilence  float64        `json:"longestSilenceSeconds"`
	SilenceEnded    float64        `json:"silenceEndedAtSeconds"`
	LeaderKilled    string         `json:"leaderKilled"`
	LeaderBack      float64        `json:"leaderBackAfterSeconds"`
	WorkersKilled   int            `json:"workersKilled"`
	SlotsFreedAfter []float64      `json:"slotsFreedAfterSeconds"`
	Problems        []string       `json:"problems"`
	OK              bool           `json:"ok"`
}

// A must is something that must not have happened, and how often it did.
type must struct {
	what string
	n    int
	how  string // it was put to the test, if there is more to say
}

func (r *demoReport) musts() []must {
	return []must{
		{"over-limit events", r.OverLimit, ""},
		{"slots leaked", r.Leaked, ""},
		{"counts lost or doubled", r.LostOrDoubled, ""},
		{"calls admitted while stopped", r.Stop.Violations, r.Stop.How},
		{"calls over their rate", r.Rate.Violations, r.Rate.How},
		{"calls over their budget", r.Budget.Violations, r.Budget.How},
		{"calls without their approval", r.Approval.Violations, r.Approval.How},
	}
}

// settle checks the ledgers against the service. Stopped is when the workers
// were told to stop.
func (d *demoRun) settle(ctx context.Context, stopped time.Duration) error {
	d.say("checking %d ledgers against the service", len(d.fleet))
	leaked, err := d.leaked(ctx)
	if err != nil {
		return err
	}
	r := &d.report
	for i := range d.fleet {
		n, err := d.resolve(ctx, i)
		if err != nil {
			return fmt.Errorf("worker %d: an outcome stays unknown: %w", i+1, err)
		}
		r.Resolved += n
	}
	d.books.count()
	wrong, err := d.wrongCounts(ctx)
	if err != nil {
		return err
	}
	uses := d.books.uses()
	r.Seconds = (stopped - d.started).Seconds()
	r.Workers, r.Sessions = len(d.fleet), len(d.books.sessions)
	r.Admitted, r.Refused = d.books.outcomes()
	r.SlotLimit, r.Leaked, r.LostOrDoubled = demoSlots, leaked, wrong
	var over int
	r.MostSlots, over = most(uses, demoSlots)
	r.OverLimit = over + d.books.overCalls(demoCallLimit) + repeatedTokens(uses)
	r.Stop = whileStopped(d.books.calls(), d.books.stop)
	silence, at := d.books.silence(d.books.stop.lifted, stopped) // before that the fleet was silent on purpose
	r.LongestSilence, r.SilenceEnded = silence.Seconds(), (at - d.started).Seconds()
	for i, w := range d.books.workers {
		r.LeasesLost += w.lost
		if d.fleet[i].killed {
			r.WorkersKilled++
		}
	}
	return d.complete(ctx)
}

// leaked waits until every lease must have ended and returns how many slots are
// held nevertheless.
func (d *demoRun) leaked(ctx context.Context) (int, error) {
	deadline := machineTime() + d.options.ttl() + leaseGrace
	for {
		n := 0
		for _, pool := range []string{demoPool, turnstile, "policy/" + demoPolicy} {
			slots, err := d.client.ListSlots(ctx, pool)
			if err != nil {
				return 0, err
			}
			n += len(slots.GetSlots()) + len(slots.GetWaiters())
		}
		if n == 0 || machineTime() > deadline {
			return n, nil
		}
		select {
		case <-ctx.Done():
			return n, ctx.Err()
		case <-time.After(pollOfDemo):
		}
	}
}

// wrongCounts compares the counters of every session with the ledgers.
func (d *demoRun) wrongCounts(ctx context.Context) (wrong int, err error) {
	for _, id := range d.books.sessionIDs() {
		book := d.books.sessions[id]
		s, err := d.client.Session(id).Read(ctx)
		var objection *client.Error
		if errors.As(err, &objection) && objection.Code == connect.CodeNotFound {
			s, err = &govnodev1.Session{}, nil // it was never created; then nothing may have been counted
		}
		if err != nil {
			return 0, err
		}
		for _, c := range []struct {
			name            string
			has, had, again int
		}{
			{"attempts", int(s.GetAttempts()), book.attempts, book.again},
			{"calls", int(s.GetCalls()), book.calls, 0},
			{"executions", int(s.GetExecutions()), book.executions, 0},
			{"failures", int(s.GetFailures()), book.failures, 0},
			{"open calls", len(s.GetOpenCalls()), 0, 0},
		} {
			if n := max(c.has-c.had-c.again, c.had-c.has); n > 0 {
				wrong += n
				d.say("!!! session %s: the service has %d %s, the ledger of worker %d has %d", id, c.has, c.name, book.worker+1, c.had)
			}
		}
	}
	return wrong, nil
}

// complete waits for what was still being watched and sees to it that the demo
// has shown what it is there for: a check of nothing proves nothing.
func (d *demoRun) complete(ctx context.Context) error {
	err := await(ctx, "the leader is back and the slots are free", func() (bool, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.problems) > 0 || d.report.LeaderBack > 0 && len(d.freed) == d.report.WorkersKilled, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.report
	if err != nil && len(d.problems) == 0 {
		d.problems = append(d.problems, err.Error())
	}
	for _, f := range d.freed {
		r.SlotsFreedAfter = append(r.SlotsFreedAfter, f.Seconds())
	}
	if r.WorkersKilled != 2 {
		d.problems = append(d.problems, fmt.Sprintf("%d workers were killed, not 2", r.WorkersKilled))
	}
	d.problems = append(d.problems, d.books.unmet()...)
	for i, g := range []gate{r.Stop, r.Rate, r.Budget, r.Approval} {
		if g.Admitted == 0 || g.KeptOut == 0 {
			name := []string{"STOP", "rate", "budget", "approvals"}[i]
			d.problems = append(d.problems, fmt.Sprintf("the %s let %d calls in and kept %d out, so it was not put to the test", name, g.Admitted, g.KeptOut))
		}
	}
	r.Problems = append([]string{}, d.problems...)
	r.OK = len(r.Problems) == 0 && !slices.ContainsFunc(r.musts(), func(m must) bool { return m.n != 0 })
	return nil
}

// verdict is the error that ends the program, if there is something wrong.
func (r *demoReport) verdict() error {
	if r.OK {
		return nil
	}
	problems := r.Problems
	for _, m := range r.musts() {
		if m.n != 0 {
			problems = append(problems, fmt.Sprintf("%s: %d", m.what, m.n))
		}
	}
	return errors.New("demo: " + strings.Join(problems, "; "))
}

func (r *demoReport) print(w io.Writer, how string) error {
	if how == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(what, format string, args ...any) {
		_, _ = fmt.Fprintf(t, "  %s\t%s\n", what, fmt.Sprintf(format, args...))
	}
	_, _ = fmt.Fprintln(t)
	row("calls and slots admitted", "%d, in %d sessions of %d workers, in %.0f s", r.Admitted, r.Sessions, r.Workers, r.Seconds)
	for _, o := range slices.SortedFunc(maps.Keys(r.Refused), func(a, b string) int { return r.Refused[b] - r.Refused[a] }) {
		row("refused: "+strings.ToLower(strings.ReplaceAll(o, "_", " ")), "%d", r.Refused[o])
	}
	row("outcomes learned by sending the id again", "%d", r.Resolved)
	row("leases lost by living workers", "%d", r.LeasesLost)
	row("leader killed", "%s, back after %.1f s", r.LeaderKilled, r.LeaderBack)
	row("workers killed with a slot", "%d, their slots free after %s", r.WorkersKilled, seconds(r.SlotsFreedAfter))
	row("longest time without an outcome", "%.2f s, until %.1f s", r.LongestSilence, r.SilenceEnded)
	row("most slots ever in use", "%d of %d", r.MostSlots, r.SlotLimit)
	if err := t.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(t, "\nWhat must be 0:")
	for _, m := range r.musts() {
		n := strconv.Itoa(m.n)
		if m.how != "" {
			n += "\t" + m.how
		}
		row(m.what, "%s", n)
	}
	return t.Flush()
}

func seconds(all []float64) string {
	if len(all) == 0 {
		return "-"
	}
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = fmt.Sprintf("%.1f s", s)
	}
	return strings.Join(texts, " and ")
}
