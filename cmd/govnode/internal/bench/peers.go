package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// The peers that govnode is compared with: how a Redis and an etcd are found,
// started, driven and ended.

const (
	peerStarts = 30 * time.Second // how long a peer may take to answer
	peerEnds   = 10 * time.Second // and to end when it is asked to
)

// peer finds the programs of a peer before anything is measured.
func (b *benchRun) peer(name string) (benchSystem, error) {
	if name == "redis" {
		path, err := exec.LookPath(b.options.redisServer)
		if err != nil {
			return benchSystem{}, terminal.Usagef("redis-server: %v: install Redis, for instance with apt-get install redis-server, or name the program with --redis-server", err)
		}
		return benchSystem{name: "redis", start: func(ctx context.Context, plan bench.Plan) (*benchDriver, error) { return b.startRedis(ctx, path, plan) }}, nil
	}
	path := b.options.etcdProgram
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return benchSystem{}, err
		}
		path = filepath.Join(filepath.Dir(self), "bench-etcd")
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return benchSystem{}, terminal.Usagef("etcd-program: %v: build it with `make bench-peers`, or name it with --etcd-program", err)
	}
	title := fmt.Sprintf("etcd, %d nodes", b.options.etcdNodes)
	return benchSystem{name: title, start: func(ctx context.Context, plan bench.Plan) (*benchDriver, error) { return b.startEtcd(ctx, path, plan) }}, nil
}

// A peerGroup is the processes of a peer and their folder.
type peerGroup struct {
	folder    string
	processes []*peerProcess
}

type peerProcess struct {
	cmd   *exec.Cmd
	said  *process.Tail
	ended chan struct{}
}

func newPeerGroup() (*peerGroup, error) {
	folder, err := os.MkdirTemp("", "govnode-bench-")
	if err != nil {
		return nil, err
	}
	return &peerGroup{folder: folder}, nil
}

// run starts a process of the group, which ends with this one.
func (g *peerGroup) run(s *process.Spawner, program string, args ...string) error {
	p := &peerProcess{cmd: exec.Command(program, args...), said: &process.Tail{}, ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = g.folder, p.said, p.said
	if err := s.Start(p.cmd); err != nil {
		return err
	}
	g.processes = append(g.processes, p)
	go func() {
		_ = p.cmd.Wait() // how it ended is told by ProcessState
		close(p.ended)
	}()
	return nil
}

// await asks until all is up, a process has ended, or it takes too long.
func (g *peerGroup) await(ctx context.Context, up func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, peerStarts)
	defer cancel()
	for {
		err := up(ctx)
		if err == nil {
			return nil
		}
		for _, p := range g.processes {
			select {
			case <-p.ended:
				return fmt.Errorf("%s has ended (%s): %s", filepath.Base(p.cmd.Path), p.cmd.ProcessState, p.said)
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not come up: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// named returns the processes of the group by a common name, numbered if there
// are several.
func (g *peerGroup) named(name string) func(context.Context) []bench.Process {
	return func(context.Context) (all []bench.Process) {
		for i, p := range g.processes {
			own := name
			if len(g.processes) > 1 {
				own = fmt.Sprintf("%s %d", name, i+1)
			}
			all = append(all, bench.Process{Name: own, PID: p.cmd.Process.Pid})
		}
		return all
	}
}

// stop ends the processes and removes their folder.
func (g *peerGroup) stop() error {
	for _, p := range g.processes {
		if p.cmd.Process.Signal(syscall.SIGTERM) != nil {
			_ = p.cmd.Process.Kill() // on systems without that signal; it may have ended, too
		}
	}
	for _, p := range g.processes {
		select {
		case <-p.ended:
		case <-time.After(peerEnds):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	return os.RemoveAll(g.folder)
}

// freeAddresses finds ports that nobody listens on.
func freeAddresses(n int) ([]string, error) {
	var all []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all are held until all are found
		all = append(all, l.Addr().String())
	}
	return all, nil
}

// startRedis runs a Redis that flushes every change before it answers.
func (b *benchRun) startRedis(ctx context.Context, program string, plan bench.Plan) (*benchDriver, error) {
	at, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	g, err := newPeerGroup()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(at[0])
	err = g.run(b.spawner, program, "--port", port, "--bind", "127.0.0.1", "--dir", g.folder, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--maxclients", "20000")
	if err == nil {
		err = g.await(ctx, func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at[0])
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	if err != nil {
		return nil, errors.Join(err, g.stop())
	}
	t, err := bench.NewRedis(ctx, at[0], plan)
	if err != nil {
		return nil, errors.Join(err, g.stop())
	}
	d := driverOf(t).over(g.stop)
	d.processes = alsoSelf(g.named("redis"))
	return d, nil
}

// startEtcd runs the members of an etcd and its driver.
func (b *benchRun) startEtcd(ctx context.Context, program string, plan bench.Plan) (*benchDriver, error) {
	n := b.options.etcdNodes
	at, err := freeAddresses(2 * n)
	if err != nil {
		return nil, err
	}
	clients, peers := at[:n], at[n:]
	var members []string
	for i, p := range peers {
		members = append(members, fmt.Sprintf("n%d=http://%s", i+1, p))
	}
	g, err := newPeerGroup()
	if err != nil {
		return nil, err
	}
	for i := range n {
		if err = g.run(b.spawner, program, "--name", fmt.Sprintf("n%d", i+1), "--data-dir", filepath.Join(g.folder, fmt.Sprintf("n%d", i+1)),
			"--listen-client-urls", "http://"+clients[i], "--advertise-client-urls", "http://"+clients[i],
			"--listen-peer-urls", "http://"+peers[i], "--initial-advertise-peer-urls", "http://"+peers[i],
			"--initial-cluster", strings.Join(members, ","), "--log-level", "error"); err != nil {
			return nil, errors.Join(err, g.stop())
		}
	}
	if err := g.await(ctx, func(ctx context.Context) error { return etcdHealthy(ctx, clients) }); err != nil {
		return nil, errors.Join(err, g.stop())
	}
	return b.driveEtcd(ctx, program, clients, plan, g)
}

func etcdHealthy(ctx context.Context, clients []string) error {
	for _, c := range clients {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c+"/health", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not healthy yet: %s", c, res.Status)
		}
	}
	return nil
}

// driveEtcd starts the driver, whose client of etcd is not part of govnode.
func (b *benchRun) driveEtcd(ctx context.Context, program string, clients []string, plan bench.Plan, g *peerGroup) (*benchDriver, error) {
	stop := g.stop
	cmd := exec.Command(program, "drive")
	cmd.Stderr = b.logs
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	if err := b.spawner.Start(cmd); err != nil {
		return nil, errors.Join(err, stop())
	}
	// What waits for an answer of the driver learns of an interruption by its
	// end.
	interrupted := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	end := func() error {
		interrupted()
		_ = in.Close()
		err := cmd.Wait()
		if ctx.Err() != nil {
			err = nil
		}
		return errors.Join(err, stop())
	}
	r, err := bench.NewRemote(in, out, clients, plan)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &benchDriver{
		drive:  func(_ context.Context, l bench.Load, p func(bench.Second)) (bench.Run, error) { return r.Drive(l, p) },
		verify: func(context.Context) (bench.Audit, error) { return r.Verify() },
		stop:   end,
		processes: func(ctx context.Context) []bench.Process {
			return append([]bench.Process{{Name: bench.Client, PID: cmd.Process.Pid}}, g.named("etcd")(ctx)...)
		},
	}, nil
}
