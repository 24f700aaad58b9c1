package remote

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// Answer asks as Ask does and prints the answer, as text makes it unless JSON is
// asked for.
func Answer[T proto.Message](cmd *cobra.Command, c *config.Config, send func(context.Context, Node) (T, error), text func(io.Writer, T) error) error {
	answer, err := Ask(cmd.Context(), c, send)
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

// LimitFlag bounds what a list command prints: a service may hold millions.
func LimitFlag(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", pageSize, "print at most so many, 0 for all")
}

// A page is an answer that may not be the last.
type page interface {
	proto.Message
	GetNextPageToken() string
}

// List asks for pages until there is none left or limit is reached, and returns
// the last with the items of all. It tells, apart from the list itself, if there
// would have been more.
func List[P page, T any](cmd *cobra.Command, c *config.Config, limit int, items func(P) *[]T, send func(ctx context.Context, r Node, size int32, token string) (P, error)) (P, error) {
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
		if last, err = Ask(cmd.Context(), c, func(ctx context.Context, r Node) (P, error) { return send(ctx, r, int32(size), token) }); err != nil {
			return last, err
		}
		all = append(all, *items(last)...)
		if last.GetNextPageToken() == "" || limit > 0 && len(all) >= limit {
			break
		}
	}
	if last.GetNextPageToken() != "" {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "govnode: there are more: --limit 0 prints all")
	}
	*items(last) = all
	return last, nil
}
