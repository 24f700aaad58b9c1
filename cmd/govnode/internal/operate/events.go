package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Events is `govnode events`.
func Events() *cobra.Command {
	var local bool
	var count int
	req := &govnodev1.FollowRequest{}
	cmd := config.Leaf(&cobra.Command{
		Use:   "events",
		Short: "Follow what the policies decide, as it happens",
		Long: `Prints governance events as they occur, one a line, until it is interrupted: those of
all nodes that the one that is asked knows. At its end it prints, on standard error, the
cursor with which --after goes on. Events that are gone by then, because the nodes
keep a bounded number or have started again, are told as a gap.

With -o json each line is a message as the API has it, with its cursor; lines without an
event move the cursor. --timeout is how long to wait for the first message.`,
		Example: `  govnode events --types policy_violation,tool_call_blocked
  govnode events --from-oldest -o json
  govnode events --after CURSOR`,
		Args: terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		if count < 0 {
			return terminal.Usagef("count: %d (flag --count): must be 0 or more", count)
		}
		ctx, stop := process.UntilSignal(cmd.Context())
		defer stop()
		req.Cluster = !local
		f := &following{config: c, request: req, left: count, out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr()}
		err := f.run(ctx)
		if f.cursor != "" {
			f.note("go on behind what was printed with --after %s", f.cursor)
		}
		return err
	})
	fs := cmd.Flags()
	fs.StringVar(&req.After, "after", "", "`cursor` behind which to go on; what occurs from now on if empty")
	fs.BoolVar(&req.FromOldest, "from-oldest", false, "begin with the oldest event that is kept")
	fs.StringSliceVar(&req.Types, "types", nil, "only these `types`, separated by commas: policy_check|policy_violation|tool_call_blocked|checkpoint_created|drift_detected|signal|output_reviewed|budget_warning|budget_exceeded|approval_requested|approval_decided")
	fs.StringVar(&req.SessionId, "session", "", "only those of this session")
	fs.StringVar(&req.AgentId, "agent", "", "only those of this agent")
	fs.BoolVar(&local, "local", false, "only those of the node that is asked")
	fs.IntVar(&count, "count", 0, "end after so many events; 0 for no end")
	return cmd
}

// A following is one run of events.
type following struct {
	config     *config.Config
	request    *govnodev1.FollowRequest
	left       int // events to print before the end; 0 for no end
	out, notes io.Writer

	cursor      string // of the last message that was printed
	unreachable string // the nodes that were told to be
}

var (
	// errEnough ends a following that has printed what was asked for.
	errEnough = errors.New("enough")
	// errSilent says that a node has not said its first word in time.
	errSilent = fmt.Errorf("no first message: %w", context.DeadlineExceeded)
)

// run follows the first node that takes the request, until ctx ends.
func (f *following) run(ctx context.Context) error {
	client, err := remote.NewClient(f.config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var errs []error
	for _, address := range remote.Addresses(f.config) {
		err := f.follow(ctx, remote.NewNode(client, address))
		if errors.Is(err, errEnough) || ctx.Err() != nil {
			return nil
		}
		errs = append(errs, remote.Explain(address, err))
		if f.cursor != "" || remote.IsAnswer(err) {
			break // another node does not know what this one has sent
		}
	}
	return errors.Join(errs...)
}

// follow prints what one node sends, and returns why it ends.
func (f *following) follow(ctx context.Context, r remote.Node) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	first := time.AfterFunc(f.config.Timeout, func() { cancel(errSilent) })
	defer first.Stop()
	why := func(err error) error {
		if errors.Is(context.Cause(ctx), errSilent) {
			return errSilent
		}
		return err
	}
	stream, err := r.Follow(ctx, f.request)
	if err != nil {
		return why(err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		first.Stop()
		if err := f.take(stream.Msg()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return why(err)
	}
	return errors.New("the node ended the stream: follow it again")
}

// take prints one message.
func (f *following) take(m *govnodev1.FollowResponse) error {
	if silent := strings.Join(m.Unreachable, ", "); silent != f.unreachable {
		f.unreachable = silent
		if silent != "" {
			f.note("these nodes do not answer, so their events are missing: %s", silent)
		} else {
			f.note("all nodes answer")
		}
	}
	say := printEvent
	if f.config.Output == "json" {
		say = func(w io.Writer, m *govnodev1.FollowResponse) error { return printJSONLine(w, m) }
	}
	if err := say(f.out, m); err != nil {
		return err
	}
	if m.Cursor != "" {
		f.cursor = m.Cursor
	}
	if m.Event != nil && f.left > 0 {
		if f.left--; f.left == 0 {
			return errEnough
		}
	}
	return nil
}

func (f *following) note(format string, args ...any) {
	_, _ = fmt.Fprintln(f.notes, "govnode:", terminal.Printable(fmt.Sprintf(format, args...)))
}

// printEvent prints an event or a gap on one line, and nothing for a message
// that only moves the cursor.
func printEvent(w io.Writer, m *govnodev1.FollowResponse) error {
	var line string
	switch {
	case m.Event != nil:
		line = eventLine(m.Event)
	case m.Gap != nil:
		line = fmt.Sprintf("gap  %s  %s", m.Gap.Node, gapInWords(m.Gap))
	default:
		return nil
	}
	_, err := fmt.Fprintln(w, terminal.Printable(line))
	return err
}

func eventLine(e *govnodev1.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s", e.Timestamp, e.Node, e.Type)
	for _, field := range []struct{ name, text string }{
		{"agent", e.AgentId}, {"session", e.SessionId}, {"call", e.CallId}, {"tool", e.Tool},
		{"policy", e.Policy}, {"rule", e.Rule}, {"category", e.Category}, {"checkpoint", e.CheckpointId}, {"decision", e.DecisionId},
		{"approval", e.ApprovalId}, {"approver", e.Approver},
	} {
		if field.text != "" {
			fmt.Fprintf(&b, "  %s=%s", field.name, field.text)
		}
	}
	if e.Drift != nil {
		fmt.Fprintf(&b, "  drift=%.3f/%.3f", e.Drift.Score, e.Drift.Threshold)
	}
	if e.DryRun {
		b.WriteString("  dry-run")
	}
	if e.Repeat {
		b.WriteString("  repeat")
	}
	if e.Reason != "" {
		b.WriteString("  " + e.Reason)
	}
	return b.String()
}

func gapInWords(g *govnodev1.Gap) string {
	if g.Missed > 0 {
		return fmt.Sprintf("%d events of the namespace are gone (%s)", g.Missed, g.Reason)
	}
	return fmt.Sprintf("events may be gone (%s)", g.Reason)
}

// printJSONLine prints a message on one line, zero values included.
func printJSONLine(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = line.WriteTo(w)
	return err
}
