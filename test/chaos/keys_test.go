package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/sim"
)

// roles are those of a process of clients, which also makes what all of them use.
const roles = "agent,orchestrator,operator,policy-author"

// keys are the tokens of a run: each process of clients has one of its own.
type keys struct {
	cluster *processes.Cluster
	dir     string
	own     string // of the nemesis

	mu   sync.Mutex
	text map[string]string // of the processes' tokens, by their names
}

// newKeys makes the tokens that all processes of clients share with each other, and
// says to the workload where they are.
func newKeys(c *processes.Cluster, work *sim.Workload) (*keys, error) {
	k := &keys{cluster: c, dir: c.Secured.Folder, text: map[string]string{}}
	work.Authority, work.Voters = c.Secured.Authority(), map[string]string{}
	var err error
	if k.own, err = k.make(roles + ",auditor"); err != nil {
		return nil, err
	}
	if work.Token, err = k.write("nemesis", k.own); err != nil {
		return nil, err
	}
	for _, who := range sim.People {
		token, err := k.make("approver")
		if err != nil {
			return nil, err
		}
		if work.Voters[who], err = k.write(who, token); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// make makes a token over the socket of whichever node can.
func (k *keys) make(roles string) (token string, err error) {
	err = within(20*time.Second, func() error {
		err := errors.New("no node runs that could make a token")
		for _, n := range k.cluster.Nodes {
			if !n.Runs() {
				continue
			}
			if token, err = k.cluster.Secured.Run("token", "create", "--socket", n.Socket, "--namespace", "default", "--role", roles, "--timeout", "2s"); err == nil {
				return nil
			}
		}
		return err
	})
	return token, err
}

// write puts a token where those look who show it. Nobody sees half of it.
func (k *keys) write(name, token string) (path string, err error) {
	path = filepath.Join(k.dir, "token-"+name)
	if err := os.WriteFile(path+".new", []byte(token), 0o600); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path)
}

// give makes a token for a process, in place of the one that it has.
func (k *keys) give(name string) (path string, err error) {
	token, err := k.make(roles)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.text[name] = token
	return k.write(name, token)
}

// take makes another token for a process, and returns the text of the one that it had,
// which it does not show any more.
func (k *keys) take(name string) (old string, err error) {
	k.mu.Lock()
	old = k.text[name]
	k.mu.Unlock()
	_, err = k.give(name)
	return old, err
}

// A probe is somebody with a token that is revoked meanwhile.
type probe struct {
	n     *nemesis
	token string
	name  string
	rng   *rand.Rand
	kept  []check.Op
}

// once counts at a node, and reports whether that did not know him.
func (p *probe) once(ctx context.Context) (stranger bool) {
	x := p.n.cluster.Nodes[p.rng.IntN(len(p.n.cluster.Nodes))]
	o := check.Op{
		Client: p.name, Kind: check.Increment, Object: p.name, ID: ulid.Make().String(), Amount: 1, Shown: processes.TokenID(p.token), Call: p.n.now(),
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	res, err := govnodev1connect.NewCounterServiceClient(p.n.cluster.With(p.token), p.n.cluster.URL(x)).
		Increment(ctx, &v1.IncrementRequest{Key: o.Object, Amount: "1", RequestId: o.ID, Client: p.name})
	o.Return = p.n.now()
	stranger = connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeUnauthenticated
	switch {
	case err == nil:
		o.Outcome, o.Index = check.Applied, res.Index
		o.Value, _ = strconv.ParseInt(res.Value, 10, 64)
	case stranger:
		o.Outcome, o.Text = check.NotApplied, err.Error()
	default:
		o.Text = err.Error()
	}
	p.kept = append(p.kept, o)
	return stranger
}

// revoke gives the clients of one process another token and revokes the one that they
// had, while they work and somebody goes on with it.
func (n *nemesis) revoke(rng *rand.Rand) func() {
	name, ok := n.clients.some(rng)
	if !ok {
		return nil
	}
	old, err := n.clients.keys.take(name)
	if err != nil {
		return nil // no node could make one, and the clients go on with what they have
	}
	p := &probe{n: n, token: old, name: "probe-" + processes.TokenID(old), rng: rng}
	going, stop := context.WithCancel(context.Background())
	var under sync.WaitGroup
	under.Go(func() {
		for going.Err() == nil {
			p.once(context.Background())
			sleep(going, 20*time.Millisecond)
		}
	})
	o := check.Op{Client: p.name, Kind: check.Revoke, Object: processes.TokenID(old), ID: ulid.Make().String(), Call: n.now()}
	for end := time.Now().Add(20 * time.Second); o.Outcome != check.Applied && time.Now().Before(end); sleep(going, 50*time.Millisecond) {
		ctx, cancel := context.WithTimeout(going, 2*time.Second)
		x := n.any(rng)
		res, err := govnodev1connect.NewAccessServiceClient(n.cluster.With(n.token), n.cluster.URL(x)).
			RevokeToken(ctx, &v1.RevokeTokenRequest{TokenId: o.Object, RequestId: o.ID, Client: p.name})
		cancel()
		if o.Return, o.Text = n.now(), fmt.Sprint(err); err == nil {
			o.Outcome, o.Index, o.Text = check.Applied, res.Index, ""
		}
	}
	return func() {
		stop()
		under.Wait()
		known := o.Outcome == check.Applied
		for end := time.Now().Add(20 * time.Second); known && time.Now().Before(end); {
			known = !p.once(context.Background())
			time.Sleep(20 * time.Millisecond) // a node that is down refuses at once
		}
		if known {
			n.broke(fmt.Errorf("nobody refuses token %s, which was revoked: %v", o.Object, o))
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.ops = append(append(n.ops, o), p.kept...)
	}
}
