package edictum

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/edictum"
)

// Command is `govnode edictum`.
func Command() *cobra.Command {
	return terminal.Group("edictum", "For users of Edictum", validateCommand(), checkCommand(), diffCommand(), replayCommand(), testCommand(), workflowCommand(), keyCommand())
}

func keyCommand() *cobra.Command {
	key := edictum.Key{}
	var role string
	cmd := &cobra.Command{
		Use:   "key NAME",
		Short: "Draw a key for an SDK",
		Long: `Draws a key for an SDK of Edictum, and prints it with the entry that goes into the file
of --edictum-keys. The file holds the hash alone: the key is not shown again.`,
		Example: `  govnode edictum key laptop
  govnode edictum key desk --role operator --namespace tenant-1`,
		Args: terminal.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			drawn, hash := edictum.NewKey()
			key.Name, key.Hash, key.Role = args[0], hash, edictum.Role(role)
			entry := fmt.Sprintf("{name: %s, hash: %q, namespace: %s, environment: %s, role: %s}", key.Name, hash, key.Namespace, key.Environment, key.Role)
			if _, err := edictum.ParseKeys([]byte("keys: [" + entry + "]")); err != nil {
				return terminal.Usagef("%v", err)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "KEY %s\n\nkeys:\n  - %s\n", drawn, entry)
			return err
		},
	}
	cmd.Flags().StringVar(&role, "role", string(edictum.Agent), "agent|operator: an operator decides approvals and puts rulesets")
	cmd.Flags().StringVar(&key.Namespace, "namespace", "default", "`name` of the namespace that its holder works in")
	cmd.Flags().StringVar(&key.Environment, "environment", "production", "`name` of the environment whose rulesets are its holder's, and no others; \"\" for any")
	return cmd
}
