package transport

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// Logger returns the logger that Raft is given: it hands everything to slog.
func Logger(l *slog.Logger) hclog.Logger { return &hclogger{out: l.With("from", "raft")} }

// hclogger is slog with the methods of hclog. Raft's own "info" is what an
// operator calls debug, and its warnings, of elections and of followers that
// catch up, are information, so that both are lowered by one level.
type hclogger struct {
	out     *slog.Logger
	name    string
	implied []any
}

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Error:
		return slog.LevelError
	case hclog.Warn:
		return slog.LevelInfo
	case hclog.Info:
		return slog.LevelDebug
	}
	return slog.LevelDebug - 4
}

// ofPeers begin the messages, of whatever level, about another member that does
// not answer, that is behind or that asks for votes. A member that is started
// again, or joins, causes dozens of them; one that stays away is told of once,
// by the node itself.
var ofPeers = []string{
	"appendEntries rejected, sending older logs",
	"failed to appendEntries to",
	"failed to contact",
	"failed to decode incoming command",
	"failed to flush response",
	"failed to get previous log",
	"failed to heartbeat to",
	"failed to make requestVote RPC",
	"failed to pipeline appendEntries",
	"failed to send snapshot to",
	"failed to start pipeline replication to",
	"peer has newer term, stopping replication",
	"rejecting pre-vote request",
	"rejecting vote request",
}

// levelOf returns the level of a message. That a leader has lost its majority
// begins as one about a peer does.
func levelOf(l hclog.Level, msg string) slog.Level {
	about := func(start string) bool { return strings.HasPrefix(msg, start) }
	if slices.ContainsFunc(ofPeers, about) && !about("failed to contact quorum") {
		return min(slogLevel(l), slog.LevelDebug)
	}
	return slogLevel(l)
}

func (h *hclogger) enabled(l hclog.Level) bool {
	return h.out.Enabled(context.Background(), slogLevel(l))
}

// Log implements hclog.Logger.
func (h *hclogger) Log(l hclog.Level, msg string, args ...any) {
	level := levelOf(l, msg)
	if !h.out.Enabled(context.Background(), level) {
		return
	}
	shown := make([]any, len(args))
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			a = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		shown[i] = a
	}
	h.out.Log(context.Background(), level, msg, shown...)
}

func (h *hclogger) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hclogger) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hclogger) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hclogger) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hclogger) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hclogger) IsTrace() bool { return h.enabled(hclog.Trace) }
func (h *hclogger) IsDebug() bool { return h.enabled(hclog.Debug) }
func (h *hclogger) IsInfo() bool  { return h.enabled(hclog.Info) }
func (h *hclogger) IsWarn() bool  { return h.enabled(hclog.Warn) }
func (h *hclogger) IsError() bool { return h.enabled(hclog.Error) }

func (h *hclogger) ImpliedArgs() []any { return h.implied }

func (h *hclogger) With(args ...any) hclog.Logger {
	return &hclogger{out: h.out.With(args...), name: h.name, implied: append(h.implied[:len(h.implied):len(h.implied)], args...)}
}

func (h *hclogger) Name() string { return h.name }

func (h *hclogger) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h *hclogger) ResetNamed(name string) hclog.Logger {
	return &hclogger{out: h.out, name: name, implied: h.implied}
}

// SetLevel does nothing: levels are those of the slog handler.
func (h *hclogger) SetLevel(hclog.Level) {}

func (h *hclogger) GetLevel() hclog.Level { return hclog.NoLevel }

func (h *hclogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(h.out.Handler(), slog.LevelDebug)
}

func (h *hclogger) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return h.StandardLogger(o).Writer()
}
