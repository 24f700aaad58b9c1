package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/audit"

	"example.com/govnode/internal/server/fault"
)

// A sink is a file that can hang and fail.
type sink struct {
	written
	hang chan struct{} // writes hang until it is closed; nil: they do not
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return s.written.Write(b)
}

// stop lets writes hang until it is called again.
func (s *sink) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hang != nil {
		close(s.hang)
		s.hang = nil
		return
	}
	s.hang = make(chan struct{})
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Whatever happens to the file, an answer waits for its line no longer than it
// should, nobody waits behind a write that hangs, and all of it is said.
func TestAFileThatHangs(t *testing.T) {
	for _, required := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var file sink
			var said []error
			l := newLog(&file, func(int, error) { t.Error("nothing is lost") })
			l.required, l.patience, l.state = required, 2*time.Second, func(why error) { said = append(said, why) }
			number := func(n uint64) uint64 { return l.add(func(l line) line { return l.number("n", n) }) }

			require.NoError(t, l.flush(number(1)))
			file.stop()
			for i, wait := range []time.Duration{2 * time.Second, 0, 0} {
				begun := time.Now()
				err := l.flush(number(uint64(i) + 2))
				require.Equal(t, wait, time.Since(begun))
				require.Equal(t, required, err != nil)
				if required {
					require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err))
					require.ErrorContains(t, err, "a write does not come back")
				}
				require.Equal(t, required, l.admit() != nil)
				require.ErrorIs(t, l.failing(), errAuditHangs)
			}
			require.Equal(t, []error{errAuditHangs}, said)
			file.stop()
			require.NoError(t, l.settled())
			require.NoError(t, l.admit())
			require.NoError(t, l.failing())
			require.Equal(t, []error{errAuditHangs, nil}, said)
			require.Equal(t, "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n{\"n\":4}\n", file.text())
			l.close()
		})
	}
}

// settled waits for what comes of a write that hung, and then for all lines.
func (l *auditLog) settled() error {
	synctest.Wait()
	return l.flushAll()
}

// Lines that are required and could not be written are kept, however the file cut
// them off, and are there once and whole when it can be written again.
func TestRequiredLinesAreKept(t *testing.T) {
	const first, second = "{\"n\":1}\n", "{\"n\":2}\n"
	for room := range len(first + second) {
		synctest.Test(t, func(t *testing.T) {
			var file sink
			full := errors.New("no space left on device")
			var said []error
			l := newLog(&file, func(int, error) { t.Error("nothing is lost") })
			l.required, l.state = true, func(why error) { said = append(said, why) }
			file.room = room
			file.fail(full)
			l.add(func(l line) line { return l.number("n", 1) })
			last := l.add(func(l line) line { return l.number("n", 2) })
			err := l.flush(last)
			if whole := room == len(first+second)-1; whole { // but for the end of the line
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, full.Error())
				reason := fault.Of(err).Reason
				require.Equal(t, fault.ReasonNotApplied, reason, "what was applied is for the trace to say")
			}
			require.Error(t, l.admit())
			time.Sleep(3*auditRetry + auditRetry/2) // it is tried again and again
			file.fail(nil)
			time.Sleep(auditRetry)
			synctest.Wait()
			require.NoError(t, l.flush(last))
			require.NoError(t, l.admit())
			require.Equal(t, []error{full, nil}, said)
			whole := ""
			for text := range strings.Lines(file.text()) {
				if text == first || text == second {
					whole += text
				}
			}
			require.Equal(t, first+second, whole, "%q", file.text())
			l.close()
		})
	}
}

// What is kept while nothing can be written is bounded, and what is lost for that
// is told.
func TestKeptLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file sink
		lost := 0
		l := newLog(&file, func(n int, _ error) { lost += n })
		l.patience = time.Second
		file.stop()
		text := strings.Repeat("x", 1<<20)
		for range 40 {
			require.NoError(t, l.flush(l.add(func(l line) line { return l.text("x", text) })))
		}
		require.Less(t, len(l.pending), maxPendingLines+2<<20)
		require.Equal(t, 40-1-16, lost, "one is on its way, and some are kept")
		file.stop()
		synctest.Wait()
		require.Equal(t, 17, strings.Count(file.text(), "\n"))
		l.close()
	})
}

// A chained line that is lost leaves a gap in the numbers of the lines: nobody takes what
// is there for all.
func TestALostLineLeavesAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file sink
		l := newLog(&file, func(int, error) {})
		l.patience, l.chain = time.Second, &audit.Tail{Node: "n1"}
		file.stop()
		lines := maxPendingLines>>20 + 3
		for range lines {
			require.NoError(t, l.flush(l.add(func(l line) line { return l.text("x", strings.Repeat("x", 1<<20)) })))
		}
		file.stop()
		synctest.Wait()
		last := l.add(func(l line) line { return l.text("x", "the last one") })
		require.NoError(t, l.flush(last))
		r, err := audit.Verify([]audit.File{{Name: "f", Text: strings.NewReader(file.text())}}, audit.Against{})
		require.NoError(t, err)
		require.Len(t, r.Problems, 1)
		require.Contains(t, r.Problems[0].What, "missing before this one")
		require.Less(t, r.Lines, lines+1)
		l.close()
	})
}

// A node that ends gives what is not written its time, and says what was lost.
func TestCloseSaysWhatIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file sink
		var lost []string
		l := newLog(&file, func(n int, why error) { lost = append(lost, fmt.Sprint(n, " ", why)) })
		l.required = true
		file.fail(errors.New("full"))
		last := l.add(func(l line) line { return l.number("n", 1) })
		require.Error(t, l.flush(last))
		l.close()
		l.close()
		synctest.Wait()
		require.Equal(t, "1 full", lost[0])
	})
}

// A line that is required and was lost, since too much came together, is never
// taken for written; and nothing is decided any more before it comes to that.
func TestALineThatWasNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file sink
		lost := 0
		l := newLog(&file, func(n int, why error) { require.ErrorIs(t, why, errAuditFull); lost += n })
		l.required, l.patience, l.state = true, time.Minute, func(error) {}
		text := func(s string) uint64 { return l.add(func(l line) line { return l.text("x", s) }) }

		file.stop()
		text("first")
		l.push() // a slow write, which comes back in time
		synctest.Wait()
		require.NoError(t, l.admit())
		for range maxPendingLines >> 20 {
			text(strings.Repeat("y", 1<<20))
		}
		require.Error(t, l.admit(), "there is room for what is under way alone")
		decision := text("the decision")
		require.Equal(t, 1, lost)
		file.stop()
		require.Error(t, l.flush(decision), "it is in no file")
		require.NotContains(t, file.text(), "the decision")
		synctest.Wait() // what was kept is written
		require.NoError(t, l.flush(text("the next one")))
		require.NoError(t, l.admit())
		require.Contains(t, file.text(), "the next one")
	})
}
