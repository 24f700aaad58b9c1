package alone

import (
	"context"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"

	v1 "example.com/govnode/proto/govnode/v1"
)

// outdated has a session forget the oldest of its calls: an id that is as old is refused, and
// the refusal says which are not.
func outdated(s *script) {
	s.single = true // what is forgotten is answered otherwise
	if !s.policy("max_attempts: 2000\nallowed_tools: [one]\n") || !s.session(nil) {
		return
	}
	const denied = v1.Outcome_OUTCOME_DENIED_BY_POLICY
	c := &crowd{script: s} // among all others
	var first, last string // of those of which some are forgotten
	for range 2 {          // more than are remembered
		var ops []*v1.Operation
		for range 700 {
			req := s.call("two")
			ops = append(ops, &v1.Operation{Op: &v1.Operation_Begin{Begin: req}})
		}
		if first == "" {
			first, last = ops[0].GetBegin().CallId, ops[len(ops)-1].GetBegin().CallId
		}
		for _, r := range c.all("begin many", ops) {
			s.wrong(r.GetBegin().GetOutcome() != denied, "one of many is %v", r)
		}
		if s.pause(2 * time.Millisecond); s.over { // the next ones are newer
			return
		}
	}
	// begin begins a call of that time, and tells behind which time it would have to be.
	begin := func(at uint64) (outcome v1.Outcome, newer uint64) {
		req := s.call("two")
		req.CallId = ulid.MustNew(at, ulid.DefaultEntropy()).String()
		res, ok := done(s, "begin what is old", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
			res, err := n.calls.BeginCall(ctx, req)
			if why(err) != "STALE_ID" {
				return res, err
			}
			newer, err = strconv.ParseUint(metadata(err)["newerThan"], 10, 64)
			s.wrong(err != nil, "it does not say which ids are newer: %v", err)
			return nil, nil
		})
		if !ok {
			return 0, 0
		}
		return res.GetOutcome(), newer
	}
	from, to := timeOf(first), timeOf(last)
	outcome, newer := begin(from)
	s.wrong(outcome != 0 || newer < from || newer > to, "it is %v, and ids have to be newer than %d; those that are forgotten are of %d to %d", outcome, newer, from, to)
	for _, x := range []struct {
		at   uint64
		want v1.Outcome
	}{{newer, 0}, {newer + 1, denied}, {from - 1, 0}} {
		if s.over {
			return
		}
		outcome, says := begin(x.at)
		s.wrong(outcome != x.want || x.want == 0 && says != newer, "of %d it is %v, and ids have to be newer than %d; they had to be than %d", x.at, outcome, says, newer)
	}
}

func timeOf(id string) uint64 { return ulid.MustParse(id).Time() }
