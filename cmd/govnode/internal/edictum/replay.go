package edictum

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// verdicts are what events say became of a call. Those of other actions are skipped:
// they are of calls of which another event tells.
var verdicts = map[string]string{
	"call_allowed": "ALLOW", "call_blocked": "BLOCK", "call_denied": "BLOCK", "call_would_block": "BLOCK", "call_would_deny": "BLOCK",
}

// A change is a call that would be judged otherwise.
type change struct {
	Tool string `json:"tool_name"`
	Was  string `json:"was_verdict"`
	Now  string `json:"now_verdict"`
	Rule string `json:"blocked_by_rule"`
}

// A replayed is one line of --output.
type replayed struct {
	Tool    string          `json:"tool_name"`
	Args    json.RawMessage `json:"tool_args"`
	Old     string          `json:"old_action"`
	New     string          `json:"new_verdict"`
	Changed bool            `json:"changed"`
	Reasons []string        `json:"block_reasons"`
}

func replayCommand() *cobra.Command {
	var log, to string
	cmd := command(&cobra.Command{
		Use:   "replay FILE",
		Short: "Judge recorded calls by another ruleset",
		Long: `Judges the calls of an audit log, one JSON object a line, by a ruleset, and says which
would be judged otherwise. Lines that cannot be judged are counted as skipped: broken
ones, those of other actions, and those whose arguments are redacted where a rule reads.`,
		Example: "  govnode edictum replay new.yaml --audit-log audit.jsonl",
		Args:    terminal.Arguments(1, 1),
	}, func(o *output, files []string) error {
		rs, doc, err := load(files)
		if err != nil {
			return err
		}
		in, err := os.Open(log)
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }()
		r := &replay{rs: rs, reads: doc.Arguments(), changes: []change{}}
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			if strings.TrimSpace(lines.Text()) != "" {
				r.line(lines.Bytes())
			}
		}
		if err := lines.Err(); err != nil {
			return fmt.Errorf("%s: %w", log, err)
		}
		if to != "" {
			if err := os.WriteFile(to, r.written, 0o600); err != nil {
				return err
			}
		}
		if err := r.say(o); err != nil {
			return err
		}
		if len(r.changes) > 0 {
			return no()
		}
		return nil
	})
	cmd.Flags().StringVar(&log, "audit-log", "", "`file` of events, one JSON object a line")
	cmd.Flags().StringVar(&to, "output", "", "`file` for what becomes of each call, one JSON object a line")
	_ = cmd.MarkFlagRequired("audit-log")
	return cmd
}

// A replay is under way.
type replay struct {
	rs             *edictum.Ruleset
	reads          map[string]bool // first names of arguments that rules read
	total, skipped int
	changes        []change
	written        []byte
}

func (r *replay) line(b []byte) {
	event, err := value.Parse(b)
	if err != nil || event.Kind() != value.Map {
		r.skipped++
		return
	}
	was, judged := verdicts[event.TextAt("action")]
	args, _ := event.Get("tool_args")
	if !judged || event.TextAt("tool_name") == "" || args.Kind() != value.Map || r.hidden(args) {
		r.skipped++
		return
	}
	call := &edictum.Call{Tool: event.TextAt("tool_name"), Args: args, Environment: event.TextAt("environment")}
	call.Principal, _ = event.Get("principal")
	v := r.rs.Before(call)
	now := map[edictum.Action]string{edictum.Allow: "ALLOW", edictum.Block: "BLOCK", edictum.Ask: "ASK"}[v.Action]
	r.total++
	done := replayed{Tool: call.Tool, Args: plain(args), Old: event.TextAt("action"), New: now, Changed: was != now, Reasons: []string{}}
	if v.Reason != "" {
		done.Reasons = append(done.Reasons, v.Reason)
	}
	if done.Changed {
		r.changes = append(r.changes, change{call.Tool, was, now, v.Rule})
	}
	if line, err := json.Marshal(done); err == nil {
		r.written = append(append(r.written, line...), '\n')
	}
}

// hidden reports whether something that a rule reads is redacted.
func (r *replay) hidden(args value.Value) bool {
	for k, v := range args.All() {
		if s, ok := v.AsString(); ok && strings.Contains(s, "[REDACTED]") && (r.reads[k] || r.reads["*"]) {
			return true
		}
	}
	return false
}

func (r *replay) say(o *output) error {
	if o.json {
		return o.print(map[string]any{"total": r.total, "changes": len(r.changes), "skipped": r.skipped, "details": r.changes})
	}
	if err := o.say("Replayed %d events, %d would change", r.total, len(r.changes)); err != nil {
		return err
	}
	if r.skipped > 0 {
		if err := o.say("%d lines were skipped", r.skipped); err != nil {
			return err
		}
	}
	for _, c := range r.changes {
		line := fmt.Sprintf("  %s: was %s, now %s", terminal.Printable(c.Tool), c.Was, c.Now)
		if c.Rule != "" {
			line += " by " + c.Rule
		}
		if err := o.say("%s", line); err != nil {
			return err
		}
	}
	return nil
}
