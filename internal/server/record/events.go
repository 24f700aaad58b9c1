package record

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
)

// How the events of one node are followed. Those of all nodes are brought
// together in cluster.go.

const (
	// maxFollowers bounds who follows one node at once.
	maxFollowers = 256
	// followBeat is how often a follower hears of the node when nothing occurs.
	followBeat = 15 * time.Second
)

// Why events were missed.
const (
	gapOverwritten = "OVERWRITTEN"
	gapRestarted   = "RESTARTED"
	gapLeft        = "LEFT"
	gapUnheard     = "UNHEARD"
)

// Follow streams the governance events of this node, or of all.
func (s *Teller) Follow(ctx context.Context, req *v1.FollowRequest, stream *connect.ServerStream[v1.FollowResponse]) error {
	f := &input.Fields{}
	f.OptionalID("sessionId", req.SessionId)
	f.OptionalID("agentId", req.AgentId)
	for i, t := range req.Types {
		if !slices.Contains(eventTypes, engine.EventType(t)) {
			f.Refuse(fmt.Sprintf("types[%d]", i), "is no type of event; use policy_check, policy_violation, tool_call_blocked, checkpoint_created, drift_detected, signal, output_reviewed, budget_warning, budget_exceeded, approval_requested and approval_decided")
		}
	}
	at := cursorsIn(f, "after", req.After)
	if req.FromOldest && req.After != "" {
		f.Refuse("fromOldest", "is given beside after; send one of them")
	}
	if _, here := at[s.Node]; f.Err == nil && !req.Cluster && len(at) > 0 && !here {
		f.Refuse("after", "is a cursor of another node, and this is %s; follow that node, or set cluster", s.Node)
	}
	if f.Err != nil {
		return f.Err
	}
	part := s.Journal.enter(input.Namespace(ctx), maxFollowers)
	if part == nil {
		return fault.New(connect.CodeResourceExhausted, fault.ReasonTooManyFollowers, fmt.Sprintf("this node has %d followers, which is as many as it takes; follow another node, or end one", maxFollowers))
	}
	defer s.Journal.leave(part)
	leave, err := s.Enter(ctx, input.Namespace(ctx))
	if err != nil {
		return err
	}
	defer leave()
	if req.Cluster {
		return s.followAll(ctx, req, part, at, stream.Send)
	}
	fl := s.newFollower(ctx, req, part, at[s.Node])
	return fl.run(ctx, stream.Send)
}

// A cursor is a place in the events that one node has of a namespace: behind the
// event of that sequence.
type cursor struct {
	life     string // of the partition whose sequence it is
	sequence uint64
}

func (c cursor) text(node string) string {
	return node + ":" + c.life + ":" + strconv.FormatUint(c.sequence, 10)
}

// cursorsIn reads what Follow has sent: the cursor of each node, separated by
// commas.
func cursorsIn(f *input.Fields, field, text string) map[string]cursor {
	if text == "" {
		return nil
	}
	at := map[string]cursor{}
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Split(part, ":")
		if len(words) != 3 || words[0] == "" || words[1] == "" {
			f.Refuse(field, "is no cursor; send one as Follow gave it, or none")
			return nil
		}
		n, err := strconv.ParseUint(words[2], 10, 63)
		if err != nil {
			f.Refuse(field, "is no cursor; send one as Follow gave it, or none")
			return nil
		}
		at[words[0]] = cursor{words[1], n}
	}
	return at
}

// A follower reads what the journal of this node has of its namespace, at its own
// pace: it holds a place and nothing else, so however slow it is, it costs the
// calls nothing.
type follower struct {
	s       *Teller
	part    *partition
	types   map[string]bool // nil for all
	session string
	agent   string
	who     *access.Principal
	next    uint64  // sequence of the next event to send
	gap     *v1.Gap // to be said first
}

func (s *Teller) newFollower(ctx context.Context, req *v1.FollowRequest, part *partition, at cursor) *follower {
	fl := &follower{s: s, part: part, who: access.From(ctx), session: req.SessionId, agent: req.AgentId}
	if len(req.Types) > 0 {
		fl.types = map[string]bool{}
		for _, t := range req.Types {
			fl.types[t] = true
		}
	}
	oldest, next := s.Journal.bounds(part)
	switch {
	case at.life == part.life && at.sequence < next:
		fl.next = at.sequence + 1
		if fl.next < oldest {
			fl.gap = &v1.Gap{Node: s.Node, Reason: gapOverwritten, Missed: oldest - fl.next}
			fl.next = oldest
		}
	case at.life != "":
		// The node has forgotten what it had of the namespace: all that it has now is new.
		fl.gap = &v1.Gap{Node: s.Node, Reason: gapRestarted}
		fl.next = oldest
	case req.FromOldest:
		fl.next = oldest
	default:
		fl.next = next
	}
	return fl
}

// cursor is the place behind what was sent.
func (fl *follower) cursor() string {
	return cursor{fl.part.life, fl.next - 1}.text(fl.s.Node)
}

// run sends events until the other side ends, falls behind, or the node drains.
func (fl *follower) run(ctx context.Context, send func(*v1.FollowResponse) error) error {
	if err := send(&v1.FollowResponse{Gap: fl.gap, Cursor: fl.cursor()}); err != nil {
		return err
	}
	beat := time.NewTicker(followBeat)
	defer beat.Stop()
	for {
		r := fl.s.Journal.read(fl.part, fl.next)
		if r.missed > 0 {
			fl.s.Cut.Inc()
			return fault.New(connect.CodeResourceExhausted, fault.ReasonTooSlow, fmt.Sprintf(
				"this follower fell behind what the node keeps, and %d events are gone; read faster, or ask for fewer types, and follow again with the last cursor", r.missed))
		}
		if err := fl.s.still(ctx, fl.who); err != nil && len(r.records) > 0 {
			return err
		}
		for _, rec := range r.records {
			if err := fl.tell(rec, send); err != nil {
				return err
			}
		}
		fl.next = r.next
		if r.news == nil {
			continue
		}
		select {
		case <-r.news:
		case <-beat.C:
			if err := send(&v1.FollowResponse{Cursor: fl.cursor()}); err != nil {
				return err
			}
		case <-fl.s.Drained:
			return fault.New(connect.CodeUnavailable, fault.ReasonNotApplied, "this node is shutting down; follow another one, or this one again when it is back: it will say what was missed")
		case <-ctx.Done():
			return fault.GaveUp(ctx)
		}
	}
}

func (s *Teller) still(ctx context.Context, p *access.Principal) error {
	if s.Still == nil {
		return nil
	}
	return s.Still(ctx, p)
}

// tell sends those events of a record that are wanted and not sent yet.
func (fl *follower) tell(r *Record, send func(*v1.FollowResponse) error) error {
	if fl.session != "" && r.Input.SessionID != fl.session || fl.agent != "" && r.agentID() != fl.agent || !fl.who.Sees(r.agentID()) {
		return nil
	}
	if r.events == 0 {
		return nil // what it says was told with the record before it
	}
	for i, ev := range r.engineEvents() {
		sequence := r.first + uint64(i)
		if sequence < fl.next || fl.types != nil && !fl.types[string(ev.Type)] {
			continue
		}
		fl.next = sequence + 1
		if err := send(&v1.FollowResponse{Event: fl.s.eventOf(r, ev, sequence), Cursor: fl.cursor()}); err != nil {
			return err
		}
	}
	return nil
}

// agentID is that of the session, or the one that Evaluate was given: as it came, while
// what is shown of it is redacted.
func (r *Record) agentID() string { return r.Input.AgentID }

// engineEvents are the events of a record, with their texts redacted.
func (r *Record) engineEvents() []engine.Event {
	if r.ID == "" {
		return r.After
	}
	in := r.Input
	in.Now = r.At
	return engine.Events(in, r.Decision)
}

func (s *Teller) eventOf(r *Record, ev engine.Event, sequence uint64) *v1.Event {
	out := &v1.Event{
		Type: string(ev.Type), Node: s.Node, Sequence: sequence, Timestamp: input.Stamp(ev.Time),
		AgentId: ev.AgentID, SessionId: ev.SessionID, CallId: ev.CallID, Tool: ev.Tool,
		Policy: ev.Policy, Rule: ev.Rule, Category: ev.Category, Reason: ev.Reason,
		DecisionId: r.ID, CheckpointId: ev.Checkpoint, DryRun: r.DryRun, Repeat: r.Repeat,
		ApprovalId: ev.Approval, Approver: ev.Approver,
	}
	if d := ev.Drift; d != nil {
		out.Drift = DriftOf(d)
	}
	return out
}
