package bench

import (
	"context"
	"fmt"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/dev"
)

// A benchSystem is something to measure. Start brings up what it needs; the
// driver's stop ends that again.
type benchSystem struct {
	name     string
	scenario string
	slots    int
	fill     int
	start    func(ctx context.Context, plan bench.Plan) (*benchDriver, error)
}

// systems are what one round goes through, peers first: every combination of
// what the options list.
func (b *benchRun) systems() ([]benchSystem, error) {
	var all []benchSystem
	for _, scenario := range b.options.scenario {
		for _, peer := range b.options.against {
			s, err := b.peer(peer)
			if err != nil {
				return nil, err
			}
			s.name, s.scenario, s.slots = s.name+scenarioName(scenario), scenario, orOne(b.options.slots)[0]
			all = append(all, s)
		}
	}
	clusters, err := b.clusters()
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		for _, scenario := range b.options.scenario {
			for _, slots := range orOne(b.options.slots) {
				for _, fill := range orOne(b.options.fill) {
					s := c
					s.scenario, s.slots, s.fill = scenario, slots, fill
					s.name += scenarioName(scenario)
					if len(b.options.slots) > 1 {
						s.name += fmt.Sprintf(", %s slots", bench.Thousands(int64(slots)))
					}
					if fill > 0 {
						s.name += fmt.Sprintf(", %s sessions", bench.Thousands(int64(fill)))
					}
					all = append(all, s)
				}
			}
		}
	}
	return all, nil
}

// orOne is a list, or one zero value for an empty one.
func orOne[T any](list []T) []T {
	if len(list) == 0 {
		return make([]T, 1)
	}
	return list
}

// clusters are the combinations of what a cluster is started with.
func (b *benchRun) clusters() (all []benchSystem, err error) {
	o := b.options
	for _, transport := range o.transport {
		if o.addr != "" {
			all = append(all, benchSystem{name: "govnode at " + o.addr + transportName(transport), start: func(ctx context.Context, plan bench.Plan) (*benchDriver, error) {
				return b.onCluster(ctx, address.Split(o.addr), transport, plan)
			}})
			continue
		}
		for _, nodes := range o.nodes {
			for _, store := range orOne(o.logStore) {
				for _, snapshots := range orOne(o.snapshots) {
					c := benchCluster{nodes, transport, store, snapshots}
					if _, err := c.settings(""); err != nil {
						return nil, err
					}
					all = append(all, benchSystem{name: c.name(), start: func(ctx context.Context, plan bench.Plan) (*benchDriver, error) {
						return b.startCluster(ctx, c, plan)
					}})
				}
			}
		}
	}
	return all, nil
}

// name tells a cluster from others by what is not the default of it.
func (c benchCluster) name() string {
	name := fmt.Sprintf("govnode, %d nodes", c.nodes)
	if c.nodes == 1 {
		name = "govnode, 1 node"
	}
	if c.logStore != "" && c.logStore != dev.Settings().LogStore {
		name += ", " + c.logStore
	}
	return name + transportName(c.transport) + map[string]string{
		snapshotsNone: ", no snapshot", snapshotsRaft: ", during snapshots", snapshotsSave: ", while saved",
	}[c.snapshots]
}

func transportName(transport string) string {
	if transport == "exchange" {
		return ""
	}
	return ", " + transport
}

func scenarioName(scenario string) string {
	if scenario == bench.Apart {
		return ""
	}
	return ", " + scenario
}

// loads are the points that every system is measured at.
func (o *benchOptions) loads() []bench.Load {
	var all []bench.Load
	for _, after := range orOne(o.after) {
		one := bench.Load{Callers: o.callers, Rate: o.rate, Warmup: o.warmup, Duration: o.duration, After: after}
		if len(o.sweep) == 0 {
			all = append(all, one)
		}
		for _, n := range o.sweep {
			l := one
			if o.rate > 0 {
				l.Rate = float64(n)
			} else {
				l.Callers = n
			}
			all = append(all, l)
		}
	}
	return all
}

func (o *benchOptions) plan(name string, s benchSystem) bench.Plan {
	most := 0
	for _, l := range o.loads() {
		most = max(most, l.Callers)
	}
	if len(o.after) > 0 {
		most = max(most, o.churners)
	}
	return bench.Plan{Scenario: s.scenario, Name: name, Callers: most, Sessions: o.sessions, Slots: s.slots, Hold: o.hold, Fill: s.fill}
}
