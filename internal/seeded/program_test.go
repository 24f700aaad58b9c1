package seeded

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that is built as always has nothing of this package in it, neither
// names of bugs nor code. One that is built for the proof has both, so that the
// test can fail.
func TestNothingIsInTheProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it reads the symbols of ELF")
	}
	if testing.Short() {
		t.Skip("it builds the program")
	}
	names, symbols := traces(t, "hashicorpmetrics")
	require.Empty(t, names)
	require.Empty(t, symbols)
	if os.Getenv("CI") == "" {
		return // the second program takes longer than all the rest; whether this test can fail changes seldom
	}
	names, symbols = traces(t, "hashicorpmetrics,seeded")
	require.Len(t, names, len(marks))
	require.NotEmpty(t, symbols)
}

// marks are strings that are only in a program that has bugs.
var marks = []string{"GOVNODE_SEEDED", "snapshot-forgets", "audit-gap"}

// traces builds the program and returns which marks and symbols of the package,
// or of helpers of its bugs, are in it.
func traces(t *testing.T, tags string) (names, symbols []string) {
	path := filepath.Join(t.TempDir(), "govnode")
	out, err := exec.Command("go", "build", "-tags", tags, "-o", path, "../../cmd/govnode").CombinedOutput()
	require.NoError(t, err, "%s", out)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, m := range marks {
		if bytes.Contains(b, []byte(m)) {
			names = append(names, m)
		}
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	all, err := f.Symbols()
	require.NoError(t, err)
	for _, s := range all {
		if strings.Contains(s.Name, "internal/seeded.") || strings.Contains(s.Name, "cluster.seeded") {
			symbols = append(symbols, s.Name)
		}
	}
	return names, symbols
}
