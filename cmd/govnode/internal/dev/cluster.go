package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A Cluster is what `govnode dev` runs, and what it has said about its
// nodes.
type Cluster struct {
	http  *http.Client
	end   context.CancelFunc
	Ended chan error // what dev returned, once

	mu    sync.Mutex
	line  []byte // of dev's output, not ended yet
	nodes []Node
	ready chan struct{}
	told  bool
}

// A Node is a node by its last "node" line.
type Node struct {
	Name, API string
	PID       int
	Starts    int
}

// Settings are those of a cluster that somebody watches: on free ports,
// and it says little by itself.
func Settings() *config.Config {
	c := config.Bind(&cobra.Command{}, config.OnDev)
	c.Listen, c.LogLevel = "127.0.0.1:0", "warn"
	return c
}

// Start runs dev until ctx ends or the cluster is stopped.
func Start(ctx context.Context, settings *config.Config, stderr io.Writer) (*Cluster, error) {
	if err := settings.Check(config.OnDev); err != nil {
		return nil, err
	}
	c := &Cluster{http: &http.Client{Timeout: time.Second}, Ended: make(chan error, 1), ready: make(chan struct{})}
	ctx, c.end = context.WithCancel(ctx)
	go func() { c.Ended <- Run(ctx, settings, c, stderr) }()
	select {
	case <-c.ready:
		return c, nil
	case err := <-c.Ended:
		c.end()
		if err == nil {
			err = errors.New("interrupted")
		}
		return nil, err
	}
}

// Write takes what dev prints.
func (c *Cluster) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.line = append(c.line, p...)
	for {
		line, rest, whole := bytes.Cut(c.line, []byte{'\n'})
		if !whole {
			return len(p), nil
		}
		c.line = rest
		c.hear(string(line))
	}
}

func (c *Cluster) hear(line string) {
	var n Node
	if _, err := fmt.Sscanf(line, "node %s api=%s pid=%d", &n.Name, &n.API, &n.PID); err == nil {
		i := slices.IndexFunc(c.nodes, func(o Node) bool { return o.Name == n.Name })
		if i < 0 {
			c.nodes = append(c.nodes, n)
			i = len(c.nodes) - 1
		}
		n.Starts = c.nodes[i].Starts + 1
		c.nodes[i] = n
		slices.SortFunc(c.nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
		return
	}
	if line == "ready" && !c.told {
		c.told = true
		close(c.ready)
	}
}

// List returns the nodes in the order of their names.
func (c *Cluster) List() []Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Node returns a node by its name.
func (c *Cluster) Node(name string) (Node, bool) {
	nodes := c.List()
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, false
	}
	return nodes[i], true
}

// Addresses are those of the API of all nodes.
func (c *Cluster) Addresses() (all []string) {
	for _, n := range c.List() {
		all = append(all, n.API)
	}
	return all
}

// Leader returns the node that the first to answer takes for the leader, other
// than one that is known to be dead; empty if nobody knows.
func (c *Cluster) Leader(ctx context.Context, but string) string {
	for _, n := range c.List() {
		if n.Name == but {
			continue
		}
		status, err := govnodev1connect.NewClusterServiceClient(c.http, "http://"+n.API).Status(ctx, &govnodev1.StatusRequest{})
		if err == nil && status.GetLeader() != "" && status.GetLeader() != but {
			return status.GetLeader()
		}
	}
	return ""
}

// IsReady reports whether a node takes work.
func (c *Cluster) IsReady(ctx context.Context, n Node) bool {
	return takesWork(ctx, c.http, n.API) == nil
}

// Stop ends all nodes, and at once: what they hold is thrown away with their
// folder, so that there is nothing to drain.
func (c *Cluster) Stop() error {
	c.end()
	for _, n := range c.List() {
		_ = c.Kill(n) // it may have ended already
	}
	return <-c.Ended
}

// Kill ends a node without warning. Dev starts it again.
func (c *Cluster) Kill(n Node) error {
	p, err := os.FindProcess(n.PID)
	if err != nil {
		return err
	}
	return p.Kill()
}
