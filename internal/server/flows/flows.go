package flows

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/approval"
	"example.com/govnode/storage"
)

const (
	// room is what a state may hold: behind that nothing more is evidence.
	room = 60 << 10
	// mostOpen is from how many calls on those are looked for that are over.
	mostOpen = 64
	// rounds bounds how often a change is tried that others come before.
	rounds = 64
	// client is who sets states and asks about stages.
	client = input.Nodes
	// longest is behind what no request is on its way any more.
	longest = time.Hour
)

// Kept is for how long a state is kept: less where it was not written by a node or by
// who may say where sessions stand. So the end of a state tells who has written it: see
// read. An agent writes one only where there is no such session. By the time that it
// takes until its end is as late as that of a node's, it is not on its way any more.
func Kept(trusted bool) time.Duration {
	if trusted {
		return engine.WorkflowKept
	}
	return engine.WorkflowKept - longest
}

// A Keeper keeps the states of a node's sessions.
type Keeper struct {
	Store *order.Store
	Now   func() time.Time
	NewID func() string
	// Ask asks people; it is ApprovalService.Request.
	Ask func(context.Context, *v1.ApprovalServiceRequestRequest) (*v1.ApprovalServiceRequestResponse, error)

	mu    sync.Mutex
	newer map[string]uint64 // by namespace: see id
}

// id draws the id of a change. All nodes change states under one name, and one whose clock
// is ahead draws ids of the future: once those are forgotten, others are taken for older
// ones. So what was refused for that is drawn anew, with a time behind what is forgotten.
func (k *Keeper) id(ns string) string {
	id := k.NewID()
	k.mu.Lock()
	defer k.mu.Unlock()
	newer := k.newer[ns]
	switch u, err := ulid.ParseStrict(id); {
	case newer == 0 || err != nil:
	case u.Time() > newer:
		delete(k.newer, ns) // time has come up
	case u.SetTime(newer+1) == nil:
		return u.String()
	}
	return id
}

// stale notes that ids have to be newer.
func (k *Keeper) stale(ns string, than uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.newer == nil {
		k.newer = map[string]uint64{}
	}
	k.newer[ns] = max(k.newer[ns], than)
}

// A Place is a call of a session in its workflow.
type Place struct {
	NS, Session, Call string
	Policy            *engine.Policy
	Seen              *session.Session // as it stood before
}

func (p *Place) flow() *engine.Workflow { return p.Policy.Workflow() }

func (p *Place) key() string { return engine.WorkflowKey(p.Session, p.flow().Name) }

// A Verdict is what a workflow says of a call.
type Verdict struct {
	engine.WorkflowVerdict
	Asked *session.ApprovalCount // pending, with an Ask
}

// letIn reports whether the call runs or stands in a queue by what was judged before, so
// that the log looks at no verdict of it any more.
func (p *Place) letIn() bool {
	h := p.Seen.Find(p.Call)
	return h != nil && h.Asked() == nil
}

// Judge judges a call, and keeps what comes of that. One that was let in is let in again:
// it is repeated. One that was kept out since, by a STOP, by people or because it was not
// ordered, is judged by what holds now. What was written of it stays where it is blocked
// now: it may be let in meanwhile through another node, and if not, it has no end that
// would be told.
func (k *Keeper) Judge(ctx context.Context, p *Place, args value.Value, tool string) (v Verdict, err error) {
	call := engine.WorkflowCallOf(tool, args)
	err = k.change(ctx, p, func(s *engine.WorkflowState, version string) error {
		if r, open := s.Open[p.Call]; open && p.letIn() {
			v = Verdict{WorkflowVerdict: engine.WorkflowVerdict{Stage: r.Stage}}
			return nil
		}
		v, err = k.judge(ctx, p, s, version, call)
		if err != nil {
			return err
		}
		s.Note(v.WorkflowVerdict, call, input.Stamp(k.Now()))
		if v.Action == engine.RuleAllows && v.Stage != "" {
			p.forget(s)
			if s.Open == nil {
				s.Open = map[string]engine.WorkflowRunning{}
			}
			s.Open[p.Call] = engine.WorkflowRunning{Stage: v.Stage, Tool: call.Tool, Command: clip(call.Command), File: clip(call.File)}
		}
		if len(s.Encode()) > session.MaxText {
			return fault.New(connect.CodeFailedPrecondition, fault.ReasonInvalidField,
				fmt.Sprintf("sessionId %q: its state in the workflow %s is full; take it back to a stage with govnode edictum workflow reset", p.Session, p.flow().Name))
		}
		return nil
	})
	return v, err
}

// clip leaves a text out that would be no evidence.
func clip(text string) string {
	if len(text) > 4*4096 { // characters
		return ""
	}
	return text
}

// forget takes calls out of the state that are over and whose end nobody has told.
func (p *Place) forget(s *engine.WorkflowState) {
	if len(s.Open) < mostOpen {
		return
	}
	for id := range s.Open {
		m := p.Seen.IDs.Find(id)
		untold := m != nil && session.Code(m.Code()) == session.Ended // its end may be on its way here
		if p.Seen.Find(id) == nil && !untold {
			delete(s.Open, id)
		}
	}
}

// judge judges a call, as often as people have approved a stage on its way.
func (k *Keeper) judge(ctx context.Context, p *Place, s *engine.WorkflowState, version string, call *engine.WorkflowCall) (v Verdict, err error) {
	for {
		if v.WorkflowVerdict, err = p.flow().Judge(s, call); err != nil {
			return v, unreadable(p, err)
		}
		if v.Action != engine.RuleAsks {
			return v, nil
		}
		a, count, err := k.approval(ctx, p, s.Asked[v.Stage])
		if err != nil {
			return v, err
		}
		switch {
		case a == nil: // nobody was asked, or it is so long ago that it was dropped
			return k.ask(ctx, p, s, version, v)
		case a.State() == approval.Pending:
			v.Asked = count
			return v, nil
		case a.State() == approval.Approved, a.State() == approval.Used:
			s.Approve(v.Stage)
			continue
		}
		delete(s.Asked, v.Stage) // whoever comes next may ask again
		reason := map[approval.State]string{approval.Denied: "Approval denied", approval.Expired: "Approval expired", approval.Cancelled: "The approval was cancelled"}[a.State()]
		if count.Reason != "" {
			reason += ": " + count.Reason
		}
		v.Action, v.Reason = engine.RuleBlocks, reason
		return v, nil
	}
}

// approval finds an approval; nil if there is none.
func (k *Keeper) approval(ctx context.Context, p *Place, id string) (*session.Approval, *session.ApprovalCount, error) {
	if id == "" {
		return nil, nil, nil
	}
	found, err := k.Store.Get(ctx, session.ApprovalKey(p.NS, id), storage.Latest)
	if err != nil {
		return nil, nil, fault.OfRead(err)
	}
	a, ok := found.Record.(*session.Approval)
	if !ok || a == nil {
		return nil, nil, nil
	}
	return a, a.Count(id, found.Now), nil
}

// ask asks people about a stage, and not about the call that has come to its end. Two
// nodes that do so on the same state ask once. A state may come again, as one that was
// deleted does: what people have decided about it before, or was dropped since, is no
// answer for it, so that they are asked once more.
func (k *Keeper) ask(ctx context.Context, p *Place, s *engine.WorkflowState, version string, v Verdict) (Verdict, error) {
	sum := sha256.Sum256([]byte(p.Session + "\x00" + p.flow().Name + "\x00" + v.Stage + "\x00" + version))
	how := p.Policy.StageApproval()
	req := &v1.ApprovalServiceRequestRequest{
		AgentId: p.Seen.Agent.Value(), SessionId: p.Session, Tool: p.flow().Name + "/" + v.Stage, Message: input.Clip(v.Reason, session.MaxMessage),
		Required: int32(how.Required), Denials: int32(how.Denials), Timeout: durationpb.New(how.Timeout),
		Client: client,
	}
	if how.AllowOnTimeout {
		req.OnTimeout = v1.OnTimeout_ON_TIMEOUT_ALLOW
	}
	for n := range rounds {
		req.RequestId = "stage-" + hex.EncodeToString(sum[:16])
		if n > 0 {
			req.RequestId += "-" + strconv.Itoa(n)
		}
		res, err := k.Ask(ctx, req)
		if err != nil {
			return v, err
		}
		a := res.Approval
		if a == nil || a.State != v1.ApprovalState_APPROVAL_STATE_PENDING {
			continue
		}
		if s.Asked == nil {
			s.Asked = map[string]string{}
		}
		s.Asked[v.Stage] = a.Id
		v.Asked = &session.ApprovalCount{ID: a.Id, State: approval.Pending, Left: a.ExpiresIn.AsDuration(), Required: uint32(how.Required), Denials: uint32(how.Denials)}
		return v, nil
	}
	return v, fault.Stale()
}

// Peek is what Judge would say, and changes nothing.
func (k *Keeper) Peek(ctx context.Context, p *Place, args value.Value, tool string) (engine.WorkflowVerdict, error) {
	s, _, err := k.read(ctx, p)
	if err != nil {
		return engine.WorkflowVerdict{}, err
	}
	for range p.flow().Stages {
		v, err := p.flow().Judge(s, engine.WorkflowCallOf(tool, args))
		if err != nil {
			return v, unreadable(p, err)
		}
		if v.Action != engine.RuleAsks {
			return v, nil
		}
		a, _, err := k.approval(ctx, p, s.Asked[v.Stage])
		if err != nil || a == nil || a.State() != approval.Approved && a.State() != approval.Used {
			return v, err
		}
		s.Approve(v.Stage)
	}
	return engine.WorkflowVerdict{}, nil
}

// Ended takes down how a call ended: one that succeeded is evidence, with what it
// returned where a gate looks at that. Of a call that is not open nothing is kept, so
// that one whose end is told twice counts once.
func (k *Keeper) Ended(ctx context.Context, p *Place, succeeded bool, result value.Value) error {
	return k.change(order.Ending(ctx), p, func(s *engine.WorkflowState, _ string) error {
		r, runs := s.Open[p.Call]
		if !runs {
			return nil
		}
		delete(s.Open, p.Call)
		if !succeeded {
			return nil
		}
		if !p.flow().Looks(r.Tool) {
			result = value.Value{}
		}
		before := s.Clone()
		p.flow().Executed(s, r.Stage, &engine.WorkflowCall{Tool: r.Tool, Command: r.Command, File: r.File}, result, input.Stamp(k.Now()))
		if len(s.Encode()) > room {
			*s = *before
		}
		return nil
	})
}

// Ends reports whether a command takes down that a call has ended, given the record that it
// changes: then fewer calls run.
func Ends(c *session.Set, before session.Record) bool {
	x, _ := before.(*session.Counter)
	return x != nil && c.By.Client == client && engine.WorkflowOpen(c.Value.Text) < engine.WorkflowOpen(x.Value.Text)
}

// change reads a state, changes it and writes it, as often as others come before.
func (k *Keeper) change(ctx context.Context, p *Place, do func(s *engine.WorkflowState, version string) error) error {
	for range rounds {
		s, version, err := k.read(ctx, p)
		if err != nil {
			return err
		}
		before := s.Encode()
		if err := do(s, version); err != nil {
			return err
		}
		after := s.Encode()
		if after == before {
			return nil
		}
		conflict := false
		cmd := &session.Set{
			NS: p.NS, By: session.Maker{Client: client, Request: k.id(p.NS)}, Key: p.key(),
			Value: session.Value{Text: after}, TTL: Kept(true), IfVersion: version,
		}
		_, err = k.Store.Change(ctx, cmd, func(res *session.Result) error {
			if res.Code == session.StaleID {
				k.stale(p.NS, res.NewerThan)
			}
			conflict = res.Code == session.VersionConflict || res.Code == session.StaleID
			return order.RequestFailure(cmd.By)(res)
		})
		if !conflict {
			return err
		}
	}
	return fault.Stale()
}

// read finds a state and its version. One that is not there is a new one, and so is one
// that was written before the session was there, or by who may not say where it stands.
func (k *Keeper) read(ctx context.Context, p *Place) (*engine.WorkflowState, string, error) {
	found, err := k.Store.Get(ctx, session.CounterKey(p.NS, p.key()), storage.Latest)
	if err != nil {
		return nil, "", fault.OfRead(err)
	}
	c, ok := found.Record.(*session.Counter)
	if !ok || c == nil {
		return p.flow().New(p.Session), session.Absent, nil
	}
	if c.Until-Kept(true) < p.Seen.Opened {
		return p.flow().New(p.Session), c.Value.Version(), nil
	}
	s, err := p.flow().Decode(p.Session, c.Value.Text)
	if err != nil {
		return nil, "", unreadable(p, err)
	}
	return s, c.Value.Version(), nil
}

// unreadable is why no call is let in: without a state there is no verdict.
func unreadable(p *Place, err error) error {
	return fault.New(connect.CodeFailedPrecondition, fault.ReasonPolicyUnreadable,
		"sessionId "+strconv.Quote(p.Session)+": "+err.Error()+"; nothing is admitted until the value "+strconv.Quote(p.key())+" is mended or deleted")
}
