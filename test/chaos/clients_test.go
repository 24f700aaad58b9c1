package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/govnode/test/check"
	"example.com/govnode/test/sim"
)

// clientsEnv has the work of a process of clients.
const clientsEnv = "GOVNODE_CHAOS_CLIENTS"

// An order is what one process of clients does.
type order struct {
	sim.Workload
	Base time.Duration // of the monotonic clock of this machine, from which times count
	Out  string        // file of the history
}

// settling is for how long clients ask what became of what is unknown.
const settling = 20 * time.Second

// monotonic is the clock that all processes of a machine share.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // no system lacks it
	}
	return time.Duration(t.Nano())
}

// TestClients is the process of some clients. It works until a line on its
// standard input says to rest, or that input ends.
func TestClients(t *testing.T) {
	text := os.Getenv(clientsEnv)
	if text == "" {
		t.Skip("it is run by the tests of this package")
	}
	var o order
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	o.Start = time.Now().Add(o.Base - monotonic())
	out, err := os.OpenFile(o.Out, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	in := bufio.NewReader(os.Stdin)
	for err == nil {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.Run(ctx, out, settling) }()
		_, err = in.ReadString('\n') // rest
		stop()
		require.NoError(t, <-ended)
		if err == nil {
			fmt.Println("resting")
			_, err = in.ReadString('\n') // go on
		}
		o.Seed++
	}
	require.NoError(t, out.Close())
}

// clients are the processes of all clients.
type clients struct {
	dir   string
	work  sim.Workload
	start time.Duration
	keys  *keys // nil where nobody asks for tokens

	mu   sync.Mutex
	all  []*group
	made int
}

// A group is one process.
type group struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	said   *bufio.Scanner
	output *strings.Builder
}

func (c *clients) begin(processes int) error {
	for range processes {
		if err := c.one(); err != nil {
			return err
		}
	}
	return nil
}

func (c *clients) one() (err error) {
	c.made++
	o := order{Workload: c.work, Base: c.start, Out: filepath.Join(c.dir, fmt.Sprintf("history-%d.jsonl", c.made))}
	o.Name, o.Seed = fmt.Sprintf("c%d", c.made), c.work.Seed+uint64(c.made)*1000
	if c.keys != nil {
		if o.Token, err = c.keys.give(o.Name); err != nil {
			return err
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	g := &group{name: o.Name, cmd: exec.Command(os.Args[0], "-test.run=^TestClients$", "-test.timeout=24h"), output: &strings.Builder{}}
	g.cmd.Env = append(os.Environ(), clientsEnv+"="+string(text))
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	g.cmd.Stderr = g.output
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	g.said = bufio.NewScanner(out)
	if err := g.cmd.Start(); err != nil {
		return err
	}
	c.all = append(c.all, g)
	return nil
}

// rest lets all clients finish what they do, and reports whether they did. While
// they rest nobody else may have them rest, or kill them.
func (c *clients) rest() bool {
	if !c.mu.TryLock() {
		return false
	}
	for _, g := range c.all {
		if _, err := fmt.Fprintln(g.in, "rest"); err != nil {
			return true // its end says why it failed
		}
	}
	for _, g := range c.all {
		g.said.Scan()
	}
	return true
}

func (c *clients) goOn() {
	for _, g := range c.all {
		_, _ = fmt.Fprintln(g.in, "go on")
	}
	c.mu.Unlock()
}

// replace kills a process of clients, and starts another in its place.
func (c *clients) replace(rng *rand.Rand) func() {
	if !c.mu.TryLock() {
		return nil
	}
	defer c.mu.Unlock()
	i := rng.IntN(len(c.all))
	g := c.all[i]
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	c.all = append(c.all[:i], c.all[i+1:]...)
	if err := c.one(); err != nil {
		return nil // there are fewer of them, and the end will tell
	}
	return func() {}
}

// some returns the name of one of the processes; ok is false while they rest.
func (c *clients) some(rng *rand.Rand) (name string, ok bool) {
	if !c.mu.TryLock() {
		return "", false
	}
	defer c.mu.Unlock()
	return c.all[rng.IntN(len(c.all))].name, true
}

// end lets all clients finish, and returns what they all wrote down, and what of it
// alone breaks a promise.
func (c *clients) end() (h check.History, broken []check.Violation, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.all {
		_ = g.in.Close()
	}
	for _, g := range c.all {
		for g.said.Scan() {
			fmt.Fprintln(g.output, g.said.Text())
		}
		if e := g.cmd.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("clients: %w: %s", e, g.output))
		}
	}
	for i := range c.made {
		f, e := os.Open(filepath.Join(c.dir, fmt.Sprintf("history-%d.jsonl", i+1)))
		if e != nil {
			continue // it was killed before it had written anything
		}
		some, e := sim.ReadHistory(&h, bufio.NewReader(f))
		broken, err = append(broken, some...), errors.Join(err, e, f.Close())
	}
	return h, broken, err
}
