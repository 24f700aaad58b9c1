package transport

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func TestHclog(t *testing.T) {
	var out bytes.Buffer
	l := Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	l.Info("entering follower state")
	require.Empty(t, out.String())
	require.False(t, l.IsInfo())
	l.Warn("failed to contact", "server-id", "n2")
	require.Empty(t, out.String(), "a member that is down is told of once, and not by Raft")
	l.Named("x").With("peer", "n2").Warn("failed to contact quorum of nodes", "time", time.Second, "servers", hclog.Fmt("%d of %d", 1, 3))
	require.Contains(t, out.String(), `level=INFO msg="failed to contact quorum of nodes" from=raft peer=n2 time=1s servers="1 of 3"`)
}
