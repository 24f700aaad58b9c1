package edictum

import (
	"github.com/spf13/cobra"
	"math"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

func checkCommand() *cobra.Command {
	var tool, args, environment string
	var role, user, ticket string
	cmd := command(&cobra.Command{
		Use:   "check FILE...",
		Short: "Judge one call by rulesets",
		Long: `Judges one call by the pre rules and sandboxes of rulesets, without a node. What is
counted is not looked at.`,
		Example: `  govnode edictum check base.yaml --tool Bash --args '{"command": "rm -rf /"}'`,
		Args:    terminal.Arguments(1, math.MaxInt),
	}, func(o *output, files []string) error {
		rs, _, err := load(files)
		if err != nil {
			return err
		}
		parsed, err := value.Parse([]byte(args))
		if err != nil || parsed.Kind() != value.Map {
			return terminal.Usagef("args: %q must be a JSON object", args)
		}
		call := &edictum.Call{Tool: tool, Args: parsed, Environment: environment, Explain: true}
		for name, text := range map[string]string{"role": role, "user_id": user, "ticket_ref": ticket} {
			if text != "" {
				call.Principal = call.Principal.With(name, value.OfString(text))
			}
		}
		v := rs.Before(call)
		if err := sayVerdict(o, &v, call, environment); err != nil {
			return err
		}
		if v.Action != edictum.Allow {
			return no()
		}
		return nil
	})
	cmd.Flags().StringVar(&tool, "tool", "", "`name` of the tool")
	cmd.Flags().StringVar(&args, "args", "", "its arguments, a JSON object")
	cmd.Flags().StringVar(&environment, "environment", "production", "`name` of the environment")
	cmd.Flags().StringVar(&role, "principal-role", "", "role of whom the call is made for")
	cmd.Flags().StringVar(&user, "principal-user", "", "their user id")
	cmd.Flags().StringVar(&ticket, "principal-ticket", "", "their ticket")
	_ = cmd.MarkFlagRequired("tool")
	_ = cmd.MarkFlagRequired("args")
	return cmd
}

func sayVerdict(o *output, v *edictum.Verdict, call *edictum.Call, environment string) error {
	if o.json {
		answer := map[string]any{
			"tool": call.Tool, "args": plain(call.Args), "decision": decisions[v.Action], "reason": v.Reason,
			"rules_evaluated": len(v.Records), "environment": environment,
		}
		if v.Rule != "" {
			answer["rule_id"] = v.Rule
		}
		return o.print(answer)
	}
	switch v.Action {
	case edictum.Block:
		return o.say("✗ BLOCKED by %s — %s", v.Rule, terminal.Printable(v.Reason))
	case edictum.Ask:
		return o.say("? ASK by %s — %s", v.Rule, terminal.Printable(v.Reason))
	}
	return o.say("✓ ALLOWED (%d rules evaluated)", len(v.Records))
}
