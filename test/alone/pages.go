package alone

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// pages makes some things whose names stand behind each other, and reads their list by
// small pages: each is there once, in order, wherever a page ends.
func pages(s *script) {
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("%s-%d", s.own, i))
	}
	// Each lists what stands behind a name, and names what it has found; of others' things
	// as well, unless the list can be of an agent.
	var put func(name string) bool
	var page func(ctx context.Context, n *node, size int32, token string) (found []string, next string, err error)
	start := s.own // all that is listed stands behind it
	switch s.rng.IntN(6) {
	case 0:
		put = func(name string) bool {
			req := &v1.PutPoolRequest{Pool: name, Slots: 1, RequestId: s.id(), Client: s.own}
			_, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, req) })
			return ok
		}
		page = func(ctx context.Context, n *node, size int32, token string) ([]string, string, error) {
			res, err := n.slots.ListPools(ctx, &v1.ListPoolsRequest{PageSize: size, PageToken: token})
			return namesOf(res.GetPools(), (*v1.Pool).GetPool), res.GetNextPageToken(), err
		}
	case 1:
		put = func(name string) bool {
			req := &v1.PutRateRequest{Rate: name, Limit: 1, Per: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
			_, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, req) })
			return ok
		}
		page = func(ctx context.Context, n *node, size int32, token string) ([]string, string, error) {
			res, err := n.limits.ListRates(ctx, &v1.ListRatesRequest{PageSize: size, PageToken: token})
			return namesOf(res.GetRates(), (*v1.Rate).GetRate), res.GetNextPageToken(), err
		}
	case 2:
		put = func(name string) bool {
			req := &v1.PutHashRequest{Tool: name, Hash: fmt.Sprintf("%064x", 7), RequestId: s.id(), Client: s.own}
			_, ok := done(s, "put a hash", func(ctx context.Context, n *node) (*v1.PutHashResponse, error) { return n.policies.PutHash(ctx, req) })
			return ok
		}
		page = func(ctx context.Context, n *node, size int32, token string) ([]string, string, error) {
			res, err := n.policies.ListHashes(ctx, &v1.ListHashesRequest{PageSize: size, PageToken: token})
			return namesOf(res.GetHashes(), (*v1.ToolHash).GetTool), res.GetNextPageToken(), err
		}
	case 3:
		if !s.policy("max_tool_calls: 1\n") {
			return
		}
		start = ""
		put = func(name string) bool {
			req := &v1.CreateSessionRequest{SessionId: name, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, IdleTtl: durationpb.New(time.Hour)}
			_, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
				return n.sessions.CreateSession(ctx, req)
			})
			return ok
		}
		page = func(ctx context.Context, n *node, size int32, token string) ([]string, string, error) {
			res, err := n.sessions.ListSessions(ctx, &v1.ListSessionsRequest{AgentId: s.own, PageSize: size, PageToken: token})
			return namesOf(res.GetSessions(), (*v1.Session).GetSessionId), res.GetNextPageToken(), err
		}
	case 5:
		put = func(name string) bool { return s.putBudget(&v1.PutBudgetRequest{Budget: name, Amount: "1"}) != nil }
		page = func(ctx context.Context, n *node, size int32, token string) ([]string, string, error) {
			res, err := n.limits.ListBudgets(ctx, &v1.ListBudgetsRequest{PageSize: size, PageToken: token})
			return namesOf(res.GetBudgets(), (*v1.Budget).GetBudget), res.GetNextPageToken(), err
		}
	case 4:
		start = ""
		for i := range names {
			names[i] = "" // their ids are drawn
		}
		put = func(string) bool {
			req := &v1.ApprovalServiceRequestRequest{AgentId: s.own, Tool: "tool", Message: "why", Timeout: long, RequestId: s.id(), Client: s.own}
			res, ok := done(s, "request an approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
				return n.approvals.Request(ctx, req)
			})
			names = append(names[1:], res.GetApproval().GetId())
			return ok
		}
		page = func(ctx context.Context, n *node, size int32, token string) ([]string, string, error) {
			res, err := n.approvals.List(ctx, &v1.ApprovalServiceListRequest{AgentId: s.own, PageSize: size, PageToken: token})
			return namesOf(res.GetApprovals(), (*v1.Approval).GetId), res.GetNextPageToken(), err
		}
	}
	for _, name := range slices.Clone(names) {
		if !put(name) {
			return
		}
	}
	slices.Sort(names)
	type answer struct {
		names []string
		next  string
	}
	size, token := 1+s.rng.Int32N(4), start
	var got []string
	for len(got) < len(names) {
		a, ok := done(s, fmt.Sprintf("list %d behind %q", size, token), func(ctx context.Context, n *node) (answer, error) {
			found, next, err := page(ctx, n, size, token)
			return answer{found, next}, err
		})
		if !ok {
			return
		}
		s.wrong(len(a.names) > int(size), "there are %d on a page of %d", len(a.names), size)
		got = append(got, a.names...)
		if a.next == "" {
			break
		}
		token = a.next
	}
	if s.wrong(len(got) < len(names), "the list has %v, want %v", got, names); !s.over {
		s.wrong(!slices.Equal(got[:len(names)], names), "the list has %v, want %v", got, names)
	}
}

func namesOf[T any](all []T, name func(T) string) (names []string) {
	for _, x := range all {
		names = append(names, name(x))
	}
	return names
}

// lapsing appends items that last for a while beside some that last for long, and reads
// on by what each answer says: each item has the index at which it was put, none comes
// twice, and none that lasts is missing.
func lapsing(s *script) {
	var lasts []bool
	filler, times, few, most := "", 4, 3, int32(4)
	if s.rng.IntN(8) == 0 { // so long that an answer is full before it has as many as are asked for
		filler, times, few, most = strings.Repeat(" ", 60_000), 16, 4, 60
	}
	for n := range times {
		ttl := long.AsDuration()
		if n > 0 && s.rng.IntN(few-1) == 0 { // the first lasts, and the list with it
			ttl = time.Duration(1+s.rng.IntN(1000)) * time.Millisecond
		}
		req := &v1.AppendRequest{Key: s.own, Ttl: durationpb.New(ttl), RequestId: s.id(), Client: s.own}
		for range 1 + s.rng.IntN(few) {
			req.Items = append(req.Items, fmt.Sprint(len(lasts))+filler)
			lasts = append(lasts, ttl == long.AsDuration())
		}
		if _, ok := done(s, "append", func(ctx context.Context, n *node) (*v1.AppendResponse, error) { return n.counters.Append(ctx, req) }); !ok {
			return
		}
	}
	select {
	case <-s.ctx.Done():
	case <-time.After(time.Duration(s.rng.Int64N(int64(2 * time.Second)))):
	}
	seen := map[int64]bool{}
	for from, limit := int64(0), 1+s.rng.Int32N(most); from < int64(len(lasts)); {
		res, ok := done(s, fmt.Sprintf("read %d items from %d on", limit, from), func(ctx context.Context, n *node) (*v1.RangeResponse, error) {
			return n.counters.Range(ctx, &v1.RangeRequest{Key: s.own, From: from, Limit: limit})
		})
		if !ok {
			return
		}
		for _, item := range res.Items {
			s.wrong(item.Index < from || item.Index >= res.Next || item.Value != fmt.Sprint(item.Index)+filler || seen[item.Index], "items are %.300v, and %v were read before", res, seen)
			seen[item.Index] = true
		}
		same(s, "the length", res.Length, int64(len(lasts)))
		s.wrong(res.Next <= from && res.Next < res.Length, "it does not go on: %.300v", res)
		if s.over || res.Next >= res.Length {
			break
		}
		from = res.Next
	}
	for i, lasts := range lasts {
		s.wrong(lasts && !seen[int64(i)], "item %d is missing, there are %v", i, seen)
	}
	if filler != "" {
		req := &v1.DeleteListRequest{Key: s.own, RequestId: s.id(), Client: s.own}
		done(s, "delete the list", func(ctx context.Context, n *node) (*v1.DeleteListResponse, error) {
			return n.counters.DeleteList(ctx, req)
		})
	}
}
