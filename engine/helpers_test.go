package engine

import (
	"example.com/govnode/engine/source"
	"log/slog"
)

// discard keeps the expected failures of tests out of their output.
var discard = slog.New(slog.DiscardHandler)

func file(path, content string) source.File { return source.File{Path: path, Content: []byte(content)} }
