package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	"example.com/govnode/storage"
)

func Example() {
	// A node in this process; usually it is `govnode dev`.
	store := storage.NewMemory(nil)
	node, err := server.New(server.Config{Store: store})
	if err != nil {
		panic(err)
	}
	listener := httptest.NewServer(node.Handler())
	defer listener.Close()

	ctx := context.Background()
	c, err := client.New(client.Config{Addresses: []string{listener.URL}})
	if err != nil {
		panic(err)
	}
	defer func() { _ = c.Close() }()

	if _, err := c.PutPolicy(ctx, "", "name: careful\nallowed_tools: [search]\n"); err != nil {
		panic(err)
	}
	session, err := c.CreateSession(ctx, client.Session{Agent: "writer", Policy: "careful"})
	if err != nil {
		panic(err)
	}
	for _, tool := range []string{"search", "shell"} {
		call, err := session.Begin(ctx, client.Call{Tool: tool})
		var refused *client.Refused
		if errors.As(err, &refused) {
			fmt.Println(tool, "is refused:", refused.Outcome)
			continue
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(tool, "is admitted")
		if err := call.End(ctx, client.Succeeded); err != nil {
			panic(err)
		}
	}
	// Output:
	// search is admitted
	// shell is refused: OUTCOME_DENIED_BY_POLICY
}
