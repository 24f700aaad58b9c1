package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Plan says what callers do.
type Plan struct {
	Scenario string `json:"scenario"`
	// Name keeps what this run creates apart from what others have.
	Name string `json:"name"`
	// Callers is how many there are at most, at any load of the run.
	Callers int `json:"callers"`
	// Sessions of each caller, which takes them in turn. 1 if 0.
	Sessions int `json:"sessions,omitempty"`
	// Slots of each pool. What the scenario needs if 0.
	Slots int `json:"slots,omitempty"`
	// Hold is how long a call of the scenarios Fleet and Queue takes.
	Hold time.Duration `json:"hold,omitempty"`
	// Fill is how many sessions the cluster has in all, each with some calls
	// behind it. The sessions of the callers are among them, evenly spread, and
	// nobody uses the others. At 0 there are only those of the callers.
	Fill int `json:"fill,omitempty"`
}

// The scenarios.
const (
	// Apart gives each caller a session and a pool of its own, beside the pool
	// of its policy, which at most every 64th caller shares.
	Apart = "apart"
	// HotPool leads all callers, each with its own session, through the same
	// two pools, which have room for all of them.
	HotPool = "hot-pool"
	// Fleet has many sessions wait for the slots of few pools. One holder in a
	// hundred crashes and leaves its slot to the end of its lease.
	Fleet = "fleet"
	// Reads reads sessions, linearizably.
	Reads = "reads"
	// PolicyHeavy is Apart with a policy of 1,000 rules.
	PolicyHeavy = "policy-heavy"
	// Pools leads the callers through as few pools as have room for all of
	// them, so that pools of any size are worked equally hard.
	Pools = "pools"
	// Queue has all callers wait in the queue of one pool. As many wait as
	// there are callers above its slots.
	Queue = "queue"
)

// Scenarios are all of them, the usual one first.
var Scenarios = []string{Apart, HotPool, Fleet, Reads, PolicyHeavy, Pools, Queue}

// Names of the peers begin so, see IsPeer.
const (
	redisName = "redis"
	etcdName  = "etcd"
)

// IsPeer reports whether a system is one that govnode is compared with.
func IsPeer(system string) bool {
	return strings.HasPrefix(system, redisName) || strings.HasPrefix(system, etcdName)
}

func (p *Plan) check() error {
	switch {
	case !slices.Contains(Scenarios, p.Scenario):
		return fmt.Errorf("scenario: %q: must be %s", p.Scenario, strings.Join(Scenarios, ", "))
	case p.Name == "":
		return errors.New("name: empty: name the run")
	case p.Callers < 1 || p.Callers > maxCallers:
		return fmt.Errorf("callers: %d: must be 1 to %d", p.Callers, maxCallers)
	case p.Sessions < 0 || p.Callers*max(p.Sessions, 1) > maxSessions:
		return fmt.Errorf("sessions: %d for each of %d callers: must be at most %d together", p.Sessions, p.Callers, maxSessions)
	case p.Slots < 0:
		return fmt.Errorf("slots: %d: must not be negative", p.Slots)
	case p.Hold < 0:
		return fmt.Errorf("hold: %v: must not be negative", p.Hold)
	case p.Fill < 0 || p.Fill > maxSessions:
		return fmt.Errorf("fill: %d: must be 0 to %d", p.Fill, maxSessions)
	case p.Fill > 0 && p.Fill < p.Callers:
		return fmt.Errorf("fill: %d: fewer sessions than the %d callers, each of which needs its own: give more", p.Fill, p.Callers)
	}
	p.Sessions = max(p.Sessions, 1)
	if p.Fill > 0 {
		p.Sessions = min(p.Sessions, p.Fill/p.Callers)
	}
	return p.checkSlots()
}

// checkSlots sees to it that only those wait who are meant to.
func (p *Plan) checkSlots() error {
	need := 0 // in one pool at once
	switch p.Scenario {
	case Fleet: // to be short of slots is the point
		if p.Slots == 0 {
			p.Slots = max(1, p.Callers/(4*few))
		}
	case HotPool:
		need = p.Callers
	case Apart, Reads:
		need = (p.Callers + policies - 1) / policies
	case PolicyHeavy:
		need = (p.Callers + few - 1) / few
	}
	if p.Slots == 0 {
		p.Slots = max(100, need)
	}
	if p.Slots < need {
		return fmt.Errorf("slots: %d: fewer than the %d callers that use one pool, and the scenario %s has nobody wait: give more", p.Slots, need, p.Scenario)
	}
	return nil
}

// RememberedIDs is how many finished ids of a session peers remember, as many as
// govnode remembers at least.
const RememberedIDs = 1024

// CallID is an id as long as the ULIDs that the client of govnode draws.
func CallID(caller int, n int64) string { return fmt.Sprintf("%010d%016d", caller, n) }

const (
	maxCallers  = 16384
	maxSessions = 2_000_000
	// policies is how many there are at most where sessions are apart. A node
	// keeps 256 compiled.
	policies = 64
	// few is how many pools a fleet has, and how many of the large policies
	// there are.
	few = 4
	// crashEvery is how many holders of a fleet there are to one that crashes.
	crashEvery = 100
)

// session names session number i of the cluster.
func (p *Plan) session(i int) string { return fmt.Sprintf("%s-%d", p.Name, i) }

// waits reports whether callers wait for slots.
func (p *Plan) waits() bool { return p.Scenario == Fleet || p.Scenario == Queue }

// spacing is how many sessions there are to each that a caller uses.
func (p *Plan) spacing() int { return max(p.Fill/(p.Callers*p.Sessions), 1) }

// sessionOf is the number of the k-th session of a caller.
func (p *Plan) sessionOf(caller, k int) int { return (caller*p.Sessions + k) * p.spacing() }

// ownerOf is the caller whose policy session number i has: its own if it is
// one of those that a caller uses.
func (p *Plan) ownerOf(i int) int { return min(i/p.spacing()/p.Sessions, p.Callers-1) }

// policyOf names the policy of a session, and with it one of its two pools.
func (p *Plan) policyOf(caller int) string {
	n := policies
	switch p.Scenario {
	case HotPool:
		n = 1
	case Fleet, PolicyHeavy:
		n = few
	}
	return fmt.Sprintf("%s-policy-%d", p.Name, caller%n)
}

// poolOf names the other pool of a session.
func (p *Plan) poolOf(caller int) string {
	switch p.Scenario {
	case HotPool:
		return p.Name + "/hot"
	case Fleet:
		return fmt.Sprintf("%s/fleet-%d", p.Name, caller%few)
	case Pools:
		return fmt.Sprintf("%s/full-%d", p.Name, caller/p.Slots)
	case Queue:
		return p.Name + "/queue"
	}
	return fmt.Sprintf("%s/own-%d", p.Name, caller)
}

// PeerKeys are the names of what a caller of a peer uses.
type PeerKeys struct {
	Session string
	Pools   [2]string
}

// PeerKeys names what a caller of a peer uses. Where sessions are apart every
// caller has both pools to itself there, so that a peer that compares and sets
// never loses a race.
func (p *Plan) PeerKeys(caller int) PeerKeys {
	policy := fmt.Sprintf("%s-policy-of-%d", p.Name, caller)
	if p.Scenario == HotPool {
		policy = p.policyOf(caller)
	}
	return PeerKeys{Session: p.session(caller), Pools: [2]string{policy, p.poolOf(caller)}}
}

// CheckPeer checks the plan, completes it, and refuses what only govnode can do.
func (p *Plan) CheckPeer() error {
	if err := p.check(); err != nil {
		return err
	}
	switch {
	case p.Scenario != Apart && p.Scenario != HotPool:
		return fmt.Errorf("scenario: %q: peers do only %s and %s", p.Scenario, Apart, HotPool)
	case p.Sessions != 1:
		return fmt.Errorf("sessions: %d: each caller of a peer has one session", p.Sessions)
	}
	return nil
}

// limits is the file of the policy that holds its limits, none of which is ever
// reached.
func (p *Plan) limits(name string) string {
	slots := p.Slots
	switch p.Scenario {
	case Fleet, Queue, Pools:
		slots = p.Callers // what is scarce, or full, is the other pool
	}
	return fmt.Sprintf("name: %s\nmax_tool_calls: %d\nmax_attempts: %d\nmax_concurrent: %d\nbackpressure_threshold: %d\ntimeout_seconds: 86400\n",
		name, 1_000_000_000, 1_000_000_000, slots, slots)
}

// rules is the file of the policy that holds its rules: a quarter of them each
// by name of the tool, by list, by regular expression and by tokens, none of
// which matches.
func (p *Plan) rules(name string) string {
	rules := 10
	if p.Scenario == PolicyHeavy {
		rules = 1000
	}
	var y strings.Builder
	fmt.Fprintf(&y, "name: %s-rules\nversion: \"1\"\nrules:\n", name)
	for i := range rules {
		condition := fmt.Sprintf("{field: token_count, operator: gt, value: %d}", 100_000+i)
		switch i % 4 {
		case 0:
			condition = fmt.Sprintf("{field: tool_name, operator: eq, value: tool_%d}", i)
		case 1:
			condition = fmt.Sprintf("{field: tool_name, operator: in, value: [a_%d, b_%d, c_%d]}", i, i, i)
		case 2:
			condition = fmt.Sprintf("{field: tool_name, operator: matches, value: '^svc_%d_[a-z_]+$'}", i)
		}
		fmt.Fprintf(&y, "  - {name: r%d, condition: %s, action: deny, priority: %d}\n", i, condition, rules-i)
	}
	return y.String()
}
