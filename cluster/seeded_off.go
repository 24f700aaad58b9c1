//go:build !seeded

package cluster

// What some seeded bugs need, and no program has: see seeded.go.

func seededClock(_ *Node, c *clock) *clock { return c }

func seededState(*leadership, *fsm) {}

func seededAnswer(*leadership, *entry) bool { return false }
