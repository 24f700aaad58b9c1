package terminal

import (
	"fmt"

	"github.com/spf13/cobra"
)

// pageSize is how many items the list commands ask for at once, which is the
// most that a node gives.
const pageSize = 1000

// LimitFlag bounds what a list command prints: a service may hold millions.
func LimitFlag(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", pageSize, "print at most so many, 0 for all")
}

// EachPage asks for pages until there is none left or limit is reached. It
// returns whether there would have been more.
func EachPage(limit int, page func(size int32, token string) (got int, next string, err error)) (more bool, err error) {
	if limit < 0 {
		return false, Usagef("limit: %d (flag --limit): must be 0 or more", limit)
	}
	token := ""
	for left := limit; ; {
		size := pageSize
		if limit > 0 {
			size = min(size, left)
		}
		got, next, err := page(int32(size), token)
		if err != nil {
			return false, err
		}
		left -= got
		if next == "" || limit > 0 && left <= 0 {
			return next != "", nil
		}
		token = next
	}
}

// NoteMore tells that a list was cut, apart from the list itself.
func NoteMore(cmd *cobra.Command, more bool) {
	if more {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "govnode: there are more: --limit 0 prints all")
	}
}
