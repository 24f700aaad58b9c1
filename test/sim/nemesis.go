package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cluster"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/storage"
)

// A fault is one thing that goes wrong, and is mended again.
type fault struct {
	at, lasts time.Duration
	kind      string
	pick      uint64 // draws whom it befalls
}

func (f fault) String() string {
	return fmt.Sprintf("%v %s for %v (%x)", f.at, f.kind, f.lasts, f.pick)
}

// A nemesis lets a plan of faults come true.
type nemesis struct {
	fleet   *fleet
	workers []*worker
	clients []string // the hosts of the workers
	faults  []fault
	length  time.Duration
	start   time.Time
	weather *weather
	victims *victims

	mu     sync.Mutex
	counts map[string]int
	wiping chan struct{} // held while a member is without its disk, which must be one alone
}

// kinds are what may go wrong. A kind returns what mends it, or nil where there
// was nobody that it could befall.
var kinds = []struct {
	name string
	do   func(n *nemesis, rng *rand.Rand) (mend func())
}{
	{"isolate leader", (*nemesis).isolateLeader},
	{"isolate node", (*nemesis).isolateNode},
	{"one way", (*nemesis).oneWay},
	{"split", (*nemesis).split},
	{"slow links", (*nemesis).slowLinks},
	{"kill", (*nemesis).kill},
	{"power cut", (*nemesis).powerCut},
	{"power cut of all", (*nemesis).powerCutOfAll},
	{"transfer", (*nemesis).transfer},
	{"pause", (*nemesis).pause},
	{"slow disk", (*nemesis).slowDisk},
	{"clock rate", (*nemesis).clockRate},
	{"clock jump", (*nemesis).clockJump},
	{"lost replies", (*nemesis).lostReplies},
	{"deaf node", (*nemesis).deafNode},
	{"late answers", (*nemesis).lateAnswers},
	{"full audit log", (*nemesis).fullAudit},
	{"restart in order", (*nemesis).restart},
	{"replace", (*nemesis).replace},
	{"remove and add", (*nemesis).removeAndAdd},
	{"restore", (*nemesis).restore},
	{"remove too many", (*nemesis).removeTooMany},
	{killedClient, (*nemesis).killClient},
}

func newNemesis(f *fleet, rng *rand.Rand, workers []*worker, s Setting) *nemesis {
	n := &nemesis{fleet: f, counts: map[string]int{}, length: s.Length, workers: workers, wiping: make(chan struct{}, 1)}
	n.weather = newWeather(workers[0].recorder.start, s.Heartbeat)
	n.victims = &victims{recorder: workers[0].recorder, weather: n.weather}
	for _, w := range workers {
		n.clients = append(n.clients, w.name)
	}
	draw := func() string {
		if len(s.Only) > 0 {
			return s.Only[rng.IntN(len(s.Only))]
		}
		return kinds[rng.IntN(len(kinds))].name
	}
	for at := s.Gap; at < s.Length; at += s.Gap/2 + time.Duration(rng.Int64N(int64(s.Gap))) {
		n.faults = append(n.faults, fault{at, 500*time.Millisecond + time.Duration(rng.Int64N(int64(5*time.Second))), draw(), rng.Uint64()})
		if rng.IntN(8) == 0 { // two at once
			n.faults = append(n.faults, fault{at, time.Second, draw(), rng.Uint64()})
		}
	}
	return n
}

func (n *nemesis) plan() (lines []string) {
	for _, f := range n.faults {
		lines = append(lines, f.String())
	}
	return lines
}

// run lets everything happen and returns when all of it is mended.
func (n *nemesis) run() {
	n.start = time.Now()
	var under sync.WaitGroup
	for _, f := range n.faults {
		time.Sleep(time.Until(n.start.Add(f.at)))
		for _, k := range kinds {
			if k.name != f.kind {
				continue
			}
			under.Go(func() {
				if f.kind != killedClient { // of which the cluster is none the worse
					defer n.weather.begins()()
				}
				n.fleet.log.Info("breaks", "fault", f.kind)
				mend := k.do(n, rand.New(rand.NewPCG(f.pick, 0)))
				if mend == nil {
					return
				}
				n.mu.Lock()
				n.counts[f.kind]++
				n.mu.Unlock()
				time.Sleep(f.lasts)
				n.fleet.log.Info("mends", "fault", f.kind)
				mend()
			})
		}
	}
	time.Sleep(time.Until(n.start.Add(n.length)))
	under.Wait()
}

func (n *nemesis) everybody() []string { return append(n.fleet.names(), n.clients...) }

func (n *nemesis) anyHost(rng *rand.Rand) *host { return n.fleet.hosts[rng.IntN(len(n.fleet.hosts))] }

// leaderOr returns the leader, or any host where there is none.
func (n *nemesis) leaderOr(rng *rand.Rand) *host {
	if l := n.fleet.leader(); l != nil {
		return l
	}
	return n.anyHost(rng)
}

func (n *nemesis) isolateLeader(rng *rand.Rand) func() {
	return n.isolate(n.leaderOr(rng), rng)
}

func (n *nemesis) isolateNode(rng *rand.Rand) func() { return n.isolate(n.anyHost(rng), rng) }

// isolate cuts a host off from the others, and perhaps from the clients.
func (n *nemesis) isolate(h *host, rng *rand.Rand) func() {
	from := n.fleet.names()
	if rng.IntN(2) == 0 {
		from = n.everybody()
	}
	return n.fleet.network.hold(links(h.name, from, true, true)...)
}

// oneWay loses what a host sends, or what it is sent.
func (n *nemesis) oneWay(rng *rand.Rand) func() {
	out := rng.IntN(2) == 0
	return n.fleet.network.hold(links(n.leaderOr(rng).name, n.everybody(), out, !out)...)
}

// split puts everybody on one of two sides.
func (n *nemesis) split(rng *rand.Rand) func() {
	all := n.everybody()
	side := map[string]bool{}
	for _, name := range all {
		side[name] = rng.IntN(2) == 0
	}
	var cut []link
	for _, a := range all {
		for _, b := range all {
			if side[a] != side[b] {
				cut = append(cut, link{a, b})
			}
		}
	}
	return n.fleet.network.hold(cut...)
}

func (n *nemesis) slowLinks(rng *rand.Rand) func() {
	h := n.anyHost(rng)
	by := time.Duration(1+rng.IntN(400)) * time.Millisecond
	return n.fleet.network.slow(by, links(h.name, n.everybody(), rng.IntN(3) > 0, true)...)
}

func (n *nemesis) kill(rng *rand.Rand) func() { return n.crash(n.leaderOr(rng), false) }

func (n *nemesis) powerCut(rng *rand.Rand) func() { return n.crash(n.anyHost(rng), true) }

func (n *nemesis) crash(h *host, vanish bool) func() {
	if h.up() == nil {
		return nil
	}
	h.crash(vanish)
	return func() { n.startAgain(h) }
}

func (n *nemesis) powerCutOfAll(*rand.Rand) func() {
	var down []*host
	for _, h := range n.fleet.hosts {
		if h.up() != nil {
			h.crash(true)
			down = append(down, h)
		}
	}
	return func() {
		var under sync.WaitGroup
		for _, h := range down { // one that takes the place of a member waits for the others
			under.Go(func() { n.startAgain(h) })
		}
		under.Wait()
	}
}

// startAgain starts a host with its disk as it is. It names members to ask all the
// same, as a service's configuration does: one that crashed before it had written
// anything of the log is admitted once more, in its own place if it has one.
func (n *nemesis) startAgain(h *host) {
	e := n.others(h)
	e.replace = h.disk.blank()
	n.startWith(h, e)
}

// startWith starts a host, again and again: a node whose peers cannot say yet who
// it is may be refused for the moment.
func (n *nemesis) startWith(h *host, e entrance) {
	var err error
	for range 10 {
		if !h.down() {
			return
		}
		if err = h.start(e); err == nil {
			return
		}
		h.log.Error("cannot start", "host", h.name, "error", err)
		time.Sleep(time.Second)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = append(h.failed, fmt.Errorf("%s does not start again: %w", h.name, err))
}

func (n *nemesis) transfer(rng *rand.Rand) func() {
	node := n.anyHost(rng).up()
	if node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if node.TransferLeadership(ctx, "") != nil {
		return nil
	}
	return func() {}
}

// pause stops a host: it neither sends, receives nor writes.
func (n *nemesis) pause(rng *rand.Rand) func() {
	h := n.leaderOr(rng)
	resume, release := h.disk.hang(), n.fleet.network.hold(links(h.name, n.everybody(), true, true)...)
	return func() {
		resume()
		release()
	}
}

func (n *nemesis) slowDisk(rng *rand.Rand) func() {
	h := n.leaderOr(rng)
	if rng.IntN(2) == 0 {
		h = n.anyHost(rng)
	}
	return h.disk.slow(time.Duration(5+rng.IntN(300)) * time.Millisecond)
}

// clockRate lets one of the clocks of a host run fast or slow.
func (n *nemesis) clockRate(rng *rand.Rand) func() {
	c := n.anyHost(rng).clock
	rates := [2]float64{1, 1}
	rates[rng.IntN(2)] = 0.5 + 1.5*rng.Float64()
	c.set(rates[0], rates[1])
	return func() { c.set(1, 1) }
}

// clockJump moves one of the clocks of a host.
func (n *nemesis) clockJump(rng *rand.Rand) func() {
	by := time.Duration(rng.Int64N(int64(2*time.Hour))) - time.Hour
	n.anyHost(rng).clock.jump(rng.IntN(2), by)
	return func() {}
}

// lostReplies lets what clients ask arrive, and loses the answers and with them
// the connections.
func (n *nemesis) lostReplies(rng *rand.Rand) func() {
	h := n.leaderOr(rng)
	release := n.fleet.network.hold(links(h.name, n.clients, true, false)...)
	return func() {
		for _, c := range n.clients {
			n.fleet.network.reset(h.name, c)
		}
		release()
	}
}

// deafNode lets a host hear nothing of the others, which hear it: what it asks them
// for is done, and it does not know.
func (n *nemesis) deafNode(rng *rand.Rand) func() {
	return n.fleet.network.hold(links(n.anyHost(rng).name, n.fleet.names(), false, true)...)
}

// lateAnswers lets what the others answer a leader come late, and then loses what
// it says to them: it takes itself for the leader for longer than they do. It is
// read from meanwhile, more often than its clients do.
func (n *nemesis) lateAnswers(rng *rand.Rand) func() {
	h := n.leaderOr(rng)
	faster := n.fleet.network.slow(time.Duration(200+rng.IntN(150))*time.Millisecond, links(h.name, n.fleet.names(), false, true)...)
	time.Sleep(2 * time.Second)
	release := n.fleet.network.hold(links(h.name, n.fleet.names(), true, false)...)
	w := n.workers[rng.IntN(len(n.workers))]
	var reads sync.WaitGroup
	for i := range 60 {
		reads.Go(func() {
			w.readAt(context.Background(), w.counters[slices.Index(n.fleet.hosts, h)], counters[i%len(counters)])
		})
		time.Sleep(20 * time.Millisecond)
	}
	return func() {
		reads.Wait()
		release()
		faster()
	}
}

// fullAudit lets nobody write into the audit log of a host.
func (n *nemesis) fullAudit(rng *rand.Rand) func() { return n.leaderOr(rng).audit.fill() }

// restart ends a node in order and starts it again.
func (n *nemesis) restart(rng *rand.Rand) func() {
	h := n.anyHost(rng)
	if h.up() == nil {
		return nil
	}
	if h.stop() != nil {
		return nil
	}
	return func() { n.startAgain(h) }
}

// replace takes the disk of a member away, and lets the host take its place with
// an empty one.
func (n *nemesis) replace(rng *rand.Rand) func() {
	h := n.anyHost(rng)
	if h.up() == nil || !n.wipe() {
		return nil
	}
	h.lose(rng.IntN(2) == 0)
	return func() {
		defer n.wiped()
		n.enter(h, true)
	}
}

// removeAndAdd ends the membership of a node, and makes it a member again with an
// empty disk.
func (n *nemesis) removeAndAdd(rng *rand.Rand) func() {
	h := n.anyHost(rng)
	by := n.anyHost(rng).up()
	if h.up() == nil || by == nil || !n.wipe() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	err := by.RemoveNode(ctx, h.name, false)
	cancel()
	if err != nil && storage.OutcomeOf(err) == storage.NotApplied {
		n.wiped()
		return nil
	}
	h.lose(false)
	return func() {
		defer n.wiped()
		n.enter(h, err != nil || rng.IntN(2) == 0 && n.listen(rng, h)) // it may be a member still, or again
	}
}

// listen lets a host with an empty disk be made a member without a vote by another one.
// Then the host is down again, and may be a member.
func (n *nemesis) listen(rng *rand.Rand, h *host) bool {
	var by *cluster.Node
	for range 4 {
		if by == nil {
			by = n.anyHost(rng).up()
		}
	}
	if by == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var node *cluster.Node // the one that wants no vote; another fault may have started h by now, or does after it
	var started sync.WaitGroup
	started.Go(func() {
		if h.start(entrance{join: n.others(h).join, nonvoter: true}) == nil {
			node = h.up()
		}
	})
	defer started.Wait()
	defer h.lose(false)
	if by.AddNode(ctx, h.name, h.raftAddress(), true) != nil {
		return true
	}
	added, err := by.Status(ctx)
	if err != nil || !slices.ContainsFunc(added.Peers, func(p cluster.Peer) bool { return p.Node == h.name && p.Role == "nonvoter" }) {
		return true // who led before may not know yet that another does, and who is a member since
	}
	started.Wait()
	if node == nil {
		return true
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && h.up() == node; time.Sleep(100 * time.Millisecond) { // it catches up
		if votes(h, added.Term) == nil && h.up() == node { // else it was started again, and has asked for one
			n.workers[0].recorder.broke("members", "%s was added without a vote, and has one", h.name)
			break
		}
	}
	return true
}

// removeTooMany has one of three members removed while another one is not reached, which
// has to be refused: the two that would be left could never be more than half.
func (n *nemesis) removeTooMany(rng *rand.Rand) func() {
	away := n.anyHost(rng)
	leader := n.fleet.leader()
	if len(n.fleet.hosts) != 3 || leader == nil || leader == away || !n.wipe() {
		return nil
	}
	mend := n.fleet.network.hold(links(away.name, n.everybody(), true, true)...)
	i := slices.IndexFunc(n.fleet.hosts, func(h *host) bool { return h != away && h != leader })
	h := n.fleet.hosts[i]
	by := leader.up()
	if rng.IntN(2) == 0 {
		by = h.up()
	}
	if by == nil {
		mend()
		n.wiped()
		return nil
	}
	time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second)))) // it is known to be away, or not yet
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	err := by.RemoveNode(ctx, h.name, false)
	cancel()
	if err == nil {
		n.workers[0].recorder.broke("members", "%s was removed while %s was away: there was no majority for that", h.name, away.name)
	}
	return func() {
		defer n.wiped()
		mend()
		if err := eventually(n.length, func() error { return votes(h, 0) }); err != nil {
			n.workers[0].recorder.broke("members", "%v: it was removed while %s was away", err, away.name)
		}
	}
}

func (n *nemesis) wipe() bool {
	select {
	case n.wiping <- struct{}{}:
		return true
	default:
		return false
	}
}

func (n *nemesis) wiped() { <-n.wiping }

// enter lets a host with an empty disk become a member, and waits until it has a
// vote: whoever took the next disk before would take a majority.
func (n *nemesis) enter(h *host, replace bool) {
	e := n.others(h)
	e.replace = replace
	n.startWith(h, e)
	_ = eventually(n.length, func() error { return votes(h, 0) }) // the end of the run tells
}

// votes returns nil if a host has a vote, as the leader of a term or of a later one sees it.
func votes(h *host, term uint64) error {
	node := h.up()
	if node == nil {
		return fmt.Errorf("%s is down", h.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := node.Status(ctx)
	if err != nil {
		return err
	}
	for _, p := range status.Peers {
		if p.Node == h.name && p.Role != "nonvoter" && status.Term >= term && status.SeenBy == status.Leader && status.Leader != "" {
			return nil
		}
	}
	return fmt.Errorf("%s has no vote", h.name)
}

func (n *nemesis) others(h *host) (e entrance) {
	for _, other := range n.fleet.hosts {
		if other != h {
			e.join = append(e.join, other.raftAddress())
		}
	}
	return e
}

// heldMost is longer than any fault holds what is sent.
const heldMost = 6 * time.Second

// restore saves the state and restores it, while nobody works: so nothing is
// lost by it but leases, and what is changed here meanwhile, of which who may do what
// stays.
func (n *nemesis) restore(rng *rand.Rand) func() {
	node := n.anyHost(rng).up()
	if node == nil {
		return nil
	}
	defer n.victims.rest()()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	for _, w := range n.workers {
		w.turn <- struct{}{}
		defer func() { <-w.turn }()
		if !w.resolve(ctx) {
			return nil
		}
	}
	w := n.workers[rng.IntN(len(n.workers))]
	mayDo := w.lateAccess(rng)
	time.Sleep(heldMost) // what nobody knows the outcome of may be in a link still, and must not come between
	mayDo.before(ctx)
	var b bytes.Buffer
	if node.Save(ctx, &b) != nil {
		return nil
	}
	mayDo.since(ctx)
	name := fmt.Sprintf("0-late-%d", rng.Uint64()) // before all others in lists
	late := w.putLate(ctx, rng.IntN(len(w.limits)), name)
	listed := w.listLate(ctx, name)
	if node.Restore(ctx, &b) != nil {
		return nil
	}
	mayDo.stays(ctx)
	if late {
		for i, has := range w.listLate(ctx, name) {
			if has {
				w.recorder.broke("restore", "%s lists what was put after the copy was made; those that listed it before: %v", n.fleet.hosts[i].name, listed)
			}
		}
	}
	return func() {}
}

// putLate puts a rate, asking one node once: what is asked twice may come late.
func (w *worker) putLate(ctx context.Context, at int, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := w.limits[at].PutRate(ctx, &v1.PutRateRequest{Rate: name, Limit: 1, Per: durationpb.New(time.Hour), RequestId: newID(), Client: w.name})
	return err == nil
}

// listLate is which of the nodes list a rate. Before it stand only others whose copies
// were not restored.
func (w *worker) listLate(ctx context.Context, name string) (has map[int]bool) {
	has = map[int]bool{}
	for i, node := range w.limits {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		res, err := node.ListRates(ctx, &v1.ListRatesRequest{PageSize: 100})
		cancel()
		has[i] = err == nil && slices.ContainsFunc(res.Rates, func(r *v1.Rate) bool { return r.Rate == name })
	}
	return has
}
