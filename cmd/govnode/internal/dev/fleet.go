package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/serve"
)

// A fleet is the node processes of dev and what keeps them running.
type fleet struct {
	layout  *layout
	config  *config.Config
	program string
	spawner *process.Spawner
	stderr  io.Writer

	out    sync.Mutex // guards stdout
	stdout io.Writer

	// failed is sent what makes it pointless to go on.
	failed chan error
	// once is set when all nodes were ready: from then on a node that ends is
	// a crash to recover from, and no longer a wrong setup.
	once atomic.Bool

	ending  context.Context
	end     context.CancelFunc
	keepers sync.WaitGroup
	alive   atomic.Int32
}

// RestartAfter is how long a node that died stays away: long enough for the
// others to elect a leader without it.
const RestartAfter = 2 * time.Second

// startFleet starts one process for each place of a layout. Stop must be
// called.
func startFleet(c *config.Config, l *layout, stdout, stderr io.Writer) (*fleet, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program, to start nodes with: %w", err)
	}
	f := &fleet{
		layout: l, config: c, program: program, spawner: process.NewSpawner(),
		stdout: stdout, stderr: &process.LockedWriter{W: stderr}, failed: make(chan error, len(l.places)+1),
	}
	f.ending, f.end = context.WithCancel(context.Background())
	f.alive.Store(int32(len(l.places)))
	for i := range l.places {
		f.keepers.Go(func() { f.keep(i) })
	}
	return f, nil
}

// say prints one line.
func (f *fleet) say(format string, args ...any) {
	f.out.Lock()
	defer f.out.Unlock()
	_, _ = fmt.Fprintf(f.stdout, format+"\n", args...)
}

// keep runs one node again and again until the fleet ends.
func (f *fleet) keep(i int) {
	p := f.layout.places[i]
	for {
		err := f.run(i)
		if f.ending.Err() != nil {
			return
		}
		if !f.once.Load() && endedByItself(err) {
			f.failed <- fmt.Errorf("%s ended before it was ready: %w", p.name, f.whyEnded(p, err))
			return
		}
		_, _ = fmt.Fprintf(f.stderr, "govnode: %s ended: %v\n", p.name, err)
		if !f.config.Restart {
			if f.alive.Add(-1) == 0 {
				f.failed <- errors.New("every node has ended, and --restart=false keeps them so")
			}
			return
		}
		select {
		case <-f.ending.Done():
			return
		case <-time.After(RestartAfter):
		}
	}
}

// endedByItself reports whether a node chose to end, which one that was killed
// did not.
func endedByItself(err error) bool {
	var exit *exec.ExitError
	return !errors.As(err, &exit) || exit.ExitCode() >= 0
}

// run starts one node and returns when it has ended.
func (f *fleet) run(i int) error {
	p := f.layout.places[i]
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(f.program, append([]string{"serve", "--" + process.ChildFlag, "--reflection"}, f.nodeArgs(i)...)...)
	// The name that this program was called by, which tells a test binary that
	// it is to be govnode.
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(config.WithoutSettings(os.Environ()), f.config.SecretEnv(config.OnServe)...)
	cmd.Stdout, cmd.Stderr = log, log
	if f.config.Verbose {
		both := io.MultiWriter(log, f.stderr)
		cmd.Stdout, cmd.Stderr = both, both
	}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer func() { _ = lifeline.Close() }()
	if err := f.spawner.Start(cmd); err != nil {
		return err
	}
	f.say("node %s api=%s pid=%d", p.name, p.api, cmd.Process.Pid)
	ended := make(chan struct{})
	defer close(ended)
	go f.endProcess(cmd.Process, ended)
	if err := cmd.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// endProcess asks a process to drain when the fleet ends, and kills it when it
// takes longer than it may.
func (f *fleet) endProcess(process *os.Process, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-f.ending.Done():
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		_ = process.Kill() // on systems without that signal
	}
	select {
	case <-ended:
	case <-time.After(serve.DrainTimeout + 2*time.Second):
		_ = process.Kill()
	}
}

// nodeArgs is what one node is started with: what dev was told and serve
// understands, and the node's own place.
func (f *fleet) nodeArgs(i int) []string {
	p := f.layout.places[i]
	shared := *f.config
	shared.Listen, shared.Data = p.api, p.data
	if f.config.Backend == "memory" {
		shared.Data = "" // it keeps nothing, and its audit goes to its log
	}
	if f.config.Backend != "raft" {
		return append(shared.Args(config.OnServe), "--node="+p.name)
	}
	args := append(shared.Args(config.OnServe), "--node="+p.name, "--raft-listen="+p.raft)
	if i == 0 {
		// It asks the others all the same, lest it begin a second cluster
		// when its data alone is lost.
		args = append(args, "--bootstrap", "--bootstrap-wait=0s")
	}
	var others []string
	for j, other := range f.layout.places {
		if j != i {
			others = append(others, other.raft)
		}
	}
	if len(others) == 0 {
		return args
	}
	return append(args, "--join="+strings.Join(others, ","))
}

// whyEnded adds the last line of a node's log, which says why it gave up.
func (f *fleet) whyEnded(p place, err error) error {
	content, readErr := os.ReadFile(p.log)
	content = bytes.TrimSpace(content)
	if readErr != nil || len(content) == 0 {
		return err
	}
	last := content[bytes.LastIndexByte(content, '\n')+1:]
	if f.layout.temporary {
		return fmt.Errorf("%w: %s", err, last)
	}
	return fmt.Errorf("%w: %s (more in %s)", err, last, filepath.Clean(p.log))
}

// stop ends all nodes and waits until they have ended.
func (f *fleet) stop() {
	f.end()
	f.keepers.Wait()
	f.spawner.Close()
}
