package engine

import (
	"log/slog"

	"example.com/govnode/engine/source"
)

// discard keeps the expected failures of tests out of their output.
var discard = slog.New(slog.DiscardHandler)

func file(path, content string) source.File { return source.File{Path: path, Content: []byte(content)} }
