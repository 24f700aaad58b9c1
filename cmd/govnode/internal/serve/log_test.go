package serve

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// An output that takes nothing until it may, and then everything.
type hangingOutput struct {
	may  chan struct{}
	took bytes.Buffer
}

func (h *hangingOutput) Write(p []byte) (int, error) {
	<-h.may
	return h.took.Write(p)
}

// Who writes to a log that hangs goes on. What finds no room is counted, and the log says
// at that place how much it was, once it is read again. All else is there in its order.
func TestLogThatHangs(t *testing.T) {
	t.Parallel()
	out := &hangingOutput{may: make(chan struct{})}
	w := newLogWriter(&config.Config{LogFormat: "json", LogLevel: "info"}, out)
	write := func(n int) {
		_, err := fmt.Fprintf(w, "%06d%s\n", n, strings.Repeat(".", 1017)) // a KiB
		require.NoError(t, err)
	}
	write(0) // the output has this one, and hangs
	const room, lost = maxQueued >> 10, 7
	for n := range room + lost {
		write(1 + n)
	}
	require.False(t, w.flush(time.Millisecond), "everything is said to be out of a log that hangs")
	close(out.may)
	require.True(t, w.flush(time.Minute))
	write(9999)

	lines := strings.Split(strings.TrimSpace(out.took.String()), "\n")
	require.Len(t, lines, 1+room+1+1)
	for n, line := range lines[:1+room] {
		require.True(t, strings.HasPrefix(line, fmt.Sprintf("%06d.", n)), "line %d is %.6s", n, line)
	}
	require.Contains(t, lines[1+room], `"level":"ERROR"`)
	require.Contains(t, lines[1+room], fmt.Sprintf(`"lines":%d`, lost))
	require.True(t, strings.HasPrefix(lines[2+room], "009999"))
}

// Where the output does not hang, a line is out when whoever wrote it goes on: what he
// does next may be to end the process.
func TestLogIsOutAtOnce(t *testing.T) {
	t.Parallel()
	out := &hangingOutput{may: make(chan struct{})}
	close(out.may)
	w := newLogWriter(&config.Config{}, out)
	for n := range 100 {
		_, err := fmt.Fprintln(w, n)
		require.NoError(t, err)
		require.True(t, w.flush(time.Minute)) // else what follows would be a race on a slow machine
		require.True(t, strings.HasSuffix(out.took.String(), fmt.Sprintf("%d\n", n)))
	}
}
