package engine

import "log/slog"

// discard keeps the expected failures of tests out of their output.
var discard = slog.New(slog.DiscardHandler)

func file(path, content string) File { return File{Path: path, Content: []byte(content)} }
