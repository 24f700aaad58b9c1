package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"example.com/govnode/cluster"
	"example.com/govnode/test/alone"
)

// A fleet is the hosts of one cluster and the network between them and their
// clients.
type fleet struct {
	network *network
	hosts   []*host
	dir     string
	log     *slog.Logger
	ping    time.Duration // after how much silence clients ask whether a connection is there
	silent  time.Duration // after how much silence a member counts as down
	guards  *alone.Guards
	guard   *http.Server // at which nodes ask them
}

// newFleet makes hosts, all of them down.
func newFleet(size int, rng *rand.Rand, log *slog.Logger, tune func(*cluster.Config)) (*fleet, error) {
	dir, err := tempDir()
	if err != nil {
		return nil, err
	}
	f := &fleet{network: newNetwork(rand.New(rand.NewPCG(rng.Uint64(), 0))), dir: dir, log: log, ping: 2 * time.Second, silent: 3 * time.Second}
	const guards = "127.0.0.1:9000" // no fault cuts it off
	f.guards = &alone.Guards{URL: "http://" + guards}
	f.guard = &http.Server{Handler: f.guards, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	l := f.network.listen(guards)
	go func() { _ = f.guard.Serve(l) }()
	for i := range size {
		f.hosts = append(f.hosts, &host{
			name: fmt.Sprintf("n%d", i+1), network: f.network, disk: newDisk(rand.New(rand.NewPCG(rng.Uint64(), 0))),
			clock: newClock(), audit: &auditFile{calls: map[string]bool{}}, dir: dir, log: log, tune: tune,
		})
	}
	return f, nil
}

// found starts the first host and lets the others join it.
func (f *fleet) found() error {
	for i, h := range f.hosts {
		e := entrance{bootstrap: i == 0}
		if i > 0 {
			e.join = []string{f.hosts[0].raftAddress()}
		}
		if err := h.start(e); err != nil {
			return err
		}
	}
	return f.ready(10 * time.Second)
}

// ready waits until every host that is up serves.
func (f *fleet) ready(within time.Duration) error {
	return eventually(within, func() error {
		for _, h := range f.hosts {
			if h.down() {
				continue
			}
			node := h.up()
			if node == nil {
				return fmt.Errorf("%s is not admitted", h.name)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := node.Ready(ctx)
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
		}
		return nil
	})
}

// eventually waits for a condition.
func eventually(within time.Duration, ok func() error) error {
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		err := ok()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// leader returns the host that leads; nil if none does.
func (f *fleet) leader() *host {
	for _, h := range f.hosts {
		if n := h.up(); n != nil && n.Leader() {
			return h
		}
	}
	return nil
}

func (f *fleet) names() (names []string) {
	for _, h := range f.hosts {
		names = append(names, h.name)
	}
	return names
}

func (f *fleet) apis() (addresses []string) {
	for _, h := range f.hosts {
		addresses = append(addresses, h.apiAddress())
	}
	return addresses
}

// end ends all hosts and waits until nothing of them is left.
func (f *fleet) end() (err error) {
	for _, h := range f.hosts {
		h.crash(false)
	}
	for _, h := range f.hosts {
		h.closed.Wait()
		err = errors.Join(err, errors.Join(h.failures()...))
	}
	return errors.Join(err, f.guard.Close(), os.RemoveAll(f.dir))
}

// httpClient is how a client on a host of its own reaches the API.
func (f *fleet) httpClient(from string) *http.Client {
	dial := f.network.dialer(from)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Protocols: p, HTTP2: &http.HTTP2Config{SendPingTimeout: f.ping, PingTimeout: 3 * time.Second},
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return dial(ctx, address)
		},
	}}
}
