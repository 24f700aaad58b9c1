// Fleet is a worker of a fleet. Start it as often as you like, on as many
// machines as you like: however many workers run, at most three of their calls
// are at work at one time, because all of their sessions share one policy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"example.com/govnode/client"
)

// policy is shared by all workers. Putting the same policy again changes nothing.
const policy = `
name: fleet
max_concurrent: 3          # calls at one time, of all sessions together
backpressure_threshold: 2  # from here on callers are told to slow down
max_tool_calls: 8          # calls of one session
blocked_patterns: ["rm -rf"]
`

func main() {
	name := flag.String("name", "worker", "name of this worker")
	nodes := flag.String("nodes", "127.0.0.1:7070", "addresses of nodes, separated by commas")
	flag.Parse()
	if err := run(context.Background(), *name, strings.Split(*nodes, ",")); err != nil {
		fmt.Fprintln(os.Stderr, *name+":", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string, nodes []string) (err error) {
	c, err := client.New(client.Config{Addresses: nodes})
	if err != nil {
		return err
	}
	// Close gives back what is still held.
	defer func() { err = errors.Join(err, c.Close()) }()

	if _, err := c.PutPolicy(ctx, "", policy); err != nil {
		return err
	}
	session, err := c.CreateSession(ctx, client.Session{Agent: name, Policy: "fleet"})
	if err != nil {
		return err
	}

	// Eight goroutines want to work at once. Those that find no free slot wait.
	var all sync.WaitGroup
	most := make([]int, 8)
	failed := make([]error, len(most))
	for i := range most {
		all.Go(func() {
			failed[i] = session.Do(ctx, client.Call{Tool: "search", Arguments: map[string]any{"page": i}},
				func(_ context.Context, call *client.OpenCall) error {
					most[i] = call.Pressure().InUse
					time.Sleep(50 * time.Millisecond) // the work
					return nil
				})
		})
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	top := 0
	for _, n := range most {
		top = max(top, n)
	}
	fmt.Printf("%s: 8 calls done, at most %d at work at one time in the whole fleet\n", name, top)

	// The ninth call is one too many for this session.
	_, err = session.Begin(ctx, client.Call{Tool: "search"})
	var refused *client.Refused
	if !errors.As(err, &refused) {
		return fmt.Errorf("the ninth call was not refused: %v", err)
	}
	fmt.Printf("%s: the ninth call is refused: %s\n", name, refused.Reason)
	_, err = session.Close(ctx)
	return err
}
