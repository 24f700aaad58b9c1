package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"

	"connectrpc.com/connect"

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
)

// How a cluster is filled with sessions before it is measured: by a snapshot
// that has them.

const (
	// filledCalls is how many finished calls a session has that fill made.
	filledCalls = 2
	// fillAtOnce is how many sessions are made in one entry.
	fillAtOnce = 256
	// fillChunk is how much of a snapshot goes into one message, of which a node
	// takes 256 KiB.
	fillChunk = 128 << 10
	// defaultNamespace is the one of requests that name none.
	defaultNamespace = "default"
)

// fill gives the cluster the sessions of the plan in the way that is fastest: it
// takes a snapshot of the cluster, which has the policies and pools by now,
// opens the sessions in it with the state machine of the nodes, and has the
// cluster restore that.
func (g *govnode) fill(ctx context.Context) error {
	cluster := govnodev1connect.NewClusterServiceClient(g.http, g.base)
	state, err := receiveState(ctx, cluster)
	if err != nil {
		return fmt.Errorf("taking a snapshot: %w", err)
	}
	ns := g.ns
	if ns == "" {
		ns = defaultNamespace
	}
	if err := g.plan.populate(state, ns); err != nil {
		return err
	}
	err = sendState(ctx, cluster, state.Snapshot())
	state = nil
	debug.FreeOSMemory() // what was needed here is missing nowhere while it is measured
	if err != nil {
		return fmt.Errorf("restoring it: %w", err)
	}
	return nil
}

func receiveState(ctx context.Context, cluster govnodev1connect.ClusterServiceClient) (*session.State, error) {
	stream, err := cluster.Snapshot(ctx, &govnodev1.SnapshotRequest{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	in, out := io.Pipe()
	go func() {
		for stream.Receive() {
			if _, err := out.Write(stream.Msg().GetChunk()); err != nil {
				return // the reader has given up
			}
		}
		_ = out.CloseWithError(stream.Err()) // nil is the end
	}()
	state, err := session.ReadSnapshot(bufio.NewReader(in))
	return state, errors.Join(err, in.Close())
}

func sendState(ctx context.Context, cluster govnodev1connect.ClusterServiceClient, snap *session.Snapshot) error {
	stream, err := cluster.Restore(ctx)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(chunks{stream}, fillChunk)
	err = session.WriteSnapshot(w, snap)
	if err == nil {
		err = w.Flush()
	}
	if _, answer := stream.CloseAndReceive(); answer != nil {
		return answer // says more than that nothing could be sent any more
	}
	return err
}

// chunks sends what is written, in messages that a node takes.
type chunks struct {
	stream *connect.ClientStreamForClientSimple[govnodev1.RestoreRequest, govnodev1.RestoreResponse]
}

func (c chunks) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, fillChunk) {
		if err := c.stream.Send(&govnodev1.RestoreRequest{Chunk: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// populate opens the sessions of the plan in a state that has its policies, and
// begins and ends some calls in each.
func (p *Plan) populate(s *session.State, ns string) error {
	digests := map[string]session.Digest{}
	for from := 0; from < p.Fill; from += fillAtOnce {
		var entry []session.Command
		for i := from; i < min(from+fillAtOnce, p.Fill); i++ {
			policy := p.policyOf(p.ownerOf(i))
			digest, known := digests[policy]
			if !known {
				name, _ := s.Stored(session.NameKey(ns, policy)).(*session.Name)
				if name == nil {
					return fmt.Errorf("policy %s: not in the snapshot", policy)
				}
				digest = name.Digest
				digests[policy] = digest
			}
			entry = append(entry, p.life(ns, i, policy, digest)...)
		}
		for k, r := range s.ApplyAll(s.Now(), entry) {
			if r.Code != session.Done && r.Code != session.Admitted && r.Code != session.Ended {
				return fmt.Errorf("session %s: %T: %v", p.session(from+k/(1+2*filledCalls)), entry[k], r.Code)
			}
		}
	}
	return nil
}

// life is what happens in a session that fill makes.
func (p *Plan) life(ns string, i int, policy string, digest session.Digest) []session.Command {
	id, pool := p.session(i), "policy/"+policy
	all := []session.Command{&session.Open{NS: ns, Session: id, Agent: agentOf(p.ownerOf(i)), Policy: policy, Digest: digest, IdleTTL: idleTTL}}
	for c := range filledCalls {
		call := fmt.Sprintf("filled-%d", c)
		all = append(all,
			&session.Begin{NS: ns, Session: id, Call: call, Tool: tool, Digest: digest, Verdict: session.Verdict{Allow: true},
				Pools: []session.Want{{Pool: pool, Weight: 1}}, TTL: idleTTL},
			&session.End{NS: ns, Session: id, Call: call, Pools: []string{pool}, Status: session.Succeeded, Tokens: -1})
	}
	return all
}
