package dev

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// How dev waits for its nodes: each takes work and has all others in its
// cluster.

const (
	// readyTimeout is how long dev waits for its nodes; a start takes seconds.
	readyTimeout = 2 * time.Minute
	// readyPoll is how often it asks them.
	readyPoll = 50 * time.Millisecond
)

// awaitReady returns when every node takes work and has all others in its
// cluster.
func (f *fleet) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for i := 0; i < len(f.layout.places); {
		err := f.nodeReady(ctx, client, f.layout.places[i])
		if err == nil {
			i++
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %v: %w; start again with -v to see what the nodes log", f.layout.places[i].name, readyTimeout, err)
		case <-tick.C:
		}
	}
	f.once.Store(true)
	return nil
}

// nodeReady says what one node is still waiting for.
func (f *fleet) nodeReady(ctx context.Context, client *http.Client, p place) error {
	if err := takesWork(ctx, client, p.api); err != nil {
		return err
	}
	if f.config.Backend != "raft" {
		return nil
	}
	status, err := govnodev1connect.NewClusterServiceClient(client, "http://"+p.api).Status(ctx, &govnodev1.StatusRequest{})
	if err != nil {
		return err
	}
	members := map[string]bool{}
	for _, peer := range status.Peers {
		members[peer.Node] = peer.Role == "leader" || peer.Role == "voter"
	}
	for _, other := range f.layout.places {
		if !members[other.name] {
			return fmt.Errorf("%s is not a member of its cluster yet", other.name)
		}
	}
	return nil
}

// takesWork says why a node does not take work, if it does not.
func takesWork(ctx context.Context, client *http.Client, api string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+api+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %d: %s", res.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}
