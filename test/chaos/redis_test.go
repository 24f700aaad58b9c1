package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/report"
)

// TestProcessesOnRedis runs three nodes over one Redis that flushes before it
// answers, for GOVNODE_L2_FOR (1 minute). There is no log to ask: the answers are
// held to each other and to the clock.
func TestProcessesOnRedis(t *testing.T) {
	seed, length := setting(t, time.Minute)
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("GOVNODE_REQUIRE_REDIS") != "" {
			t.Fatal("there is no redis-server")
		}
		t.Skip("there is no redis-server; make needs installs it")
	}
	tell(t, runOnRedis(t, seed, length))
}

// A redis is a server at a place of its own on the network.
type redis struct {
	dir, listen, address string
	command              []string
	cmd                  *exec.Cmd
}

// redisPlace is the name of its place. A proxy serves the ports of nodes.
const redisPlace = "redis"

func (r *redis) start() error {
	line := append(append([]string{}, r.command...), "redis-server", "--port", fmt.Sprint(processes.APIPort), "--bind", r.listen, "--protected-mode", "no",
		"--dir", r.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	r.cmd = exec.Command(line[0], line[1:]...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", r.address, time.Second)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}

func (r *redis) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// ofRedis are the kinds for nodes over a Redis.
func ofRedis(r *redis) []kind {
	turn := make(chan struct{}, 1)
	// alone lets one thing at a time befall the server.
	alone := func(do func() (mend func())) func() {
		select {
		case turn <- struct{}{}:
		default:
			return nil
		}
		mend := do()
		return func() { mend(); <-turn }
	}
	return []kind{
		{"kill redis", func(n *nemesis, _ *rand.Rand) func() {
			return alone(func() func() {
				r.kill()
				return func() {
					if err := r.start(); err != nil {
						n.broke(err)
					}
				}
			})
		}},
		{"pause redis", func(*nemesis, *rand.Rand) func() {
			return alone(func() func() {
				_ = r.cmd.Process.Signal(syscall.SIGSTOP)
				return func() { _ = r.cmd.Process.Signal(syscall.SIGCONT) }
			})
		}},
		{"lost replies of redis", func(n *nemesis, rng *rand.Rand) func() {
			return n.cluster.Network.Hold(processes.Weather{Loss: 1}, processes.Link{From: redisPlace, To: n.any(rng).Name})
		}},
		{"a node without redis", func(n *nemesis, rng *rand.Rand) func() {
			return n.cluster.Network.Hold(processes.Weather{Loss: 1}, processes.Between(n.any(rng).Name, []string{redisPlace}, true, true)...)
		}},
		{"slow redis", func(n *nemesis, rng *rand.Rand) func() {
			w := processes.Weather{Delay: time.Duration(1+rng.IntN(100)) * time.Millisecond}
			return n.cluster.Network.Hold(w, processes.Between(redisPlace, n.cluster.Names(), true, true)...)
		}},
		{"kill node", func(n *nemesis, rng *rand.Rand) func() { return n.killOnRedis(n.any(rng)) }},
		{"end in order", func(n *nemesis, rng *rand.Rand) func() {
			x := n.any(rng)
			if !x.Stop(15 * time.Second) {
				return nil
			}
			return func() { n.startOnRedis(x) }
		}},
		{"pause node", func(n *nemesis, rng *rand.Rand) func() { return n.any(rng).Pause() }},
		{"lost replies", func(n *nemesis, rng *rand.Rand) func() {
			return n.cluster.Network.Hold(processes.Weather{Loss: 1}, processes.Link{From: n.any(rng).Name, To: processes.Clients})
		}},
		{"loss", (*nemesis).loss},
		{"kill clients", (*nemesis).killClients},
		{"revoke a token", (*nemesis).revoke},
	}
}

func (n *nemesis) killOnRedis(x *processes.Node) func() {
	if !x.Kill() {
		return nil
	}
	return func() { n.startOnRedis(x) }
}

// startOnRedis starts a node as a supervisor does: again and again, while it ends
// because it does not reach its Redis.
func (n *nemesis) startOnRedis(x *processes.Node) {
	for range 60 {
		if err := x.Start(); err != nil {
			if !x.Runs() {
				n.broke(err)
			}
			return
		}
		for end := time.Now().Add(8 * time.Second); x.Runs(); time.Sleep(50 * time.Millisecond) {
			if _, err := n.cluster.Status(context.Background(), x); err == nil || time.Now().After(end) {
				return
			}
		}
		for _, err := range x.Forgive() {
			if !strings.Contains(err.Error(), "see that Redis runs there") {
				n.broke(err)
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	n.broke(fmt.Errorf("%s never reached its Redis", x.Name))
}

func runOnRedis(t *testing.T, seed uint64, length time.Duration) report.Layer {
	dir := t.TempDir()
	program, err := processes.Program(dir)
	require.NoError(t, err)
	network, err := processes.NewNetwork(seed)
	require.NoError(t, err)
	r := &redis{dir: t.TempDir()}
	listen, advertise, command, err := network.Place(redisPlace)
	require.NoError(t, err)
	r.listen, r.command, r.address = listen, command, fmt.Sprintf("%s:%d", advertise, processes.APIPort)
	c, err := processes.New(program, network, 3, func(node string) string { return filepath.Join(dir, node) },
		"--backend", "redis", "--redis", "redis://"+r.address, "--log-level", "warn")
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.NoError(t, c.Secure(filepath.Join(dir, tlsDir)))
	require.NoError(t, c.AuditTo(filepath.Join(dir, auditDir)))
	require.NoError(t, r.start())
	defer r.kill()
	for _, n := range c.Nodes {
		require.NoError(t, n.Start())
	}
	require.NoError(t, c.Ready(20*time.Second))
	return scenario{name: "L2-redis", dir: dir, cluster: c, kinds: ofRedis(r), processes: 2, judge: judgeAnswers}.run(t, seed, length)
}

// judgeAnswers runs the checks that need no log.
func judgeAnswers(h *check.History) (broken []check.Violation) {
	for _, check := range []func(check.History) []check.Violation{check.Sums, check.Spent, check.Holders, check.Tokens, check.RevokedAnswers, check.Linearizable} {
		broken = append(broken, check(*h)...)
	}
	return broken
}
