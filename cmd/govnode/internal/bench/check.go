package bench

import (
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// check refuses what cannot stand, by the name of the flag.
func (o *benchOptions) check(given func(flag string) bool) error {
	within := func(flag string, n, least, most int) error {
		if n < least || n > most {
			return terminal.Usagef("%s: %d: must be %d to %d", flag, n, least, most)
		}
		return nil
	}
	for _, flag := range []string{"nodes", "log-store", "snapshots", "fill"} {
		if o.addr != "" && given(flag) {
			return terminal.Usagef("%s: belongs to a cluster that is started here: leave it or --addr out", flag)
		}
	}
	switch {
	case math.IsNaN(o.rate) || o.rate < 0 || o.rate > 1e7:
		return terminal.Usagef("rate: %v: must be 0 to 10000000", o.rate)
	case o.duration < 100*time.Millisecond || o.duration > time.Hour:
		return terminal.Usagef("duration: %v: must be 100ms to 1h", o.duration)
	case o.warmup < 0 || o.warmup > 10*time.Minute:
		return terminal.Usagef("warmup: %v: must be 0s to 10m", o.warmup)
	case o.hold < 0 || o.hold > time.Hour:
		return terminal.Usagef("hold: %v: must be 0s to 1h", o.hold)
	case math.IsNaN(o.perAgent) || o.perAgent < 0 || o.perAgent > 1e6:
		return terminal.Usagef("calls-per-agent: %v: must be 0 to 1000000 in a minute", o.perAgent)
	case o.etcdNodes != 1 && o.etcdNodes != 3:
		return terminal.Usagef("etcd-nodes: %d: must be 1 or 3", o.etcdNodes)
	}
	for _, err := range []error{
		within("callers", o.callers, 1, 16384), within("rounds", o.rounds, 1, 99), within("clients", o.clients, 1, 64),
		within("sessions", o.sessions, 1, 2_000_000), within("after-callers", o.churners, 1, 16384),
		o.checkLists(), o.checkSweep(), o.checkAfter(), o.checkPeers(),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *benchOptions) checkLists() error {
	for _, n := range o.nodes {
		if n != 1 && n != 3 && n != 5 {
			return terminal.Usagef("nodes: %d: must be 1, 3 or 5", n)
		}
	}
	for flag, list := range map[string]struct{ given, may []string }{
		"transport": {o.transport, []string{"exchange", "unary"}},
		"scenario":  {o.scenario, bench.Scenarios},
		"snapshots": {o.snapshots, []string{snapshotsNone, snapshotsRaft, snapshotsSave}},
	} {
		for _, s := range list.given {
			if !slices.Contains(list.may, s) {
				return terminal.Usagef("%s: %q: must be %s", flag, s, strings.Join(list.may, ", "))
			}
		}
	}
	for _, address := range address.Split(o.addr) {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return terminal.Usagef("addr: %q: must be addresses as HOST:PORT, separated by commas", address)
		}
	}
	for _, n := range o.slots {
		if n < 1 || n > 1_000_000 {
			return terminal.Usagef("slots: %d: must be 1 to 1000000", n)
		}
	}
	for _, n := range o.fill {
		if n < 1 || n > 2_000_000 {
			return terminal.Usagef("fill: %d: must be 1 to 2000000 sessions", n)
		}
		if callers := o.plan("", benchSystem{}).Callers; n < callers {
			return terminal.Usagef("fill: %d: fewer sessions than the %d callers, each of which needs its own: give more", n, callers)
		}
	}
	if len(o.nodes) == 0 || len(o.transport) == 0 || len(o.scenario) == 0 {
		return terminal.Usagef("nodes, transport, scenario: name at least one of each")
	}
	return nil
}

func (o *benchOptions) checkSweep() error {
	most := 16384
	if o.rate > 0 {
		most = 10_000_000
	}
	for i, n := range o.sweep {
		if n < 1 || n > most {
			return terminal.Usagef("sweep: %d: must be 1 to %d", n, most)
		}
		if slices.Contains(o.sweep[:i], n) {
			return terminal.Usagef("sweep: %d: stands twice: leave one out", n)
		}
	}
	return nil
}

func (o *benchOptions) checkAfter() error {
	for i, n := range o.after {
		if n < 0 || n > 1e12 {
			return terminal.Usagef("after: %d: must be 0 to 1000000000000", n)
		}
		if i > 0 && n <= o.after[i-1] {
			return terminal.Usagef("after: %d: must be more than the %d before it", n, o.after[i-1])
		}
	}
	return nil
}

func (o *benchOptions) checkPeers() error {
	for _, peer := range o.against {
		if peer != "redis" && peer != "etcd" {
			return terminal.Usagef("against: %q: must be redis or etcd", peer)
		}
	}
	if len(o.against) == 0 {
		return nil
	}
	for _, s := range o.scenario {
		if s != bench.Apart && s != bench.HotPool {
			return terminal.Usagef("scenario: %q: peers do only %s and %s", s, bench.Apart, bench.HotPool)
		}
	}
	if o.sessions != 1 {
		return terminal.Usagef("sessions: %d: must be 1 with --against", o.sessions)
	}
	if len(o.fill) > 0 || len(o.slots) > 1 {
		return terminal.Usagef("fill, slots: peers know no --fill, and one number of --slots: leave it or --against out")
	}
	return nil
}
