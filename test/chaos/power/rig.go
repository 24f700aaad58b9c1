package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/chaos/trail"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/processes/disks"
)

const (
	// diskTimeout is short, so that a disk that hangs is given up soon.
	diskTimeout = 2 * time.Second
	// readyWithin is how long nodes may take, on a machine that has other things
	// to do, until they are whole when nothing is wrong any more.
	readyWithin = 30 * time.Second

	poolName, policyName = "narrow", "power"
	poolSlots            = 2
	namespace            = "default"
	policyText           = "name: power\nmax_concurrent: 64\nbackpressure_threshold: 64\nmax_tool_calls: 1000000\n"
)

// A Rig is a cluster of three nodes on disks of their own, and what befalls them.
// It is for one goroutine.
type Rig struct {
	*processes.Cluster
	Rand     *rand.Rand // of the plan
	Log      func(format string, args ...any)
	Faults   map[string]int
	Recovery []time.Duration // from the start of nodes whose power was cut until all are ready

	folder   string // of what is on no disk of the nodes
	audits   *trail.Trail
	disks    map[*processes.Node]*disks.Disk
	tampered map[*processes.Node][]*disks.Tamperer
}

// A Failure is one of the rig, and says nothing about the cluster.
type Failure struct{ error }

// NewRig makes the disks and starts a cluster on them.
func NewRig(program string, network processes.Network, rng *rand.Rand, log func(format string, args ...any), args ...string) (r *Rig, err error) {
	r = &Rig{
		Rand: rng, Log: log, Faults: map[string]int{},
		disks: map[*processes.Node]*disks.Disk{}, tampered: map[*processes.Node][]*disks.Tamperer{},
	}
	if err := disks.Sweep(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	store, size := "boltdb", int64(256)
	if rng.IntN(3) == 0 {
		store, size = "wal", 1024 // each entry that is taken back begins another file of 64 MB
	}
	byName := map[string]*disks.Disk{}
	// A full disk is met: that nodes refuse new work before it is tried elsewhere.
	args = append([]string{"--disk-reserve", "0", "--log-store", store, "--raft-disk-timeout", diskTimeout.String(), "--log-level", "warn"}, args...)
	r.Cluster, err = processes.New(program, network, 3, func(node string) string {
		d, failed := disks.New(node, size)
		if failed != nil {
			err = failed
			return ""
		}
		byName[node] = d
		return filepath.Join(d.Folder(), "data")
	}, args...)
	if r.Cluster == nil {
		return r, errors.Join(err, network.Close())
	}
	for _, n := range r.Nodes {
		if byName[n.Name] != nil {
			r.disks[n] = byName[n.Name]
		}
	}
	if err != nil || len(r.disks) < len(r.Nodes) {
		return r, errors.Join(errors.New("power: no disks"), err)
	}
	if r.folder, err = os.MkdirTemp("", "govnode-power-*"); err != nil {
		return r, err
	}
	if err := r.Secure(filepath.Join(r.folder, "tls")); err != nil {
		return r, err
	}
	r.audits = trail.New(r.Cluster, r.folder, time.Now())
	if err := r.Found(readyWithin); err != nil {
		return r, err
	}
	return r, r.Whole()
}

// Close ends the cluster and its disks.
func (r *Rig) Close() error {
	var err error
	if r.Cluster != nil {
		for _, n := range r.Nodes {
			r.leave(n)
		}
		err = r.Cluster.Close()
	}
	for _, d := range r.disks {
		err = errors.Join(err, d.Remove())
	}
	if r.folder != "" {
		err = errors.Join(err, os.RemoveAll(r.folder))
	}
	return err
}

// prepare makes what clients share.
func (r *Rig) prepare() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	token, err := r.Secured.NewToken(r.Nodes[0], namespace, "operator,policy-author")
	if err != nil {
		return err
	}
	by, base := r.With(token), r.URL(r.Nodes[0])
	if _, err := govnodev1connect.NewSlotServiceClient(by, base).PutPool(ctx, &v1.PutPoolRequest{Pool: poolName, Slots: poolSlots, RequestId: "pool"}); err != nil {
		return err
	}
	_, err = govnodev1connect.NewPolicyServiceClient(by, base).PutPolicy(ctx, &v1.PutPolicyRequest{Name: policyName, Yaml: policyText, RequestId: "policy"})
	return err
}

// Whole waits until all nodes run, are well and have a vote.
func (r *Rig) Whole() error {
	for end := time.Now().Add(readyWithin); ; time.Sleep(20 * time.Millisecond) {
		err := r.Ready(0)
		if err == nil {
			if err = r.voters(); err == nil {
				return nil
			}
		}
		for _, n := range r.Nodes {
			if !n.Runs() {
				return fmt.Errorf("%s does not run: %w", n.Name, errors.Join(n.Forgive()...))
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("not whole after %v: %w", readyWithin, err)
		}
	}
}

func (r *Rig) voters() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s, err := r.Status(ctx, r.Nodes[0])
	if err != nil {
		return err
	}
	count := 0
	for _, p := range s.Peers {
		if p.Role != "nonvoter" {
			count++
		}
	}
	if count != len(r.Nodes) {
		return fmt.Errorf("there are %d voters", count)
	}
	return nil
}

func (r *Rig) any() *processes.Node { return r.Nodes[r.Rand.IntN(len(r.Nodes))] }

func (r *Rig) leader() *processes.Node {
	if n := r.Leader(); n != nil {
		return n
	}
	return r.any()
}

// some returns so many nodes.
func (r *Rig) some(count int) (all []*processes.Node) {
	for _, i := range r.Rand.Perm(len(r.Nodes))[:count] {
		all = append(all, r.Nodes[i])
	}
	return all
}

// work lets clients work for a while.
func (r *Rig) work(d time.Duration) { time.Sleep(d) }

// restart starts nodes that do not run, and waits until all are whole.
func (r *Rig) restart(nodes ...*processes.Node) error {
	for _, n := range nodes {
		if err := r.Cluster.Start(n); err != nil {
			return Failure{err}
		}
	}
	return r.Whole()
}

// tamper lets something befall what a node does to its disk.
func (r *Rig) tamper(n *processes.Node, t disks.Tampering) error {
	x, err := t.Attach(n.Pid())
	if err != nil {
		return Failure{err}
	}
	r.tampered[n] = append(r.tampered[n], x)
	return nil
}

// leave ends all tampering with a node.
func (r *Rig) leave(n *processes.Node) {
	for _, x := range r.tampered[n] {
		x.Detach()
	}
	delete(r.tampered, n)
}

// cut cuts the power of nodes, all at once, and mounts their disks as they are
// when it comes back. A node that is frozen first does nothing after the cut; one
// that is not sees its disk go.
func (r *Rig) cut(freeze bool, nodes ...*processes.Node) error {
	if freeze {
		for _, n := range nodes {
			n.Pause()
		}
	}
	if err := r.audits.Cut(nodes, func() error {
		var errs []error
		for _, n := range nodes {
			errs = append(errs, r.disks[n].Cut())
		}
		var ends sync.WaitGroup
		for _, n := range nodes {
			r.leave(n)
			ends.Go(func() { n.Kill() })
		}
		ends.Wait()
		for _, n := range nodes {
			errs = append(errs, r.disks[n].Remount())
		}
		return errors.Join(errs...)
	}); err != nil {
		return Failure{err}
	}
	_, err := lastWords(nodes...)
	return err
}

// lastWords returns what nodes said that ended by themselves, as they should.
// None of them ends with a stack trace.
func lastWords(nodes ...*processes.Node) (said string, err error) {
	for _, n := range nodes {
		said += fmt.Sprint(errors.Join(n.Forgive()...))
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "\ngoroutine ") {
		return said, fmt.Errorf("a stack trace: %s", said)
	}
	return said, nil
}

// cutPower cuts the power of nodes and brings it back. One time in four the
// processes go on for a moment.
func (r *Rig) cutPower(nodes ...*processes.Node) error {
	if err := r.cut(r.Rand.IntN(4) > 0, nodes...); err != nil {
		return err
	}
	if len(nodes) < len(r.Nodes) {
		r.work(time.Duration(r.Rand.IntN(400)) * time.Millisecond) // the others go on, or wait
	}
	began := time.Now()
	err := r.restart(nodes...)
	r.Recovery = append(r.Recovery, time.Since(began))
	return err
}

// surprises returns what nobody meant to end.
func (r *Rig) surprises() (errs []error) {
	for _, n := range r.Nodes {
		errs = append(errs, n.Failures()...)
	}
	return errs
}

// A connection is how a client reaches one node.
type connection struct {
	counters govnodev1connect.CounterServiceClient
	slots    govnodev1connect.SlotServiceClient
	sessions govnodev1connect.SessionServiceClient
	calls    govnodev1connect.CallServiceClient
}

func (r *Rig) connect(client *http.Client) (all []connection) {
	for _, n := range r.Nodes {
		base := r.URL(n)
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

// Loopback is a network of addresses of this machine, of which nothing is lost.
type Loopback struct{}

// Place implements processes.Network.
func (Loopback) Place(node string) (listen, advertise string, command []string, err error) {
	n := 0
	if _, err := fmt.Sscanf(node, "n%d", &n); err != nil {
		return "", "", nil, err
	}
	address := fmt.Sprintf("127.%d.%d.%d", 100+os.Getpid()/250%100, 1+os.Getpid()%250, n)
	return address, address, nil, nil
}

// Hold implements processes.Network.
func (Loopback) Hold(processes.Weather, ...processes.Link) func() { return nil }

// Close implements processes.Network.
func (Loopback) Close() error { return nil }
