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
func newAudit(c *Config, stdout io.Writer) (io.Writer, func() error, error) {
	path := c.Audit
	if path == "" && c.Data != "" {
		path = filepath.Join(c.Data, "audit.jsonl")
	}
	if path == "" || path == "-" {
		return stdout, func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("audit: cannot append to %s: %w; give another file with --audit", path, err)
	}
	return f, f.Close, nil
}
