package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func init() { GuardFootprints() }

func TestFootprintsAreGuarded(t *testing.T) {
	s := New()
	s.guard(&Increment{NS: "n", By: Maker{Client: "c"}, Key: "k"})
	s.write(refOf(CounterKey("n", "k")), &Counter{})
	require.Panics(t, func() { s.write(refOf(CounterKey("n", "l")), &Counter{}) }, "writes")
	require.Panics(t, func() { s.lookup(refOf(CounterKey("n", "l"))) }, "reads")
	require.Panics(t, func() { s.Stored(CounterKey("n", "l")) }, "reads")
	s.ApplyAll(time.Second, []Command{&Restore{}})
	require.Nil(t, s.Stored(CounterKey("n", "l")), "between entries nothing is guarded")
}
