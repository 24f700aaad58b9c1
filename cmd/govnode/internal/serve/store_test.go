package serve

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
)

// What the leader says to a node that asks for admission advises flags too, and
// what is about no setting stays as it is.
func TestErrorsInFlags(t *testing.T) {
	for has, want := range map[string]string{
		"cluster: Join: b is a member already: start it under a new name, or start it with Replace if its data is lost": "join: b is a member already: start it under a new name, or start it with --replace if its data is lost",
		"cluster: Join: b is a member; it tells its new address itself when it is started with Join":                    "join: b is a member; it tells its new address itself when it is started with --join",
		"cluster: Raft has not stopped within 5s":                                                                       "cluster: Raft has not stopped within 5s",
		"cluster: disk: append: no space":                                                                               "cluster: disk: append: no space",
	} {
		require.EqualError(t, inFlags(errors.New(has)), want)
	}
	refused := storage.Fail(storage.NotApplied, storage.Invalid(errors.New("b is a member already: start it with Replace if its data is lost")))
	require.EqualError(t, inFlags(fmt.Errorf("cluster: Join: %w", refused)), "join: b is a member already: start it with --replace if its data is lost")
	for _, flag := range flagOf {
		require.NotNil(t, Command().Flags().Lookup(flag), flag)
	}
}
