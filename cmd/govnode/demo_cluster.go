package main

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

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A demoCluster is what `govnode dev` runs, and what it has said about its
// nodes.
type demoCluster struct {
	http  *http.Client
	end   context.CancelFunc
	ended chan error // what dev returned, once

	mu    sync.Mutex
	line  []byte // of dev's output, not ended yet
	nodes []demoNode
	ready chan struct{}
	told  bool
}

// A demoNode is a node by its last "node" line.
type demoNode struct {
	name, api string
	pid       int
	starts    int
}

// clusterSettings are those of a cluster that somebody watches: on free ports,
// and it says little by itself.
func clusterSettings() *Config {
	c := bind(&cobra.Command{}, onDev)
	c.Listen, c.LogLevel = "127.0.0.1:0", "warn"
	return c
}

// startCluster runs dev until ctx ends or the cluster is stopped.
func startCluster(ctx context.Context, settings *Config, stderr io.Writer) (*demoCluster, error) {
	if err := settings.check(onDev); err != nil {
		return nil, err
	}
	c := &demoCluster{http: &http.Client{Timeout: time.Second}, ended: make(chan error, 1), ready: make(chan struct{})}
	ctx, c.end = context.WithCancel(ctx)
	go func() { c.ended <- dev(ctx, settings, c, stderr) }()
	select {
	case <-c.ready:
		return c, nil
	case err := <-c.ended:
		c.end()
		if err == nil {
			err = errors.New("interrupted")
		}
		return nil, err
	}
}

// Write takes what dev prints.
func (c *demoCluster) Write(p []byte) (int, error) {
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

func (c *demoCluster) hear(line string) {
	var n demoNode
	if _, err := fmt.Sscanf(line, "node %s api=%s pid=%d", &n.name, &n.api, &n.pid); err == nil {
		i := slices.IndexFunc(c.nodes, func(o demoNode) bool { return o.name == n.name })
		if i < 0 {
			c.nodes = append(c.nodes, n)
			i = len(c.nodes) - 1
		}
		n.starts = c.nodes[i].starts + 1
		c.nodes[i] = n
		slices.SortFunc(c.nodes, func(a, b demoNode) int { return strings.Compare(a.name, b.name) })
		return
	}
	if line == "ready" && !c.told {
		c.told = true
		close(c.ready)
	}
}

// list returns the nodes in the order of their names.
func (c *demoCluster) list() []demoNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

func (c *demoCluster) node(name string) (demoNode, bool) {
	nodes := c.list()
	i := slices.IndexFunc(nodes, func(n demoNode) bool { return n.name == name })
	if i < 0 {
		return demoNode{}, false
	}
	return nodes[i], true
}

func (c *demoCluster) addresses() (all []string) {
	for _, n := range c.list() {
		all = append(all, n.api)
	}
	return all
}

// leader returns the node that the first to answer takes for the leader, other
// than one that is known to be dead; empty if nobody knows.
func (c *demoCluster) leader(ctx context.Context, but string) string {
	for _, n := range c.list() {
		if n.name == but {
			continue
		}
		status, err := govnodev1connect.NewClusterServiceClient(c.http, "http://"+n.api).Status(ctx, &govnodev1.StatusRequest{})
		if err == nil && status.GetLeader() != "" && status.GetLeader() != but {
			return status.GetLeader()
		}
	}
	return ""
}

// isReady reports whether a node takes work.
func (c *demoCluster) isReady(ctx context.Context, n demoNode) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.api+"/readyz", nil)
	if err != nil {
		return false
	}
	res, err := c.http.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// stop ends all nodes, and at once: what they hold is thrown away with their
// folder, so that there is nothing to drain.
func (c *demoCluster) stop() error {
	c.end()
	for _, n := range c.list() {
		_ = c.kill(n) // it may have ended already
	}
	return <-c.ended
}

// kill ends a node without warning. Dev starts it again.
func (c *demoCluster) kill(n demoNode) error {
	p, err := os.FindProcess(n.pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
