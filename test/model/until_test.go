package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/report"
)

// TestUntil runs seeds for as long as GOVNODE_L0_UNTIL says, or to the first
// failure, which it writes as it is and does not make short: for whoever wants
// to know whether there is one.
func TestUntil(t *testing.T) {
	text := os.Getenv("GOVNODE_L0_UNTIL")
	if text == "" {
		t.Skip("it is run for seeded bugs")
	}
	limit, err := time.ParseDuration(text)
	require.NoError(t, err, "GOVNODE_L0_UNTIL")
	start := time.Now()
	l := report.Layer{Name: "L0"}
	for seed := uint64(3); time.Since(start) < limit && len(l.Violations) == 0; seed++ {
		l.Seeds = append(l.Seeds, seed)
		c := NewChecker()
		g := NewGenerator(seed, c.Model)
		for range 2500 {
			if err := c.Step(g.Step()); err != nil {
				var f *Failure
				require.True(t, errors.As(err, &f), "%v", err)
				l.Violations = append(l.Violations, fmt.Sprintf("%s: %s", f.Check, f.What))
				break
			}
		}
		l.Operations += c.Counts.All()
	}
	l.Took = time.Since(start)
	b, err := json.Marshal(l)
	require.NoError(t, err)
	fmt.Println("report: " + string(b))
}
