package record

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/members"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A gathering brings the events of all nodes into one stream. Each node is
// followed with its own part of the cursor; a message is taken from one node
// when the one before has gone out, so that nothing piles up here and whoever
// reads slowly is cut by the node that it falls behind.
type gathering struct {
	s        *Teller
	who      *access.Principal
	req      *v1.FollowRequest
	at       map[string]string // cursor of each node
	left     map[string]string // likewise, of those that are no members any more
	silent   map[string]bool   // nodes that do not answer
	fromNow  map[string]bool   // nodes that were to tell what comes from then on, and have not begun
	members  map[string]bool   // that are followed
	messages chan heard
	open     chan struct{} // closed when every node has said its first word
}

const (
	// followPause is how long a node that could not be followed is left alone.
	followPause = time.Second
	// followMembers is how often it is looked whether there are new members.
	followMembers = 2 * time.Second
	// followAbsent is how often in a row a node has to be found to be no member until it is
	// taken for gone: whoever looks may be behind.
	followAbsent = 3
	// followPatience is after what silence a node is given up, which says something each
	// followBeat: one that lost its power closes no connection.
	followPatience = followBeat + 5*time.Second
)

// heard is what came from one node: a message, or why there is none.
type heard struct {
	node    string
	message *v1.FollowResponse
	err     error
}

func (s *Teller) followAll(ctx context.Context, req *v1.FollowRequest, part *partition, at map[string]cursor, send func(*v1.FollowResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &gathering{
		s: s, who: access.From(ctx), req: req, at: map[string]string{}, left: map[string]string{}, silent: map[string]bool{},
		fromNow: map[string]bool{}, members: map[string]bool{},
		messages: make(chan heard), open: make(chan struct{}),
	}
	for node, c := range at {
		g.at[node] = c.text(node)
	}
	resumed := len(at) > 0
	own := &voice{g: g, node: s.Node}
	g.members[own.node] = true
	fl := s.newFollower(ctx, g.request(own.node, resumed), part, at[own.node])
	go func() {
		err := fl.run(ctx, func(m *v1.FollowResponse) error { return own.say(ctx, m, nil) })
		_ = own.say(ctx, nil, err) // it fails when nobody listens any more
	}()
	if err := g.enlist(ctx, resumed); err != nil {
		return fault.OfRead(err)
	}
	if err := g.firstWords(ctx, send); err != nil {
		return err
	}
	return g.run(ctx, send)
}

// A voice is one node in a gathering.
type voice struct {
	g      *gathering
	node   string
	spoken bool
}

// say hands on what came from the node. After its first word a node waits until
// all have said theirs.
func (v *voice) say(ctx context.Context, m *v1.FollowResponse, why error) error {
	if v.spoken {
		select {
		case <-v.g.open:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	v.spoken = true
	select {
	case v.g.messages <- heard{v.node, m, why}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// firstWords hears every node once before anything is told, so that the first
// cursor holds for all that answer.
func (g *gathering) firstWords(ctx context.Context, send func(*v1.FollowResponse) error) error {
	waiting, patience, was := maps.Clone(g.members), time.NewTimer(peerTimeout), maps.Clone(g.at)
	defer patience.Stop()
	var gaps []heard
	for len(waiting) > 0 {
		select {
		case h := <-g.messages:
			m, err := g.take(h)
			if err != nil {
				return err
			}
			if m.Gap != nil {
				gaps = append(gaps, h)
			}
			delete(waiting, h.node)
		case <-patience.C:
			maps.Copy(g.silent, waiting)
			clear(waiting)
		case <-ctx.Done():
			return fault.GaveUp(ctx)
		}
	}
	close(g.open)
	first := g.bare()
	for i, h := range gaps {
		at := maps.Clone(g.at)
		for _, untold := range gaps[i+1:] { // who goes on behind this message is told of those, too
			if at[untold.node] = was[untold.node]; at[untold.node] == "" {
				delete(at, untold.node)
			}
		}
		if err := send(&v1.FollowResponse{Gap: h.message.Gap, Cursor: joined(at)}); err != nil {
			return err
		}
	}
	return send(first)
}

// request is what one node is asked for. Where the others have cursors and this
// one has none, it has joined since, and all of its events are new; one that is back
// goes on behind what it had told.
func (g *gathering) request(node string, resumed bool) *v1.FollowRequest {
	after := cmp.Or(g.at[node], g.left[node])
	return &v1.FollowRequest{
		After: after, Types: g.req.Types, SessionId: g.req.SessionId, AgentId: g.req.AgentId,
		FromOldest: after == "" && (g.req.FromOldest || resumed),
	}
}

// enlist follows the members that are not followed yet.
func (g *gathering) enlist(ctx context.Context, resumed bool) error {
	peers, err := g.s.peers(ctx)
	if err != nil {
		return err
	}
	for node := range g.at { // that were followed before, and may be no members any more
		peers = append(peers, members.Peer{Node: node})
	}
	for _, p := range peers {
		if !g.members[p.Node] {
			g.members[p.Node] = true
			req := g.request(p.Node, resumed)
			g.fromNow[p.Node] = req.After == "" && !req.FromOldest
			go g.followPeer(ctx, p, req)
		}
	}
	return nil
}

// followPeer follows one node, again and again, until the stream ends or the node is no
// member any more.
func (g *gathering) followPeer(ctx context.Context, p members.Peer, req *v1.FollowRequest) {
	v, absent := &voice{g: g, node: p.Node}, 0
	for {
		if err := v.listen(ctx, p, req); v.say(ctx, nil, err) != nil {
			return
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return
		}
		peers, err := g.s.peers(ctx)
		if err != nil {
			continue // the member is asked where it was
		}
		i := slices.IndexFunc(peers, func(o members.Peer) bool { return o.Node == p.Node })
		switch absent++; {
		case i >= 0:
			p, absent = peers[i], 0
		case absent == followAbsent:
			_ = v.say(ctx, nil, errNoMember) // nobody listens any more if it fails
			return
		}
	}
}

// errNoMember is why a node is not followed any more.
var errNoMember = errors.New("server: the node is no member of the cluster")

// listen follows one node until it ends the stream. The request then goes on
// behind what was heard.
func (v *voice) listen(ctx context.Context, p members.Peer, req *v1.FollowRequest) error {
	if p.APIAddress == "" {
		return errNowhere
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(followPatience, cancel)
	defer silence.Stop()
	stream, err := v.g.s.peerEvents(ctx, p).Follow(bound(ctx), req)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		silence.Stop() // whoever reads slowly is not its silence
		m := stream.Msg()
		req.After, req.FromOldest = m.Cursor, false
		if err := v.say(ctx, &v1.FollowResponse{Event: m.Event, Gap: m.Gap, Cursor: m.Cursor}, nil); err != nil {
			return err
		}
		silence.Reset(followPatience)
	}
	if err := stream.Err(); err != nil {
		return err
	}
	return errors.New("server: the node ended the stream")
}

// run sends what is heard. The end of a peer is not the end of the stream, but
// that of this node is, and so is a follower that is too slow for one of them.
func (g *gathering) run(ctx context.Context, send func(*v1.FollowResponse) error) error {
	members := time.NewTicker(followMembers)
	defer members.Stop()
	for {
		select {
		case h := <-g.messages:
			m, err := g.take(h)
			if err != nil {
				return err
			}
			if m.Event != nil {
				if err := g.s.still(ctx, g.who); err != nil {
					return err
				}
			}
			if err := send(m); err != nil {
				return err
			}
		case <-members.C:
			// A node that cannot tell its members now is asked again soon.
			if err := g.enlist(ctx, true); err != nil {
				g.s.Log.Debug("the members of the cluster are not known", "error", err)
			}
		case <-ctx.Done():
			return fault.GaveUp(ctx)
		}
	}
}

// take notes what a node said, and returns what is to be told of it.
func (g *gathering) take(h heard) (*v1.FollowResponse, error) {
	if h.err != nil {
		if h.node == g.s.Node || connect.CodeOf(h.err) == connect.CodeResourceExhausted || connect.CodeOf(h.err) == connect.CodeInvalidArgument {
			return nil, h.err
		}
		if !errors.Is(h.err, errNoMember) {
			g.silent[h.node] = true
			return g.bare(), nil
		}
		was := g.at[h.node]
		delete(g.silent, h.node)
		delete(g.members, h.node)
		delete(g.at, h.node)
		m := g.bare()
		if g.left[h.node] = was; was != "" { // nobody can say whether it had more to tell
			m.Gap = &v1.Gap{Node: h.node, Reason: gapLeft}
		}
		return m, nil
	}
	if g.silent[h.node] && g.fromNow[h.node] && h.message.Gap == nil {
		h.message.Gap = &v1.Gap{Node: h.node, Reason: gapUnheard}
	}
	delete(g.silent, h.node)
	delete(g.fromNow, h.node)
	g.at[h.node] = h.message.Cursor
	m := g.bare()
	m.Gap, m.Event = h.message.Gap, h.message.Event
	return m, nil
}

// bare is a message with nothing but the cursor, and who does not answer.
func (g *gathering) bare() *v1.FollowResponse {
	return &v1.FollowResponse{Cursor: joined(g.at), Unreachable: slices.Sorted(maps.Keys(g.silent))}
}

// joined is the cursor of all nodes.
func joined(at map[string]string) string {
	parts := make([]string, 0, len(at))
	for _, c := range input.Sorted(at) {
		parts = append(parts, c)
	}
	return strings.Join(parts, ",")
}
