package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// However many writes fail, the node's log has one error a second, and all
// errors together have every line that was lost. The metric counts the writes.
func TestLossesAreSaidOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		registry := prometheus.NewRegistry()
		m, err := newMetrics(registry)
		require.NoError(t, err)
		s := &Server{metrics: m, log: slog.New(slog.NewJSONHandler(&log, nil)), audit: &auditor{}}
		s.audit.reports = newReports(s.auditReport)
		file := written{err: errors.New("no space left on device")}
		s.audit.log = newLog(&file, s.auditLost)
		const writes = 2500
		for range writes { // 2.5 s
			s.audit.log.add(func(l line) line { return l.number("n", 1) })
			_ = s.audit.log.flushAll()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute) // nothing more fails
		synctest.Wait()
		var said []int
		for text := range strings.Lines(log.String()) {
			var l struct {
				Level, Error string
				Lost         int `json:"lines_lost"`
			}
			require.NoError(t, json.Unmarshal([]byte(text), &l))
			require.Equal(t, []string{"ERROR", "no space left on device"}, []string{l.Level, l.Error})
			said = append(said, l.Lost)
		}
		require.Len(t, said, 4, "at once, and after each of three seconds")
		require.Equal(t, 1, said[0])
		require.Equal(t, writes, said[0]+said[1]+said[2]+said[3])
		families, err := registry.Gather()
		require.NoError(t, err)
		counted := 0.
		for _, f := range families {
			if f.GetName() == "gov_audit_write_failures_total" {
				counted = f.Metric[0].Counter.GetValue()
			}
		}
		require.EqualValues(t, writes, counted)

		// After a while without a loss the next is said at once again.
		log.Reset()
		s.audit.log.add(func(l line) line { return l.number("n", 1) })
		_ = s.audit.log.flushAll()
		synctest.Wait()
		require.Contains(t, log.String(), `"lines_lost":1`)
		time.Sleep(time.Minute)
	})
}

// Where the node's own log hangs with the audit log, as it does where both go to one
// collector, answers wait for neither. When that reads again it is told how things stand
// and of every line that was lost, and what is left when the node ends is said before.
func TestBothLogsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var audit, log sink
		m, err := newMetrics(prometheus.NewRegistry())
		require.NoError(t, err)
		s := &Server{metrics: m, log: slog.New(slog.NewTextHandler(&log, nil)), audit: &auditor{}}
		s.audit.reports = newReports(s.auditReport)
		l := newLog(&audit, s.auditLost)
		l.state, l.patience = s.auditState, 2*time.Second
		number := func(n uint64) uint64 { return l.add(func(l line) line { return l.number("n", n) }) }
		audit.stop()
		log.stop()
		for i, wait := range []time.Duration{2 * time.Second, 0, 0} {
			begun := time.Now()
			require.NoError(t, l.flush(number(uint64(i))))
			require.NoError(t, l.admit())
			require.Equal(t, wait, time.Since(begun))
		}
		text := strings.Repeat("x", 1<<20)
		for range maxPendingLines>>20 + 3 {
			require.NoError(t, l.flush(l.add(func(l line) line { return l.text("x", text) })))
		}
		audit.stop()
		synctest.Wait()
		require.Empty(t, log.text())
		log.stop()
		time.Sleep(reportsEvery)
		synctest.Wait()
		require.Contains(t, log.text(), "answers do not wait for it")
		require.Contains(t, log.text(), "lines_lost=3")
		require.Contains(t, log.text(), "the audit log is written again")

		audit.fail(errors.New("full"))
		require.NoError(t, l.flush(number(8)))
		require.NoError(t, l.flush(number(9)))
		begun := time.Now()
		l.close()
		s.audit.reports.close()
		require.Zero(t, time.Since(begun))
		require.Contains(t, log.text(), "lines_lost=2 error=full")
		log.stop()
		s.audit.reports.lost(1, errAuditFull)
		s.audit.reports.close()
		require.Equal(t, reportsLast, time.Since(begun))
		log.stop()
	})
}
