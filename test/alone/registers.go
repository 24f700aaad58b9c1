package alone

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Things that are put under a name, read, listed and deleted.

// A register is one such thing. Each of these tells how it stands then, as reads show it;
// nil if it is not there.
type register struct {
	put    func(s *script, n int) proto.Message // the n-th one that is put under the name
	get    func(s *script) proto.Message        // nil if it can only be listed
	list   func(s *script) proto.Message
	remove func(s *script)
}

// ofRegister is the life of a thing: it is not there, is put, put again, deleted, and put
// once more.
func ofRegister(of func(s *script) register) func(*script) {
	return func(s *script) {
		r := of(s)
		see := func(want proto.Message) {
			if r.get != nil {
				got := r.get(s)
				s.differs("what is read", got, want)
			}
			got := r.list(s)
			s.differs("what is listed", got, want)
		}
		see(nil)
		for n := 1; n <= 2; n++ {
			see(r.put(s, n))
		}
		r.remove(s)
		see(nil)
		see(r.put(s, 3))
		r.remove(s)
	}
}

// differs holds what is there, or nil, to what has to be.
func (s *script) differs(what string, got, want proto.Message) {
	switch {
	case want == nil:
		s.wrong(got != nil, "%s is there after it was deleted, or before it was put: {%v}", what, got)
	case got == nil:
		s.wrong(true, "%s is not there, want {%v}", what, want)
	default:
		s.alike(what, got, want)
	}
}

// read asks for a thing that may not be there.
func read[R any](s *script, step string, ask func(context.Context, *node) (R, error), of func(R) proto.Message) proto.Message {
	res, reason, ok := told(s, step, ask)
	if s.wrong(ok && reason != "" && reason != "NOT_FOUND", "it was refused: %s", reason); !ok || reason != "" || s.over {
		return nil
	}
	return of(res)
}

// listed is a thing in a list, nil if it is not there.
func listed[T proto.Message](s *script, step string, page func(ctx context.Context, n *node, token string) ([]T, string, error), is func(T) bool) proto.Message {
	item, times := found(s, step, page, is)
	if s.wrong(times > 1, "it is listed %d times", times); times != 1 {
		return nil
	}
	return item
}

// perPage is how much of a list is asked for at once.
func (s *script) perPage() int32 { return 50 + s.rng.Int32N(200) }

func poolRegister(s *script) register {
	return register{
		put: func(s *script, n int) proto.Message {
			queue := int32(7 * n)
			req := &v1.PutPoolRequest{Pool: s.own, Slots: int32(10 + n), BackpressureThreshold: int32(n), QueueLimit: &queue, RequestId: s.id(), Client: s.own}
			res, ok := done(s, "put a pool", func(ctx context.Context, at *node) (*v1.PutPoolResponse, error) { return at.slots.PutPool(ctx, req) })
			if !ok {
				return nil
			}
			s.alike("the pool", res.Pool, &v1.Pool{
				Pool: s.own, Slots: int32(10 + n), BackpressureThreshold: int32(n), QueueLimit: queue, LastToken: res.Pool.GetLastToken(), // above all that were deleted
			})
			return res.Pool
		},
		get: func(s *script) proto.Message {
			return read(s, "get the pool", func(ctx context.Context, at *node) (*v1.GetPoolResponse, error) {
				return at.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
			}, func(r *v1.GetPoolResponse) proto.Message { return r.Pool })
		},
		list: func(s *script) proto.Message {
			return listed(s, "list pools", func(ctx context.Context, at *node, token string) ([]*v1.Pool, string, error) {
				res, err := at.slots.ListPools(ctx, &v1.ListPoolsRequest{PageSize: s.perPage(), PageToken: token})
				return res.GetPools(), res.GetNextPageToken(), err
			}, func(p *v1.Pool) bool { return p.Pool == s.own })
		},
		remove: func(s *script) {
			req := &v1.DeletePoolRequest{Pool: s.own, RequestId: s.id(), Client: s.own}
			done(s, "delete the pool", func(ctx context.Context, at *node) (*v1.DeletePoolResponse, error) {
				return at.slots.DeletePool(ctx, req)
			})
		},
	}
}

func rateRegister(s *script) register {
	return register{
		put: func(s *script, n int) proto.Message {
			queue := int32(9 * n)
			req := &v1.PutRateRequest{
				Rate: s.own, Limit: int32(20 + n), Per: durationpb.New(time.Duration(n) * time.Hour), QueueLimit: &queue, RequestId: s.id(), Client: s.own,
			}
			res, ok := done(s, "put a rate", func(ctx context.Context, at *node) (*v1.PutRateResponse, error) { return at.limits.PutRate(ctx, req) })
			if !ok {
				return nil
			}
			s.alike("the rate", res.Rate, &v1.Rate{Rate: s.own, Limit: int32(20 + n), Per: req.Per, QueueLimit: queue})
			return res.Rate
		},
		get: func(s *script) proto.Message {
			return read(s, "get the rate", func(ctx context.Context, at *node) (*v1.GetRateResponse, error) {
				return at.limits.GetRate(ctx, &v1.GetRateRequest{Rate: s.own})
			}, func(r *v1.GetRateResponse) proto.Message { return r.Rate })
		},
		list: func(s *script) proto.Message {
			return listed(s, "list rates", func(ctx context.Context, at *node, token string) ([]*v1.Rate, string, error) {
				res, err := at.limits.ListRates(ctx, &v1.ListRatesRequest{PageSize: s.perPage(), PageToken: token})
				return res.GetRates(), res.GetNextPageToken(), err
			}, func(r *v1.Rate) bool { return r.Rate == s.own })
		},
		remove: func(s *script) {
			req := &v1.DeleteRateRequest{Rate: s.own, RequestId: s.id(), Client: s.own}
			done(s, "delete the rate", func(ctx context.Context, at *node) (*v1.DeleteRateResponse, error) {
				return at.limits.DeleteRate(ctx, req)
			})
		},
	}
}

// undated is a budget without what is left of its period, which changes by itself.
func undated(b *v1.Budget) *v1.Budget {
	if b = proto.CloneOf(b); b != nil {
		b.PeriodEnds = nil
	}
	return b
}

func budgetRegister(s *script) register {
	per := durationpb.New(time.Duration(1+s.rng.IntN(300)) * 24 * time.Hour)
	return register{
		put: func(s *script, n int) proto.Message {
			amount := fmt.Sprintf("%d.5", 30+n)
			req := &v1.PutBudgetRequest{Budget: s.own, Amount: amount, Per: per, RequestId: s.id(), Client: s.own}
			res, ok := done(s, "put a budget", func(ctx context.Context, at *node) (*v1.PutBudgetResponse, error) {
				return at.limits.PutBudget(ctx, req)
			})
			if !ok {
				return nil
			}
			s.alike("the budget", undated(res.Budget), &v1.Budget{Budget: s.own, Amount: amount, Used: "0", Left: amount, Per: per, Depth: 1})
			return undated(res.Budget)
		},
		get: func(s *script) proto.Message {
			return read(s, "get the budget", func(ctx context.Context, at *node) (*v1.GetBudgetResponse, error) {
				return at.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: s.own})
			}, func(r *v1.GetBudgetResponse) proto.Message { return undated(r.Budget) })
		},
		list: func(s *script) proto.Message {
			b, times := found(s, "list budgets", func(ctx context.Context, at *node, token string) ([]*v1.Budget, string, error) {
				res, err := at.limits.ListBudgets(ctx, &v1.ListBudgetsRequest{PageSize: s.perPage(), PageToken: token})
				return res.GetBudgets(), res.GetNextPageToken(), err
			}, func(b *v1.Budget) bool { return b.Budget == s.own })
			if s.wrong(times > 1, "it is listed %d times", times); times != 1 {
				return nil
			}
			return undated(b)
		},
		remove: func(s *script) {
			req := &v1.DeleteBudgetRequest{Budget: s.own, RequestId: s.id(), Client: s.own}
			done(s, "delete the budget", func(ctx context.Context, at *node) (*v1.DeleteBudgetResponse, error) {
				return at.limits.DeleteBudget(ctx, req)
			})
		},
	}
}

// policyRegister reads what a policy has by its name and by its digest.
func policyRegister(s *script) register {
	unread := func(p *v1.Policy) *v1.Policy { p = proto.CloneOf(p); p.Files = nil; return p }
	text := ""
	return register{
		put: func(s *script, n int) proto.Message {
			text = fmt.Sprintf("name: %s\nmax_tool_calls: %d\n", s.own, 100+n)
			req := &v1.PutPolicyRequest{Yaml: text, RequestId: s.id(), Client: s.own}
			res, ok := done(s, "put a policy", func(ctx context.Context, at *node) (*v1.PutPolicyResponse, error) {
				return at.policies.PutPolicy(ctx, req)
			})
			if !ok {
				return nil
			}
			same(s, "the name", res.Name, s.own)
			got, ok := done(s, "get the policy by its digest", func(ctx context.Context, at *node) (*v1.GetPolicyResponse, error) {
				return at.policies.GetPolicy(ctx, &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Digest{Digest: res.Digest}})
			})
			if !ok {
				return nil
			}
			s.wrong(len(got.Policy.Files) != 1 || got.Policy.Files[0].Content != text, "its files are %v", got.Policy.Files)
			return &v1.Policy{Name: s.own, Version: res.Version, Digest: res.Digest}
		},
		get: func(s *script) proto.Message {
			return read(s, "get the policy", func(ctx context.Context, at *node) (*v1.GetPolicyResponse, error) {
				return at.policies.GetPolicy(ctx, &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: s.own}})
			}, func(r *v1.GetPolicyResponse) proto.Message {
				s.wrong(len(r.Policy.Files) != 1 || r.Policy.Files[0].Content != text, "its files are %v", r.Policy.Files)
				return unread(r.Policy)
			})
		},
		list: func(s *script) proto.Message {
			return listed(s, "list policies", func(ctx context.Context, at *node, token string) ([]*v1.Policy, string, error) {
				res, err := at.policies.ListPolicies(ctx, &v1.ListPoliciesRequest{PageSize: s.perPage(), PageToken: token})
				return res.GetPolicies(), res.GetNextPageToken(), err
			}, func(p *v1.Policy) bool { return p.Name == s.own })
		},
		remove: func(s *script) {
			req := &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: s.own}, RequestId: s.id(), Client: s.own}
			done(s, "delete the policy", func(ctx context.Context, at *node) (*v1.DeletePolicyResponse, error) {
				return at.policies.DeletePolicy(ctx, req)
			})
		},
	}
}

func hashRegister(s *script) register {
	return register{
		put: func(s *script, n int) proto.Message {
			want := &v1.ToolHash{Tool: s.own, Hash: strings.Repeat(fmt.Sprint(n), 64)}
			req := &v1.PutHashRequest{Tool: want.Tool, Hash: "sha256:" + want.Hash, RequestId: s.id(), Client: s.own}
			res, ok := done(s, "put a hash", func(ctx context.Context, at *node) (*v1.PutHashResponse, error) { return at.policies.PutHash(ctx, req) })
			if !ok {
				return nil
			}
			s.alike("the hash", res.Hash, want)
			return want
		},
		list: func(s *script) proto.Message {
			return listed(s, "list hashes", func(ctx context.Context, at *node, token string) ([]*v1.ToolHash, string, error) {
				res, err := at.policies.ListHashes(ctx, &v1.ListHashesRequest{PageSize: s.perPage(), PageToken: token})
				return res.GetHashes(), res.GetNextPageToken(), err
			}, func(h *v1.ToolHash) bool { return h.Tool == s.own })
		},
		remove: func(s *script) {
			req := &v1.DeleteHashRequest{Tool: s.own, RequestId: s.id(), Client: s.own}
			done(s, "delete the hash", func(ctx context.Context, at *node) (*v1.DeleteHashResponse, error) {
				return at.policies.DeleteHash(ctx, req)
			})
		},
	}
}

// standingRegister puts standing approvals for an agent of its own: each has an id, and
// the one before it is taken back.
func standingRegister(s *script) register {
	undated := func(x *v1.Standing) *v1.Standing { x = proto.CloneOf(x); x.ExpiresIn, x.Age = nil, nil; return x }
	id := ""
	r := register{
		list: func(s *script) proto.Message {
			x, times := found(s, "list standing approvals", func(ctx context.Context, _ *node, token string) ([]*v1.Standing, string, error) {
				res, err := s.person(s.rng.IntN(2)).ListStanding(ctx, &v1.ListStandingRequest{
					Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: s.own, PageSize: s.perPage(), PageToken: token,
				})
				return res.GetStandings(), res.GetNextPageToken(), err
			}, func(x *v1.Standing) bool { s.wrong(x.Name != s.own, "it has another agent's: %v", x); return true })
			if s.wrong(times > 1, "there are %d", times); times != 1 {
				return nil
			}
			return undated(x)
		},
		remove: func(s *script) {
			req := &v1.DeleteStandingRequest{Id: id, RequestId: s.id(), Client: s.own}
			to := s.rng.IntN(2)
			done(s, "delete the standing approval", func(ctx context.Context, _ *node) (*v1.DeleteStandingResponse, error) {
				return s.person(to).DeleteStanding(ctx, req)
			})
		},
	}
	r.put = func(s *script, n int) proto.Message {
		if n == 2 {
			r.remove(s)
		}
		req := &v1.PutStandingRequest{
			Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: s.own, Tool: fmt.Sprintf("tool%d", n), ServerLabel: strings.Repeat("l", n-1), Uses: int32(n),
			Expiry: durationpb.New(time.Duration(n) * time.Hour), RequestId: s.id(), Client: s.own,
		}
		if n > 1 {
			req.ArgumentsJson = fmt.Sprintf(`{"n":%d}`, n)
		}
		to := s.rng.IntN(2)
		res, ok := done(s, "put a standing approval", func(ctx context.Context, _ *node) (*v1.PutStandingResponse, error) {
			return s.person(to).PutStanding(ctx, req)
		})
		if !ok {
			return nil
		}
		id = res.Standing.GetId()
		want := &v1.Standing{Id: id, Scope: req.Scope, Name: s.own, Tool: req.Tool, ServerLabel: req.ServerLabel, Uses: int32(n)}
		if n > 1 {
			want.Arguments = &req.ArgumentsJson
		}
		s.alike("the standing approval", undated(res.Standing), want)
		left := res.Standing.ExpiresIn.AsDuration()
		s.wrong(left > req.Expiry.AsDuration() || left < req.Expiry.AsDuration()-time.Minute, "it expires in %v, want %v", left, req.Expiry.AsDuration())
		return undated(res.Standing)
	}
	return r
}

// valueRegister sets under the condition that the value stands as it was left, and tries
// to under another.
func valueRegister(s *script) register {
	version := "0"
	set := func(s *script, value, at string) (*v1.SetResponse, string, bool) {
		req := &v1.SetRequest{Key: s.own, Value: value, IfVersion: at, RequestId: s.id(), Client: s.own}
		return told(s, "set a value", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return n.counters.Set(ctx, req) })
	}
	return register{
		put: func(s *script, n int) proto.Message {
			value := fmt.Sprintf("v%d", n)
			if _, reason, ok := set(s, "never", strings.Repeat(fmt.Sprint(n), 32)); ok {
				same(s, "the reason", reason, "VERSION_CONFLICT")
			}
			res, reason, ok := set(s, value, version)
			if s.wrong(ok && reason != "", "it was refused: %s", reason); !ok || s.over {
				return nil
			}
			version = res.Version
			return &v1.GetResponse{Found: true, Value: value, Version: version}
		},
		get: func(s *script) proto.Message {
			res, ok := done(s, "get the value", func(ctx context.Context, n *node) (*v1.GetResponse, error) {
				return n.counters.Get(ctx, &v1.GetRequest{Key: s.own})
			})
			if !ok {
				return nil
			}
			same(s, "its version", res.Version, version)
			if !res.Found {
				return nil
			}
			return &v1.GetResponse{Found: true, Value: res.Value, Version: res.Version}
		},
		list: func(s *script) proto.Message {
			res, ok := done(s, "get values", func(ctx context.Context, n *node) (*v1.BatchGetResponse, error) {
				return n.counters.BatchGet(ctx, &v1.BatchGetRequest{Keys: []string{s.own + "-none", s.own}})
			})
			value, there := res.GetValues()[s.own]
			if s.wrong(ok && len(res.Values)+len(res.Versions) > 2, "it has more: %v", res); !there {
				return nil
			}
			return &v1.GetResponse{Found: true, Value: value, Version: res.Versions[s.own]}
		},
		remove: func(s *script) {
			req := &v1.DeleteRequest{Key: s.own, IfVersion: version, RequestId: s.id(), Client: s.own}
			res, ok := done(s, "delete the value", func(ctx context.Context, n *node) (*v1.DeleteResponse, error) { return n.counters.Delete(ctx, req) })
			s.wrong(ok && !res.Found, "it was not there")
			version = "0"
		},
	}
}

// list appends to a list, reads parts of it, and deletes it.
func list(s *script) {
	var want []string
	see := func() {
		from := s.rng.Int64N(int64(len(want) + 2))
		limit := 1 + s.rng.Int32N(4)
		res, ok := done(s, fmt.Sprintf("read %d items from %d on", limit, from), func(ctx context.Context, n *node) (*v1.RangeResponse, error) {
			return n.counters.Range(ctx, &v1.RangeRequest{Key: s.own, From: from, Limit: limit})
		})
		if !ok {
			return
		}
		same(s, "its length", res.Length, int64(len(want)))
		first := min(from, int64(len(want)))
		part := want[first:min(first+int64(limit), int64(len(want)))]
		s.wrong(len(res.Items) != len(part), "items are %v, want %v", res.Items, part)
		for i, item := range res.Items {
			s.wrong(i < len(part) && (item.Value != part[i] || item.Index != first+int64(i)), "items are %v, want %v", res.Items, part)
		}
		same(s, "where it goes on", res.Next, first+int64(len(part)))
	}
	put := func(n int) {
		length := int64(len(want))
		req := &v1.AppendRequest{Key: s.own, Ttl: durationpb.New(time.Hour), IfLength: &length, RequestId: s.id(), Client: s.own}
		for range n {
			req.Items = append(req.Items, fmt.Sprintf("%d %s", len(want)+len(req.Items), s.id()))
		}
		res, ok := done(s, "append", func(ctx context.Context, at *node) (*v1.AppendResponse, error) { return at.counters.Append(ctx, req) })
		if want = append(want, req.Items...); ok {
			same(s, "its length", res.Length, int64(len(want)))
		}
	}
	see()
	for range 3 {
		put(1 + s.rng.IntN(3))
		see()
	}
	length := int64(len(want) - 1)
	other := &v1.AppendRequest{Key: s.own, Items: []string{"never"}, Ttl: durationpb.New(time.Hour), IfLength: &length, RequestId: s.id(), Client: s.own}
	if _, reason, ok := told(s, "append to another length", func(ctx context.Context, at *node) (*v1.AppendResponse, error) { return at.counters.Append(ctx, other) }); ok {
		same(s, "the reason", reason, "VERSION_CONFLICT")
	}
	see()
	req := &v1.DeleteListRequest{Key: s.own, RequestId: s.id(), Client: s.own}
	res, ok := done(s, "delete the list", func(ctx context.Context, at *node) (*v1.DeleteListResponse, error) {
		return at.counters.DeleteList(ctx, req)
	})
	s.wrong(ok && !res.Found, "it was not there")
	want = nil
	see()
	put(2)
	see()
}
