package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
)

// How the membership is changed: members are added and removed.

// closeEnough is how many entries a member may be behind when it is given a
// vote: with a vote, the others may have to wait for it.
const closeEnough = 100

// AddNode makes the node of that name, which can be reached at address, a
// member: at first one without a vote and, unless it is to stay so, one with a
// vote once it has caught up, for which AddNode waits. It works on any node,
// and may be asked again. Its error is a *storage.Failure, as that of the other
// changes is.
func (n *Node) AddNode(ctx context.Context, id, address string, nonvoter bool) error {
	return n.change(ctx, func(ctx context.Context, _ *leadership) error {
		return n.addHere(ctx, id, address, nonvoter)
	}, func(ctx context.Context, leader string) error {
		_, err := n.peers.At(leader).AddNode(ctx, &nodev1.AddNodeRequest{Node: id, Address: address, Nonvoter: nonvoter})
		return sent(err)
	})
}

// RemoveNode ends the membership of a node, and succeeds for who is no member.
// Where it leads, another takes over first. It is refused where too few of the
// voters that are left would answer, unless force is set. It works on any node.
func (n *Node) RemoveNode(ctx context.Context, id string, force bool) error {
	return n.change(ctx, func(ctx context.Context, _ *leadership) error {
		return n.removeHere(ctx, id, force)
	}, func(ctx context.Context, leader string) error {
		_, err := n.peers.At(leader).RemoveNode(ctx, &nodev1.RemoveNodeRequest{Node: id, Force: force})
		return sent(err)
	})
}

// change is atLeader for changes of members. They may be made twice, so that
// one whose outcome is unknown is made again; and one that may have been made
// once is never said not to have been.
func (n *Node) change(ctx context.Context, here func(context.Context, *leadership) error, there func(ctx context.Context, leader string) error) error {
	ctx, cancel := n.deadline(ctx)
	defer cancel()
	defer func() {
		select {
		case n.greet <- struct{}{}:
		default:
		}
	}()
	var maybe error
	for pause := (backoff{}); ; {
		err := n.atLeader(ctx, here, there)
		switch {
		case err == nil:
			return nil
		case isUnknown(err):
			maybe = err
		case maybe != nil:
			return unknown(fmt.Errorf("%s; an earlier attempt: %w", bare(err), errors.Unwrap(maybe)))
		default:
			return err
		}
		if _, _, moved := n.leader(); !pause.wait(ctx, moved) {
			return maybe
		}
	}
}

// turn waits until no other change of members is under way. The next one waits
// until end is called. Its error says that nothing was changed.
func (n *Node) turn(ctx context.Context) (end func(), err error) {
	select {
	case n.changing <- struct{}{}:
		return func() { <-n.changing }, nil
	case <-ctx.Done():
		return nil, notApplied(fmt.Errorf("another change of members is under way: %w", ctx.Err()))
	}
}

// A badField is what is wrong with a field of a change of members.
type badField struct {
	name string
	err  error
}

func (e *badField) Error() string { return e.name + ": " + e.err.Error() }

// Field returns the name of the field and what is wrong with it.
func (e *badField) Field() (name, text string) { return e.name, e.err.Error() }

func invalidField(name, format string, args ...any) error {
	return invalid(&badField{name, fmt.Errorf(format, args...)})
}

func (n *Node) member(id string) (raft.Server, bool) {
	for _, s := range n.servers() {
		if string(s.ID) == id {
			return s, true
		}
	}
	return raft.Server{}, false
}

// admit makes whoever asks a member, on the leader. It answers true when the
// caller is what it wants to be; until then it asks again.
func (n *Node) admit(ctx context.Context, r *nodev1.JoinRequest) (done bool, err error) {
	if err := validMember(r.GetNode(), r.GetAddress()); err != nil {
		return false, err
	}
	if r.GetNode() == n.cfg.ID {
		return false, invalid(fmt.Errorf("%s is the name of the leader of this cluster: choose another", n.cfg.ID))
	}
	if id := r.GetSelf(); id != nil && !r.GetEmpty() {
		if why := n.judge(ctx, id); why != "" {
			return false, invalid(errors.New(why))
		}
	}
	end, err := n.turn(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	if err := n.free(r.GetAddress(), r.GetNode()); err != nil { // before anything is changed for its sake
		return false, err
	}
	s, known := n.member(r.GetNode())
	if known && r.GetEmpty() {
		switch {
		case r.GetReplace():
			asking, cancel := context.WithTimeout(ctx, answersWithin)
			alive := n.isThere(asking, &s)
			cancel()
			if alive {
				return false, invalid(fmt.Errorf("%s is alive at %s, and would be replaced: stop it first, or choose another name", s.ID, s.Address))
			}
			// It stays a member meanwhile: whoever asks again, as what becomes of this is not
			// known, is answered as before, also where nobody else is let in. Raft may wait for
			// ten seconds then before it sends to that name again, as it does to any member
			// that was away for long.
			if isVoter(&s) {
				if err := n.config(ctx, n.raft.DemoteVoter(s.ID, n.fsm.memberIndex(), left(ctx))); err != nil {
					return false, err
				}
			}
			// What is known of the one before, and where it was, is nothing of this one.
			n.members.forget(r.GetNode())
			s = raft.Server{Suffrage: raft.Nonvoter}
		case isVoter(&s):
			// It does not remember its votes and entries, and could elect a
			// leader that lacks what was acknowledged.
			return false, invalid(fmt.Errorf("%s is a member of this cluster already, and the data directory of the one that asks is empty: start it under a new name, or remove %s from the cluster first, or start it with Replace if its data is lost for good", s.ID, s.ID))
		case string(s.Address) != r.GetAddress():
			return false, invalid(fmt.Errorf("%s is a member of this cluster already, at %s: choose another name, or start it with Replace", s.ID, s.Address))
		}
	}
	if !known && n.cfg.Invited {
		return false, invalid(fmt.Errorf("%s is no member of this cluster, which takes nobody who was not added first: start it with a join token, or have an operator add it", r.GetNode()))
	}
	n.members.asks(r.GetNode(), r.GetVersion())
	if string(s.Address) != r.GetAddress() {
		if err := n.place(ctx, r.GetNode(), r.GetAddress(), known && isVoter(&s)); err != nil {
			return false, err
		}
		s, _ = n.member(r.GetNode())
	}
	if isVoter(&s) || r.GetNonvoter() {
		return true, n.confirm(ctx)
	}
	if !n.caughtUp(r.GetAppliedIndex()) {
		return false, nil
	}
	return true, n.place(ctx, r.GetNode(), r.GetAddress(), true)
}

// caughtUp reports whether a member that has applied so much may have a vote:
// it has everything up to the latest change of members, which made it one, and
// nearly everything since.
func (n *Node) caughtUp(applied uint64) bool {
	return applied >= n.fsm.memberIndex() && applied+closeEnough >= n.fsm.applied()
}

// place gives a member its address, which is free, with a vote or without. n.changing
// is held.
func (n *Node) place(ctx context.Context, id, address string, vote bool) error {
	add := n.raft.AddNonvoter
	if vote {
		add = n.raft.AddVoter
	}
	// It is sent what is written behind the change, before anybody here hears of that.
	n.members.expect(id, n.servers)
	defer n.members.expect("", n.servers)
	return n.config(ctx, add(raft.ServerID(id), raft.ServerAddress(address), n.fsm.memberIndex(), left(ctx)))
}

// free refuses an address that is that of another member.
func (n *Node) free(address, id string) error {
	for _, s := range n.servers() {
		if string(s.Address) == address && string(s.ID) != id {
			return invalidField("address", "%s is that of another member", address)
		}
	}
	return nil
}

// config waits for a change of members. Its error has the outcome.
func (n *Node) config(ctx context.Context, future raft.Future) error {
	return settled(ctx, future, n.dead)
}

// left returns how long Raft may take to look at a change. It waits for the one
// before it to be committed.
func left(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return min(max(time.Until(at), time.Millisecond), enqueueTimeout)
	}
	return enqueueTimeout
}

func validMember(id, address string) error {
	if !nodeName.MatchString(id) {
		return invalidField("node", "%q is no node name; use 1 to 64 letters, digits, '.', '_' or '-'", id)
	}
	if err := validAddress(address); err != nil {
		return invalidField("address", "%w", err)
	}
	return nil
}

// addHere is AddNode on the leader.
//
// A majority that is barely alive does not speak against it: whoever is given a
// vote has just answered and has nearly everything, so that one more voter that
// is alive comes to the voters that are, and as many of them may fail as before.
func (n *Node) addHere(ctx context.Context, id, address string, nonvoter bool) error {
	if err := validMember(id, address); err != nil {
		return err
	}
	var known, was bool // a member before the first step, and at an earlier one
	for pause := (backoff{}); ; {
		end, err := n.turn(ctx)
		_, placed := n.member(id)
		if err == nil && was && !placed {
			end()
			return invalidField("node", "%s was removed while it was added; ask again if it is to be a member", id) // not added again by this one
		}
		if !was {
			known = placed // now that nobody else changes it
		}
		if err != nil {
			if !placed {
				return err
			}
		} else {
			done, err := n.addStep(ctx, id, address, nonvoter)
			end()
			if done || err != nil {
				return err
			}
			was = true
		}
		if !pause.wait(ctx, n.ctx.Done()) {
			err := fmt.Errorf("%s is a member without a vote and catches up; ask again to give it one: %w", id, ctx.Err())
			if known {
				return notApplied(err)
			}
			return unknown(err)
		}
	}
}

// addStep does what there is to do now. n.changing is held.
func (n *Node) addStep(ctx context.Context, id, address string, nonvoter bool) (done bool, err error) {
	s, known := n.member(id)
	if known && string(s.Address) != address {
		return false, invalidField("node", "%s is a member at %s; it tells its new address itself when it is started with Join", id, s.Address)
	}
	if !known {
		if err := n.free(address, id); err != nil {
			return false, err
		}
		return nonvoter, n.place(ctx, id, address, false)
	}
	if nonvoter || isVoter(&s) {
		return true, n.confirm(ctx)
	}
	asking, cancel := context.WithTimeout(ctx, n.cfg.RPCTimeout)
	defer cancel()
	h, err := n.peers.At(address).Hello(asking, n.hello())
	if err != nil || h.GetNode() != id || !n.caughtUp(h.GetAppliedIndex()) {
		return false, nil // not there yet
	}
	n.members.note(id, n.heard(h))
	return true, n.place(ctx, id, address, true)
}

// removeHere is RemoveNode on the leader.
func (n *Node) removeHere(ctx context.Context, id string, force bool) error {
	end, err := n.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	s, known := n.member(id)
	if !known {
		return n.confirm(ctx)
	}
	if isVoter(&s) {
		if n.voters() == 1 {
			return invalidField("node", "%s is the only voter; a cluster needs one", id)
		}
		if !force {
			if err := leavesMajority(id, n.answering(ctx)); err != nil {
				return err
			}
		}
	}
	if id == n.cfg.ID {
		if err := n.transferHere(ctx, ""); err != nil {
			return err
		}
		return errElsewhere // the new leader does the rest
	}
	err = n.config(ctx, n.raft.RemoveServer(s.ID, n.fsm.memberIndex(), left(ctx)))
	n.members.settle(n.servers)
	return err
}

// confirm returns nil if the members as this node knows them are committed, and
// nobody else had become leader when it was called. It changes nothing.
func (n *Node) confirm(ctx context.Context) error {
	if err := settled(ctx, n.raft.Barrier(left(ctx)), n.dead); err != nil {
		return notApplied(errors.Unwrap(err))
	}
	return nil
}

// leavesMajority refuses to take a voter away where the others that answer would
// be no majority of those that are left: nothing could be changed any more, not
// even the members.
func leavesMajority(id string, answers map[string]bool) error {
	var alive int
	var dead []string
	for voter, answered := range answers {
		switch {
		case !answered:
			dead = append(dead, voter)
		case voter != id:
			alive++
		}
	}
	voters := len(answers) - 1
	if alive > voters/2 {
		return nil
	}
	slices.Sort(dead)
	return invalidField("node", "without %s only %d of %d voters would answer, which is no majority, and the cluster would stop: no answer comes from %s; start what is down again or remove it first, or use force if %[1]s has to go all the same",
		id, alive, voters, strings.Join(dead, ", "))
}

// answering asks every voter whether it is there. It answers for this node.
func (n *Node) answering(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	answers := map[string]bool{}
	for _, s := range n.servers() {
		if !isVoter(&s) {
			continue
		}
		asked.Go(func() {
			alive := string(s.ID) == n.cfg.ID || n.isThere(ctx, &s)
			mu.Lock()
			defer mu.Unlock()
			answers[string(s.ID)] = alive
		})
	}
	asked.Wait()
	return answers
}

// isThere reports whether a member answers at its address and takes part.
func (n *Node) isThere(ctx context.Context, s *raft.Server) bool {
	_, err := n.ask(ctx, s)
	return err == nil
}

// ask returns what a member says of itself that answers at its address and takes part.
func (n *Node) ask(ctx context.Context, s *raft.Server) (*nodev1.HelloResponse, error) {
	h, err := n.peers.At(string(s.Address)).Hello(ctx, n.hello())
	if err == nil && (h.GetNode() != string(s.ID) || h.GetCluster() != n.clusterID() || h.GetTerm() == 0) {
		return nil, fmt.Errorf("node %q is there, which is not that member or takes no part", h.GetNode())
	}
	return h, err
}

func (n *Node) voters() (count int) {
	for _, s := range n.servers() {
		if isVoter(&s) {
			count++
		}
	}
	return count
}
