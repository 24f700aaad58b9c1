package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/processes/disks"
)

const (
	// diskTimeout is short, so that a disk that hangs is given up soon.
	diskTimeout = 2 * time.Second

	poolName, policyName = "narrow", "power"
	poolSlots            = 2
	policyText           = "name: power\nmax_concurrent: 64\nbackpressure_threshold: 64\nmax_tool_calls: 1000000\n"
)

// A cluster is three nodes.
type cluster struct {
	nodes []*node
	rng   *rand.Rand
}

// newCluster starts a cluster and makes what clients share.
func newCluster(program string, rng *rand.Rand) (c *cluster, err error) {
	c = &cluster{rng: rng}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	addresses, err := freeAddresses(21000+os.Getpid()%500*20, 6)
	if err != nil {
		return c, err
	}
	for i, name := range []string{"a", "b", "c"} {
		n := &node{name: name, api: addresses[i], raft: addresses[3+i], program: program, store: "boltdb"}
		size := int64(64)
		if rng.IntN(3) == 0 {
			n.store, size = "wal", 256 // a file of it has 64 MB
		}
		n.args = []string{"--join", addresses[3+(i+1)%3] + "," + addresses[3+(i+2)%3]}
		if n.disk, err = disks.New(name, size); err != nil {
			return c, err
		}
		c.nodes = append(c.nodes, n)
	}
	if _, err := c.nodes[0].start("--bootstrap", "--bootstrap-wait", "0s"); err != nil {
		return c, err
	}
	for _, n := range c.nodes[1:] {
		if _, err := n.start(); err != nil {
			return c, err
		}
	}
	if err := c.whole(); err != nil {
		return c, err
	}
	return c, c.prepare()
}

// prepare makes what clients share.
func (c *cluster) prepare() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	base := "http://" + c.nodes[0].api
	if _, err := govnodev1connect.NewSlotServiceClient(plain, base).PutPool(ctx, &v1.PutPoolRequest{Pool: poolName, Slots: poolSlots, RequestId: "pool"}); err != nil {
		return err
	}
	_, err := govnodev1connect.NewPolicyServiceClient(plain, base).PutPolicy(ctx, &v1.PutPolicyRequest{Name: policyName, Yaml: policyText, RequestId: "policy"})
	return err
}

// whole waits until all nodes take work and have a vote.
func (c *cluster) whole() error {
	if err := ready(c.nodes...); err != nil {
		return err
	}
	end := time.Now().Add(readyWithin)
	for {
		status, err := c.status(c.nodes[0])
		voters := 0
		if err == nil {
			for _, p := range status.Peers {
				if p.Role != "nonvoter" {
					voters++
				}
			}
		}
		if voters == len(c.nodes) && status.Leader != "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the cluster has %d voters and the leader %q: %w", voters, status.GetLeader(), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *cluster) status(n *node) (*v1.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return govnodev1connect.NewClusterServiceClient(plain, "http://"+n.api).Status(ctx, &v1.StatusRequest{})
}

// leader returns the node that leads, or any where none does.
func (c *cluster) leader() *node {
	for _, n := range c.nodes {
		if status, err := c.status(n); err == nil {
			for _, n := range c.nodes {
				if n.name == status.Leader {
					return n
				}
			}
		}
	}
	return c.any()
}

func (c *cluster) any() *node { return c.nodes[c.rng.IntN(len(c.nodes))] }

// some returns so many nodes.
func (c *cluster) some(count int) (all []*node) {
	for _, i := range c.rng.Perm(len(c.nodes))[:count] {
		all = append(all, c.nodes[i])
	}
	return all
}

// restart starts nodes whose processes have ended, and waits until they take
// work.
func (c *cluster) restart(nodes ...*node) error {
	for _, n := range nodes {
		if _, err := n.start(); err != nil {
			return err
		}
	}
	return ready(nodes...)
}

// replace gives a node an empty disk, on which it joins again.
func (c *cluster) replace(n *node) error {
	if err := n.disk.Wipe(); err != nil {
		return err
	}
	if _, err := n.start("--replace"); err != nil {
		return err
	}
	if err := ready(n); err != nil {
		return err
	}
	return c.whole()
}

// surprises returns what is wrong with processes that have ended.
func (c *cluster) surprises() (errs []error) {
	for _, n := range c.nodes {
		if err := n.running().surprise(n.name); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// close ends the cluster and its disks.
func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		if p := n.running(); p != nil {
			errs = append(errs, p.kill())
		}
		errs = append(errs, n.disk.Remove())
	}
	return errors.Join(errs...)
}

// A connection is how a client reaches one node.
type connection struct {
	counters govnodev1connect.CounterServiceClient
	slots    govnodev1connect.SlotServiceClient
	sessions govnodev1connect.SessionServiceClient
	calls    govnodev1connect.CallServiceClient
}

func (c *cluster) connect(client *http.Client) (all []connection) {
	for _, n := range c.nodes {
		base := "http://" + n.api
		all = append(all, connection{
			govnodev1connect.NewCounterServiceClient(client, base), govnodev1connect.NewSlotServiceClient(client, base),
			govnodev1connect.NewSessionServiceClient(client, base), govnodev1connect.NewCallServiceClient(client, base),
		})
	}
	return all
}

// unreachable reports whether an error says that nobody listens.
func unreachable(err error) bool {
	return connect.CodeOf(err) == connect.CodeUnavailable && strings.Contains(err.Error(), "connection refused")
}
