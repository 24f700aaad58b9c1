package sandbox_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum/sandbox"
	"example.com/govnode/engine/value"
)

// testdata/attacks.txt, line by line.
func TestAttacks(t *testing.T) {
	raw, err := os.ReadFile("testdata/attacks.txt")
	require.NoError(t, err)
	var box *sandbox.Box
	seen := 0
	for i, line := range strings.Split(string(raw), "\n") {
		at := fmt.Sprintf("attacks.txt:%d: %s", i+1, line)
		if section, ok := strings.CutPrefix(line, "== "); ok {
			_, spec, _ := strings.Cut(section, " | ")
			box = boxOf(t, spec)
			continue
		}
		inside := strings.HasPrefix(line, "in ")
		if !inside && !strings.HasPrefix(line, "out ") {
			continue
		}
		seen++
		text := strings.TrimSpace(line[4:strings.LastIndex(line, "  # ")])
		metadata := value.OfMap()
		if before, cwd, ok := strings.Cut(text, "} @ "); ok {
			text = before + "}"
			metadata = value.OfMap(value.Pair{Key: "cwd", Value: value.OfString(cwd)})
		}
		args, err := value.Parse([]byte(text))
		require.NoError(t, err, at)
		detail, got, err := box.Check(args, metadata)
		require.NoError(t, err, at)
		require.Equal(t, inside, got, "%s: %s", at, detail)
		require.Equal(t, inside, detail == "", at)
	}
	require.GreaterOrEqual(t, seen, 200)
}

func boxOf(t *testing.T, text string) *sandbox.Box {
	t.Helper()
	var s struct {
		Within     []string `json:"within"`
		NotWithin  []string `json:"not_within"`
		Commands   []string `json:"commands"`
		Domains    []string `json:"domains"`
		NotDomains []string `json:"not_domains"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	return sandbox.New(sandbox.Spec(s))
}
