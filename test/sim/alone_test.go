package sim

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/cluster"
	"example.com/govnode/test/alone"
)

// TestAlone plays each script some times while nothing is wrong: none ends early. Then it
// looks at what a restore, a restart and a new disk leave, and at many who wait.
func TestAlone(t *testing.T) {
	if out, err := testProcess(t.Context(), "^TestAloneInVirtualTime$", "GOVNODE_L1_ALONE=1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := testProcess(t.Context(), "^(TestRestores.*|TestCrowds|TestComesBack|TestFollows)InVirtualTime$", "GOVNODE_L1_ALONE=1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestAloneInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	inVirtualTime(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		f, err := newFleet(3, rng, slog.New(slog.DiscardHandler), func(*cluster.Config) {})
		require.NoError(t, err)
		defer func() { require.NoError(t, f.end()) }()
		require.NoError(t, f.found())
		to := f.httpClient("c1")
		defer to.CloseIdleConnections()
		var urls []string
		for _, a := range f.apis() {
			urls = append(urls, "http://"+a)
		}
		shipped, err := client.New(client.Config{Addresses: urls, Name: "c1", HTTPClient: to, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer func() { require.NoError(t, shipped.Close()) }()
		c := alone.New("c1", urls, to, shipped, map[string]*http.Client{"amy": nil, "bob": nil}, rng, func(text string) { t.Error(text) })
		c.Guards = f.guards
		plays := 2
		if os.Getenv("GOVNODE_L1") == "long" {
			plays = 5
		}
		for _, name := range alone.Scripts() {
			for range plays {
				begun := time.Now()
				steps, whole := c.Only(t.Context(), name)
				require.Positive(t, steps, name)
				require.True(t, whole, name)
				require.Less(t, time.Since(begun), 10*time.Second, name)
			}
		}
	})
}
