package chaos

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/govnode/proto/govnode/v1/govnodev1connect"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/test/chaos/trail"
	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
)

// A nemesis lets things go wrong, one or two at a time, as a seed draws them.
type nemesis struct {
	cluster *processes.Cluster
	clients *clients
	kinds   []kind
	rng     *rand.Rand // of the plan
	clocks  clocks
	token   string // of the namespace of the clients
	audits  *trail.Trail
	log     func(format string, args ...any)

	mu       sync.Mutex
	faults   map[string]int
	answered []time.Duration // from the kill of a leader to the first answer
	others   []time.Time     // when faults began that are no such kill
	under    int             // how many of those are under way
	broken   []error
	ops      []check.Op // of its own
	down     int        // nodes that were killed and not started again
}

// A kind is what may go wrong. It returns what mends it, or nil if there was
// nothing that it could befall.
type kind struct {
	name string
	do   func(n *nemesis, rng *rand.Rand) (mend func())
}

// ofRaft are the kinds for nodes that put commands in order by themselves.
var ofRaft = []kind{
	{leaderKilled, (*nemesis).killLeader},
	{"kill follower", func(n *nemesis, rng *rand.Rand) func() { return n.kill(n.follower(rng)) }},
	{"kill all", (*nemesis).killAll},
	{"end in order", (*nemesis).end},
	{"pause", (*nemesis).pause},
	{"cpu starvation", (*nemesis).starve},
	{"isolate leader", func(n *nemesis, rng *rand.Rand) func() { return n.isolate(n.leader(rng), rng) }},
	{"isolate follower", func(n *nemesis, rng *rand.Rand) func() { return n.isolate(n.follower(rng), rng) }},
	{"one way", (*nemesis).oneWay},
	{"split", (*nemesis).split},
	{"loss", (*nemesis).loss},
	{"slow links", (*nemesis).slow},
	{"lost replies", (*nemesis).lostReplies},
	{"transfer", (*nemesis).transfer},
	{"replace", (*nemesis).replace},
	{"restore", (*nemesis).restore},
	{"kill clients", (*nemesis).killClients},
	{"revoke a token", (*nemesis).revoke},
	{"time of day jumps", (*nemesis).wallJump},
	{"monotonic clock jumps", (*nemesis).monotonicJump},
	{"clock rate", (*nemesis).clockRate},
}

const leaderKilled = "kill leader"

// run lets faults happen until ctx is done, and mends the last.
func (n *nemesis) run(ctx context.Context) {
	var under sync.WaitGroup
	var deck []kind // each is drawn as often as any other
	for ctx.Err() == nil {
		sleep(ctx, 2*time.Second+time.Duration(n.rng.Int64N(int64(2*time.Second))))
		many := 1
		if n.rng.IntN(10) == 0 {
			many = 2
		}
		for range many {
			if len(deck) == 0 {
				deck = slices.Clone(n.kinds)
				n.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			k, pick := deck[0], n.rng.Uint64()
			deck = deck[1:]
			lasts := 300*time.Millisecond + time.Duration(n.rng.Int64N(int64(3*time.Second)))
			if k.name == leaderKilled { // it is measured, so that nothing is to be wrong beside it
				under.Wait()
				_ = whole(n.cluster) // else it is measured all the same, and says so
				sleep(ctx, time.Second)
			}
			if ctx.Err() != nil {
				break
			}
			under.Go(func() { n.befall(ctx, k, pick, lasts) })
		}
	}
	under.Wait()
}

// befall lets one fault happen for a while, and mends it.
func (n *nemesis) befall(ctx context.Context, k kind, pick uint64, lasts time.Duration) {
	if k.name != leaderKilled {
		n.mu.Lock()
		n.others, n.under = append(n.others, time.Now()), n.under+1
		n.mu.Unlock()
		defer func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.under--
		}()
	}
	mend := k.do(n, rand.New(rand.NewPCG(pick, 0)))
	if mend == nil {
		return
	}
	n.log("%s for %v", k.name, lasts)
	n.mu.Lock()
	n.faults[k.name]++
	n.mu.Unlock()
	sleep(ctx, lasts)
	mend()
	for _, x := range n.cluster.Nodes {
		if n.audits == nil {
			return
		}
		if err := n.audits.Keep(x); err != nil {
			n.broke(err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (n *nemesis) any(rng *rand.Rand) *processes.Node {
	return n.cluster.Nodes[rng.IntN(len(n.cluster.Nodes))]
}

func (n *nemesis) leader(rng *rand.Rand) *processes.Node {
	if l := n.cluster.Leader(); l != nil {
		return l
	}
	return n.any(rng)
}

func (n *nemesis) follower(rng *rand.Rand) *processes.Node {
	l := n.cluster.Leader()
	for {
		if f := n.any(rng); f != l {
			return f
		}
	}
}

func (n *nemesis) everybody() []string { return append(n.cluster.Names(), processes.Clients) }

// now is the time of the clients.
func (n *nemesis) now() time.Duration { return monotonic() - n.clients.start }

func (n *nemesis) broke(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = append(n.broken, err)
}

func (n *nemesis) kill(x *processes.Node) func() {
	if !x.Kill() {
		return nil
	}
	return func() { n.start(x) }
}

// start starts a node on its folder, as a service's configuration does.
func (n *nemesis) start(x *processes.Node) {
	if err := n.cluster.Start(x); err != nil && !x.Runs() {
		n.broke(err)
	}
}

// killLeader also measures how long it takes until a node answers again, where a
// majority is there to answer.
func (n *nemesis) killLeader(rng *rand.Rand) func() {
	l := n.leader(rng)
	others := 0
	for _, x := range n.cluster.Nodes {
		if x != l && x.Runs() {
			others++
		}
	}
	n.mu.Lock()
	calm := others == len(n.cluster.Nodes)-1 && n.down == 0 && n.under == 0
	n.down++
	n.mu.Unlock()
	if !l.Kill() {
		n.mu.Lock()
		n.down--
		n.mu.Unlock()
		return nil
	}
	start := time.Now()
	var asked sync.WaitGroup
	if calm {
		asked.Go(func() {
			if n.firstAnswer(l) {
				took := time.Since(start)
				n.mu.Lock()
				defer n.mu.Unlock()
				if !slices.ContainsFunc(n.others, func(t time.Time) bool { // then it was something else that took its time
					return t.After(start) && t.Sub(start) < min(took, firstAnswerWithin)
				}) {
					n.answered = append(n.answered, took)
				}
			}
		})
	}
	return func() {
		n.start(l)
		n.mu.Lock()
		n.down--
		n.mu.Unlock()
		asked.Wait()
	}
}

// firstAnswer asks the other nodes for a read of the latest state until one
// answers.
func (n *nemesis) firstAnswer(dead *processes.Node) bool {
	answered := make(chan struct{}, len(n.cluster.Nodes))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, x := range n.cluster.Nodes {
		if x == dead {
			continue
		}
		go func() {
			counters := govnodev1connect.NewCounterServiceClient(n.cluster.With(n.token), n.cluster.URL(x))
			for ctx.Err() == nil {
				attempt, end := context.WithTimeout(ctx, 300*time.Millisecond)
				_, err := counters.Get(attempt, &v1.GetRequest{Key: "a"})
				end()
				if err == nil {
					answered <- struct{}{}
					return
				}
				sleep(ctx, 20*time.Millisecond)
			}
		}()
	}
	select {
	case <-answered:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *nemesis) killAll(*rand.Rand) func() {
	var killed []*processes.Node
	for _, x := range n.cluster.Nodes {
		if x.Kill() {
			killed = append(killed, x)
		}
	}
	n.mu.Lock()
	n.down++
	n.mu.Unlock()
	return func() {
		for _, x := range killed {
			n.start(x)
		}
		n.mu.Lock()
		n.down--
		n.mu.Unlock()
	}
}

func (n *nemesis) end(rng *rand.Rand) func() {
	x := n.any(rng)
	if !x.Stop(15 * time.Second) {
		return nil
	}
	return func() { n.start(x) }
}

func (n *nemesis) pause(rng *rand.Rand) func() { return n.leader(rng).Pause() }

// starve lets a process run for some milliseconds at a time, with longer gaps
// between.
func (n *nemesis) starve(rng *rand.Rand) func() {
	x, on, off := n.any(rng), time.Duration(1+rng.IntN(10))*time.Millisecond, time.Duration(20+rng.IntN(80))*time.Millisecond
	first := x.Pause()
	if first == nil {
		return nil
	}
	ctx, end := context.WithCancel(context.Background())
	var under sync.WaitGroup
	under.Go(func() {
		for resume := first; ; resume = x.Pause() {
			sleep(ctx, off)
			if resume == nil {
				return // it was killed meanwhile
			}
			resume()
			if sleep(ctx, on); ctx.Err() != nil {
				return
			}
		}
	})
	return func() {
		end()
		under.Wait()
	}
}

// isolate cuts a node off from the others, and perhaps from the clients.
func (n *nemesis) isolate(x *processes.Node, rng *rand.Rand) func() {
	from := n.cluster.Names()
	if rng.IntN(2) == 0 {
		from = n.everybody()
	}
	return n.cluster.Network.Hold(processes.Weather{Loss: 1}, processes.Between(x.Name, from, true, true)...)
}

// oneWay loses what a node sends, or what it is sent.
func (n *nemesis) oneWay(rng *rand.Rand) func() {
	out := rng.IntN(2) == 0
	return n.cluster.Network.Hold(processes.Weather{Loss: 1}, processes.Between(n.leader(rng).Name, n.everybody(), out, !out)...)
}

// split cuts every way between two sides.
func (n *nemesis) split(rng *rand.Rand) func() {
	var cut []processes.Link
	side := map[string]bool{}
	for _, name := range n.everybody() {
		side[name] = rng.IntN(2) == 0
	}
	for a := range side {
		for b := range side {
			if side[a] != side[b] {
				cut = append(cut, processes.Link{From: a, To: b})
			}
		}
	}
	if len(cut) == 0 {
		return nil
	}
	return n.cluster.Network.Hold(processes.Weather{Loss: 1}, cut...)
}

func (n *nemesis) loss(rng *rand.Rand) func() {
	w := processes.Weather{Loss: 0.05 + 0.4*rng.Float64()}
	return n.cluster.Network.Hold(w, processes.Between(n.any(rng).Name, n.everybody(), true, true)...)
}

func (n *nemesis) slow(rng *rand.Rand) func() {
	w := processes.Weather{Delay: time.Duration(1+rng.IntN(300)) * time.Millisecond}
	return n.cluster.Network.Hold(w, processes.Between(n.any(rng).Name, n.everybody(), true, rng.IntN(2) == 0)...)
}

// lostReplies lets what clients ask arrive, and loses the answers.
func (n *nemesis) lostReplies(rng *rand.Rand) func() {
	return n.cluster.Network.Hold(processes.Weather{Loss: 1}, processes.Link{From: n.leader(rng).Name, To: processes.Clients})
}

func (n *nemesis) members(x *processes.Node) govnodev1connect.ClusterServiceClient {
	return govnodev1connect.NewClusterServiceClient(n.cluster.HTTP, n.cluster.URL(x))
}

func (n *nemesis) transfer(rng *rand.Rand) func() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if _, err := n.members(n.any(rng)).TransferLeadership(ctx, &v1.TransferLeadershipRequest{}); err != nil {
		return nil
	}
	return func() {}
}

// replace takes the disk of a member away, and lets the node take its place with
// an empty folder. It is always the last one: while it catches up nobody else's
// disk may go.
func (n *nemesis) replace(*rand.Rand) func() {
	x := n.cluster.Nodes[len(n.cluster.Nodes)-1]
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := n.cluster.Status(ctx, x) // it has a vote, and has caught up
	if err != nil || s.Health != "ok" || slices.ContainsFunc(s.Peers, func(p *v1.Peer) bool { return p.Node == x.Name && p.Role == "nonvoter" }) || !x.Kill() {
		return nil
	}
	if err := x.Wipe(); err != nil {
		n.broke(err)
	}
	return func() { n.start(x) }
}

// restore saves the state and restores it while no client has anything under way,
// so that nothing is lost by it but leases.
func (n *nemesis) restore(rng *rand.Rand) func() {
	if !n.clients.rest() {
		return nil
	}
	defer n.clients.goOn()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b, err := snapshot(ctx, n.members(n.any(rng)))
	if err != nil {
		return nil
	}
	stream, err := n.members(n.any(rng)).Restore(ctx)
	if err != nil {
		return nil
	}
	for chunk := range slices.Chunk(b, 64<<10) {
		if stream.Send(&v1.RestoreRequest{Chunk: chunk}) != nil {
			break // the answer says why
		}
	}
	if _, err := stream.CloseAndReceive(); err != nil {
		return nil // it may come into force later: nobody has gone on before that is known
	}
	return func() {}
}

// snapshot returns the state of a node.
func snapshot(ctx context.Context, c govnodev1connect.ClusterServiceClient) ([]byte, error) {
	stream, err := c.Snapshot(ctx, &v1.SnapshotRequest{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	var b bytes.Buffer
	for stream.Receive() {
		_, _ = b.Write(stream.Msg().Chunk)
	}
	return b.Bytes(), stream.Err()
}

// killClients kills one of the processes that clients are in, and starts another.
func (n *nemesis) killClients(rng *rand.Rand) func() { return n.clients.replace(rng) }
