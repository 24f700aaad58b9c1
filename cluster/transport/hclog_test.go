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
	out.Reset()
	l.Warn("x", "a", hclog.Fmt("plain"), "b", hclog.Format{}, "c", 7)
	require.Contains(t, out.String(), "a=plain b=[] c=7")
	require.Equal(t, "x.y", l.Named("x").Named("y").Name())
}

// What Raft tells is lowered by one level, but for what is wrong; what it tells of
// another member is for who looks for it.
func TestHowLoudRaftIs(t *testing.T) {
	var out bytes.Buffer
	l := Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug - 4})))
	for _, c := range []struct {
		say        func(msg string, args ...any)
		msg, level string
	}{
		{l.Trace, "something", "DEBUG-4"}, {l.Debug, "something", "DEBUG-4"}, {l.Info, "something", "DEBUG"},
		{l.Warn, "something", "INFO"}, {l.Error, "something", "ERROR"},
		{l.Error, "failed to heartbeat to", "DEBUG"}, {l.Debug, "failed to heartbeat to", "DEBUG-4"},
		{l.Error, "failed to contact quorum of nodes", "ERROR"},
	} {
		out.Reset()
		c.say(c.msg)
		require.Contains(t, out.String(), "level="+c.level+" msg=", "%+v", c.msg)
	}
}
