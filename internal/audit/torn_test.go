package audit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A node that must not lose a line writes it again where a full disk has cut it off, once
// or more often. The pieces are no problem in front of their line, and are one anywhere else.
func TestLinesThatAreWrittenAgain(t *testing.T) {
	lines := strings.SplitAfter(sealedLines(&Tail{Node: "n1"}, `{"x":1`, `{"x":2`, `{"x":3`), "\n")
	piece := lines[1][:len(lines[1])/2] + "\n"
	problems, _ := verified(t, Against{}, lines[0]+piece+piece[:4]+"\n"+lines[1]+lines[2])
	require.Empty(t, problems)

	const named = "this is no whole line of the log: it was cut off by a crash, or changed"
	for at, file := range map[string]string{
		"a:3: ": lines[0] + lines[1] + piece + lines[2], // behind its line
		"a:2: ": lines[0] + strings.Replace(piece, `"x":2`, `"x":4`, 1) + lines[1] + lines[2],
		"a:4: ": strings.Join(lines, "") + piece,
	} {
		problems, _ = verified(t, Against{}, file)
		require.Equal(t, []string{at + named}, problems)
	}
	problems, _ = verified(t, Against{}, lines[0]+piece+lines[2]) // whose line is not there
	require.Contains(t, problems[0], named)
	require.Contains(t, problems[1], "line 2 of node n1 is missing")
}
