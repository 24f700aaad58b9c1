package remote

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// How commands print what a node has answered: one message, or a list in pages.

// Answer sends a request as Call does and prints the answer, as text makes it
// unless JSON is asked for.
func Answer[Q any, A proto.Message](cmd *cobra.Command, c *config.Config, method Method[Q, A], req Q, text func(io.Writer, A) error) error {
	answer, err := Call(cmd.Context(), c, method, req)
	if err != nil {
		return err
	}
	return Show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error { return text(w, answer) })
}

// Show prints an answer: as JSON if that is asked for, else as text makes it.
func Show(w io.Writer, c *config.Config, answer proto.Message, text func(io.Writer) error) error {
	if c.Output == "json" {
		return terminal.PrintJSON(w, answer)
	}
	return text(w)
}

// pageSize is how many items the list commands ask for at once, which is the
// most that a node gives.
const pageSize = 1000

// A page is an answer that may not be the last.
type page interface {
	proto.Message
	GetNextPageToken() string
}

// A Lister says how to ask for pages of items, and how to print them.
type Lister[Q any, P page, T any] struct {
	Method  Method[Q, P]
	Request func(size int32, token string) Q
	Items   func(P) *[]T
	Text    func(io.Writer, P) error
}

// Command makes a command that prints a list. A flag bounds it: a service may
// hold millions.
func (l Lister[Q, P, T]) Command(cmd *cobra.Command) *cobra.Command {
	var limit int
	cmd.Args = terminal.Arguments(0, 0)
	cmd = config.Leaf(cmd, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		all, err := l.list(cmd, c, limit)
		if err != nil {
			return err
		}
		return Show(cmd.OutOrStdout(), c, all, func(w io.Writer) error { return l.Text(w, all) })
	})
	cmd.Flags().IntVar(&limit, "limit", pageSize, "print at most so many, 0 for all")
	return cmd
}

// list asks for pages until there is none left or limit is reached, and returns
// the last with the items of all. It tells, apart from the list itself, if there
// would have been more.
func (l Lister[Q, P, T]) list(cmd *cobra.Command, c *config.Config, limit int) (P, error) {
	var last P
	if limit < 0 {
		return last, terminal.Usagef("limit: %d (flag --limit): must be 0 or more", limit)
	}
	var all []T
	for token := ""; ; token = last.GetNextPageToken() {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(all))
		}
		var err error
		if last, err = Call(cmd.Context(), c, l.Method, l.Request(int32(size), token)); err != nil {
			return last, err
		}
		all = append(all, *l.Items(last)...)
		if last.GetNextPageToken() == "" || limit > 0 && len(all) >= limit {
			break
		}
	}
	if last.GetNextPageToken() != "" {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "govnode: there are more: --limit 0 prints all")
	}
	*l.Items(last) = all
	return last, nil
}
