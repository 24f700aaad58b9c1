package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// newLogger makes the log of a node.
func newLogger(c *Config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: logLevels[c.LogLevel]}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// newAudit opens where decisions are written, one JSON object a line (policy
// engine spec 17.1, adapter contract 19.1). The returned function closes it.
func newAudit(c *Config, stdout io.Writer) (*slog.Logger, func() error, error) {
	path := c.Audit
	if path == "" && c.Data != "" {
		path = filepath.Join(c.Data, "audit.jsonl")
	}
	if path == "" || path == "-" {
		return auditTo(stdout), func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("audit: cannot append to %s: %w; give another file with --audit", path, err)
	}
	return auditTo(f), f.Close, nil
}

// auditTo writes the fields of the specification alone: what a log adds to
// every line (time, level, message) is in them under its own names.
func auditTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{}
			}
			return a
		},
	}))
}
