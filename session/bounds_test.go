package session

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The bounds that the documentation names, in numbers: the last that passes, and the
// first that does not.
func TestDocumentedBounds(t *testing.T) {
	items := func(n, size int) func(Command) {
		return on(func(c *Append) { c.Items = times(n, func(int) string { return text(size) }) })
	}
	for _, tt := range []struct {
		name, kind string
		pass, fail func(Command)
	}{
		{"rates of a call", "Begin", on(func(c *Begin) { c.Rates = rates(8) }), on(func(c *Begin) { c.Rates = rates(9) })},
		{"the limit of a rate", "PutRate", on(func(c *PutRate) { c.Limit = 1e9 }), on(func(c *PutRate) { c.Limit = 1e9 + 1 })},
		{"the shortest window", "PutRate", on(func(c *PutRate) { c.Per = 100 * time.Millisecond }), on(func(c *PutRate) { c.Per = 100*time.Millisecond - 1 })},
		{"the longest window", "PutRate", on(func(c *PutRate) { c.Per = 24 * time.Hour }), on(func(c *PutRate) { c.Per = 24*time.Hour + 1 })},
		{"items of one Append", "Append", items(256, 1), items(257, 1)},
		{"an item", "Append", items(1, 64<<10), items(1, 64<<10+1)},
		{"how long an item lasts", "Append", on(func(c *Append) { c.TTL = 720 * time.Hour }), on(func(c *Append) { c.TTL = 720*time.Hour + 1 })},
		{"an amount", "PutBudget", on(func(c *PutBudget) { c.Amount = 1e18 }), on(func(c *PutBudget) { c.Amount = 1e18 + 1 })},
		{"the longest period", "PutBudget", on(func(c *PutBudget) { c.Per = 366 * 24 * time.Hour }), on(func(c *PutBudget) { c.Per = 366*24*time.Hour + 1 })},
		{"votes", "Begin", asking(func(c *Begin) { c.Asking.Required, c.Asking.Denials = 8, 8 }), asking(func(c *Begin) { c.Asking.Required = 9 })},
		{"budgets of a call", "Begin", on(func(c *Begin) { c.Budgets = charges(16) }), on(func(c *Begin) { c.Budgets = charges(17) })},
		{"budgets above one", "AdjustBudget", on(func(c *AdjustBudget) { c.Ancestors = times(7, numbered) }), on(func(c *AdjustBudget) { c.Ancestors = times(8, numbered) })},
	} {
		c := validCommands()[tt.kind]
		tt.pass(c)
		require.NoError(t, Validate(c), tt.name)
		c = validCommands()[tt.kind]
		tt.fail(c)
		require.Error(t, Validate(c), tt.name)
	}
}

// What may be sent again without a second effect is what has an id of its caller's, and
// what says how things are to be.
func TestWhatMayBeSentAgain(t *testing.T) {
	for name, c := range validCommands() {
		require.Equal(t, name != "Restore", Repeatable(c), name)
		if _, ok := c.(request); !ok {
			continue
		}
		_, _, ok := IDOf(c)
		require.True(t, ok, name)
		reflect.ValueOf(c).Elem().FieldByName("By").Addr().Interface().(*Maker).Request = ""
		require.False(t, Repeatable(c), "%s that nobody remembers", name)
	}
}
