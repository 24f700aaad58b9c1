package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/internal/server"
)

// The local socket: how the first token is made, and how a lost one is replaced.
// Whoever can open it may write the node's disk, and is an operator of the cluster.

// SocketName is the socket's name in the data folder.
const SocketName = "govnode.sock"

// maxSocketPath is how long the path of a Unix socket may be on every system.
const maxSocketPath = 103

// socketPath is where the socket of a node is; empty where it has none.
func socketPath(c *config.Config) string {
	switch {
	case c.Socket != "":
		return c.Socket
	case c.Auth == config.AuthTokens && c.Data != "":
		return filepath.Join(c.Data, SocketName)
	}
	return ""
}

// listenLocal opens the socket; nil where there is none.
func listenLocal(c *config.Config) (net.Listener, error) {
	path := socketPath(c)
	if path == "" {
		return nil, nil
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket: the path %s has %d bytes, and a socket's may have %d; give a shorter one with --socket", path, len(path), maxSocketPath)
	}
	folder := filepath.Dir(path)
	info, err := os.Stat(folder)
	if err != nil {
		return nil, fmt.Errorf("socket: %w; make the folder, or give another path with --socket", err)
	}
	if err := ownFolder(folder, info); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("socket: another process listens on %s; stop it, or give another path with --socket", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("socket: %s is there and is no socket; move it away, or give another path with --socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed
		return nil, fmt.Errorf("socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close())
	}
	return l, nil
}

// socketCanBe refuses what listenLocal would, as far as it is known before the node opens
// anything: it would have founded or joined a cluster by then.
func socketCanBe(c *config.Config) error {
	path := socketPath(c)
	if path == "" {
		return nil
	}
	folder := filepath.Dir(path)
	info, err := os.Stat(folder)
	if err != nil {
		return nil // the folder of the data may be made yet
	}
	return ownFolder(folder, info)
}

// ownFolder refuses a folder that others than the node's own user may enter.
func ownFolder(folder string, info os.FileInfo) error {
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return fmt.Errorf("socket: others than you may enter the folder %s, and whoever opens the socket in it is an operator; run chmod 700 %s, or give a path in another folder with --socket", folder, folder)
}

// newLocalServer serves a handler to those who are the node's own user.
func newLocalServer(h http.Handler, log *slog.Logger) *http.Server {
	s := newHTTPServer(h, log)
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		uid, err := peerUID(conn)
		if err != nil || uid != os.Geteuid() && uid != 0 {
			log.Warn("the local socket was opened by another user, who is refused", "uid", uid, "error", err)
			_ = conn.Close()
			return ctx
		}
		return server.Local(ctx, uid)
	}
	return s
}
