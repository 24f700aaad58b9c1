package dev

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// Command is `govnode dev`.
func Command() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster on this machine",
		Long: `Runs a cluster on this machine, each node a process of its own, with nothing to set
up. API ports follow on from --listen, Raft ports are those + 10. One line is printed
for each node, and "ready" once when all of them are in the cluster and take work.

A node that dies, or is killed to see what happens, is started again after 2 s with the
same name, ports and data. The nodes end with this process, however it ends. What they
log is in NAME.log in the data folder.`,
		Example: `  govnode dev
  govnode dev --nodes 1 --backend memory
  govnode dev --data ./cluster`,
		Args: terminal.Arguments(0, 0),
	}, config.OnDev, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		ctx, stop := process.UntilSignal(cmd.Context())
		defer stop()
		return Run(ctx, c, cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
}

// Run runs a cluster until ctx ends or nothing of it is left.
func Run(ctx context.Context, c *config.Config, stdout, stderr io.Writer) (err error) {
	l, err := openLayout(c)
	if err != nil {
		return err
	}
	defer func() {
		if e := l.close(); err == nil {
			err = e
		}
	}()
	agent, operator, err := l.edictumKeys(c)
	if err != nil {
		return err
	}
	if c.Insecure {
		_, _ = fmt.Fprintln(stderr, "govnode: insecure: whoever can reach these nodes can do everything, since nobody is asked who they are")
	}
	fleet, err := startFleet(c, l, stdout, stderr)
	if err != nil {
		return err
	}
	defer fleet.stop()
	readyErr := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { readyErr <- fleet.awaitReady(ctx) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-fleet.failed:
			return err
		case err := <-readyErr:
			if ctx.Err() != nil {
				return nil // it was told to end while it waited
			}
			if err != nil {
				return err
			}
			fleet.say("ready")
			fleet.say("")
			fleet.say("Try it, in another terminal:")
			fleet.say("")
			fleet.say("%s", firstCall(l.places[0].api))
			if agent != "" {
				fleet.say("")
				fleet.say("For SDKs of Edictum: server http://%s, key %s; of an operator %s", l.places[0].api, agent, operator)
			}
		}
	}
}

// firstCall is a line for a shell that puts a policy, opens a session and
// begins a call. All ids are fixed, so that it can be pasted again.
func firstCall(api string) string {
	step := func(method, body string) string {
		return fmt.Sprintf(`curl -sS --fail-with-body -w '\n' -H 'Content-Type: application/json' http://%s/govnode.v1.%s -d '%s'`, api, method, body)
	}
	return step("PolicyService/PutPolicy", `{"yaml":"name: first\nmax_tool_calls: 100\n"}`) +
		" && " + step("SessionService/CreateSession", `{"sessionId":"s1","agentId":"me","policy":{"name":"first"}}`) +
		" && " + step("CallService/BeginCall", `{"sessionId":"s1","callId":"c1","tool":"search","arguments":{"q":"hello"}}`)
}
