package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// behind is a store whose nearby reads stand still, as on a node that has not
// heard of the latest changes, and into whose work others can step.
type behind struct {
	storage.Store

	mu     sync.Mutex
	seen   map[session.Key]session.Record // nil: up to date
	view   storage.View
	apply  func() // runs once, before the next Apply
	get    func() // runs once, after the next Get
	always *session.Result
	refuse error // why nothing is put in order
}

func (b *behind) freeze(t *testing.T) {
	t.Helper()
	view, err := b.Store.View(t.Context(), "", storage.Latest)
	require.NoError(t, err)
	entries, err := view.Find("", "", 100_000, nil)
	require.NoError(t, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.view, b.seen = view, make(map[session.Key]session.Record)
	for _, e := range entries {
		b.seen[e.Key] = e.Record
	}
}

func (b *behind) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	b.mu.Lock()
	then := b.get
	b.get = nil
	if b.seen != nil && r == storage.Nearby {
		defer b.mu.Unlock()
		return storage.Found{Record: b.seen[k], Now: b.view.Now, Index: b.view.Index}, nil
	}
	b.mu.Unlock()
	found, err := b.Store.Get(ctx, k, r)
	if then != nil {
		then()
	}
	return found, err
}

func (b *behind) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	b.mu.Lock()
	first, always, refuse := b.apply, b.always, b.refuse
	b.apply = nil
	b.mu.Unlock()
	if first != nil {
		first()
	}
	if refuse != nil {
		return slices.Repeat([]storage.Answer{storage.Refused(refuse)}, len(cmds))
	}
	if always != nil {
		answers := make([]storage.Answer, len(cmds))
		for i := range answers {
			answers[i] = storage.Done(*always, 0)
		}
		return answers
	}
	return b.Store.Apply(ctx, cmds...)
}

// apart is a node n, and another one on the same state that can fall behind.
func apart(t *testing.T) (n, late *node, b *behind) {
	n = start(t)
	b = &behind{Store: n.store}
	return n, startOn(t, b), b
}

// What a node that is behind takes for granted is set right by the answer, and
// nothing is counted twice.
func TestANodeThatIsBehind(t *testing.T) {
	withGPU := func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} }
	setup := func(t *testing.T) (n, late *node) {
		n, late, b := apart(t)
		n.putPolicy(policy()...)
		n.putPool("gpu", 1)
		n.session("s")
		b.freeze(t)
		n.begin("s", "c", withGPU) // which late has not seen
		return n, late
	}
	t.Run("EndCall", func(t *testing.T) {
		n, late := setup(t)
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, late.end("s", "c").Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "d", withGPU).Outcome, "both slots are free")
	})
	t.Run("EndCall of what has cost something", func(t *testing.T) {
		n, late, b := apart(t)
		n.putPolicy(policy()...)
		n.putRate("tpm", 1000, time.Hour)
		n.putBudget("money", "", "10")
		n.session("s")
		b.freeze(t)
		n.begin("s", "c", charged("money", "5"), func(r *v1.BeginCallRequest) {
			r.Tokens, r.Rates = 100, []*v1.RateWant{{Rate: "tpm", By: v1.Cost_COST_TOKENS}}
		})
		res, err := late.calls.EndCall(n.ctx(), &v1.EndCallRequest{
			SessionId: "s", CallId: "c", Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(40), Spent: costs("money", "2"),
		})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, res.Outcome)
		require.EqualValues(t, 40, n.rate("tpm").Used)
		require.Equal(t, "2", n.used("money"))
	})
	t.Run("CloseSession", func(t *testing.T) {
		n, late := setup(t)
		res, err := late.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
		require.NoError(t, err)
		require.EqualValues(t, 2, res.Released)
	})
	t.Run("RenewSlots", func(t *testing.T) {
		n, late := setup(t)
		token := n.begin("s", "c", withGPU).Grants[0].Token
		res, err := late.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{SessionId: "s", SlotId: "c", Token: token}}})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_RENEWED, res.Results[0].Outcome)
	})
	t.Run("ForceRelease", func(t *testing.T) {
		n, late := setup(t)
		res, err := late.slots.ForceRelease(n.ctx(), &v1.ForceReleaseRequest{SessionId: "s", SlotId: "c"})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_RELEASED, res.Outcome)
		require.Empty(t, n.getSession("s").OpenCalls)
	})
	t.Run("CancelCall", func(t *testing.T) {
		n, late := setup(t)
		queued, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
			{Op: &v1.Operation_Begin{Begin: beginRequest("s", "w", withGPU, waiting(maxWait))}}}})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_QUEUED, queued.Results[0].GetBegin().GetOutcome())
		res, err := late.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "w"})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, res.Outcome)
	})
	t.Run("a session it has not seen", func(t *testing.T) {
		n, late := setup(t)
		n.session("young")
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("young", "c").Outcome)
	})
	t.Run("a content hash it has not seen", func(t *testing.T) {
		n, late, b := apart(t)
		n.putPolicy(policy()...)
		n.session("s")
		put := func(hash string) {
			_, err := n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: strings.Repeat(hash, 64), RequestId: "put-" + hash})
			require.NoError(t, err)
		}
		brings := func(hash string) func(r *v1.BeginCallRequest) {
			return func(r *v1.BeginCallRequest) {
				r.Tool, r.Metadata = "t", map[string]string{"content_hash": strings.Repeat(hash, 64)}
			}
		}
		b.freeze(t)
		put("1")
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, late.begin("s", "none", func(r *v1.BeginCallRequest) { r.Tool = "t" }).Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("s", "right", brings("1")).Outcome)
		b.freeze(t)
		put("2")
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, late.begin("s", "old", brings("1")).Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("s", "new", brings("2")).Outcome)
		res, err := late.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", Metadata: map[string]string{"content_hash": strings.Repeat("1", 64)}})
		require.NoError(t, err)
		require.False(t, res.Decision.Allowed)
		b.freeze(t)
		_, err = n.policies.DeleteHash(n.ctx(), &v1.DeleteHashRequest{Tool: "t", RequestId: "delete"})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("s", "any", brings("3")).Outcome)
		require.EqualValues(t, 5, n.getSession("s").Attempts, "each counted once")
	})
	t.Run("a policy it has not seen", func(t *testing.T) {
		n, late := setup(t)
		n.putPolicy(policy("allowed_tools: [other]")...)
		n.session("young")
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, late.begin("young", "c").Outcome)
	})
}

// A verdict on counters that have moved is reached again on what they are now,
// with one attempt counted.
func TestAVerdictOnOldCounters(t *testing.T) {
	n, late, b := apart(t)
	n.putPolicy(ruled...)
	n.session("s")
	n.session("t")
	b.freeze(t)
	n.begin("s", "one")
	n.begin("s", "two")
	res := late.begin("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, res.Outcome)
	require.Equal(t, "two are enough", res.Reason)
	require.EqualValues(t, 3, n.getSession("s").Attempts)

	n.begin("t", "three")
	n.session("u")
	b.freeze(t) // three run
	n.end("s", "one")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("u", "c").Outcome, "two run by now")
	require.Equal(t, "three run already", late.begin("u", "d").Reason)
}

// A name that moves between its resolution and the command is resolved again.
func TestANameThatMoves(t *testing.T) {
	n, late, b := apart(t)
	n.putPolicy(policy("# one")...)
	var second string
	b.apply = func() { second = n.putPolicy(policy("# two")...).Digest }
	require.Equal(t, second, late.session("s").PolicyDigest)
	require.Equal(t, second, n.getSession("s").PolicyDigest)

	// A tree that gets another name while it is being deleted by one keeps it.
	third := n.putPolicy(policy("# three")...)
	b.apply = func() {
		_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "alias", Yaml: "name: p\nmax_concurrent: 5\nbackpressure_threshold: 5\nmax_tool_calls: 1000\n# three\n"})
		require.NoError(t, err)
	}
	_, err := late.policies.DeletePolicy(n.ctx(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "p"}, RequestId: "d"})
	require.NoError(t, err)
	_, err = n.policies.GetPolicy(n.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "p")
	got, err := n.policies.GetPolicy(n.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "alias"}})
	require.NoError(t, err)
	require.Equal(t, third.Digest, got.Policy.Digest)
}

// A policy that is there all the time is found, whatever tree its name goes on to while it
// is looked for, and though the tree before it goes.
func TestReadsOfANameThatMoves(t *testing.T) {
	n := start(t)
	b := &movingNames{Store: n.store}
	other := startOn(t, b)
	latest := n.putPolicy(policy("# 0")...).Digest
	trees := 0
	b.move = func() {
		trees++
		was := latest
		latest = n.putPolicy(policy(fmt.Sprint("# ", trees))...).Digest
		_, err := n.policies.DeletePolicy(n.ctx(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Digest{Digest: was}, RequestId: was})
		require.NoError(t, err)
	}
	for what, digest := range map[string]func() (string, error){
		"GetPolicy": func() (string, error) {
			res, err := other.policies.GetPolicy(n.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
			return res.GetPolicy().GetDigest(), err
		},
		"Evaluate": func() (string, error) {
			res, err := other.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("p"), Tool: "t"})
			return res.GetDecision().GetPolicyDigest(), err
		},
		"Scan": func() (string, error) {
			res, err := other.policies.Scan(n.ctx(), &v1.ScanRequest{Policy: byName("p"), Kind: v1.ScanKind_SCAN_KIND_INPUT, Text: "x"})
			return res.GetPolicyDigest(), err
		},
	} {
		b.armed = true
		got, err := digest()
		require.NoError(t, err, what)
		require.Equal(t, latest, got, what)
	}
	was := latest
	b.armed = true
	list, err := other.policies.ListPolicies(n.ctx(), &v1.ListPoliciesRequest{})
	require.NoError(t, err)
	require.Len(t, list.Policies, 1)
	require.Equal(t, []string{"p", was}, []string{list.Policies[0].Name, list.Policies[0].Digest})
	require.NotEqual(t, latest, was)
}

// movingNames is a store in which the name p moves once behind the next read of it, or of all.
type movingNames struct {
	storage.Store
	move  func()
	armed bool
}

func (m *movingNames) moved() {
	if m.armed {
		m.armed = false
		m.move()
	}
}

func (m *movingNames) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if k == session.NameKey("default", "p") {
		defer m.moved()
	}
	return m.Store.Get(ctx, k, r)
}

func (m *movingNames) View(ctx context.Context, ns string, r storage.Read) (storage.View, error) {
	defer m.moved()
	return m.Store.View(ctx, ns, r)
}

// A request whose premises never hold is given up after eight rounds, and says
// that nothing was done.
func TestPremisesThatNeverHold(t *testing.T) {
	n, late, b := apart(t)
	n.putPolicy(policy()...)
	n.session("s")
	b.always = &session.Result{Code: session.StalePremise}
	_, err := late.calls.BeginCall(n.ctx(), beginRequest("s", "c"))
	requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "nothing was done")
	res, err := late.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Begin{Begin: beginRequest("s", "c")}},
		{Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: "s", CallId: "c"}}},
	}})
	require.NoError(t, err)
	for _, r := range res.Results {
		require.Equal(t, "NOT_APPLIED", r.GetError().GetReason())
	}
	errs := map[string]error{}
	_, errs["Append"] = late.counters.Append(n.ctx(), &v1.AppendRequest{Key: "l", Items: []string{"x"}, Ttl: durationpb.New(time.Minute)})
	_, errs["DeletePolicy"] = late.policies.DeletePolicy(n.ctx(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "p"}})
	_, errs["AdjustBudget"] = late.limits.AdjustBudget(n.ctx(), &v1.AdjustBudgetRequest{Budget: "b", By: "1"})
	_, errs["DeleteBudget"] = late.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "b"})
	for name, err := range errs {
		require.Error(t, err, name)
		requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "nothing was done")
	}
}

// Values that are read together stood together: what is written between two
// reads is seen in both or in none.
func TestBatchGetIsAtomic(t *testing.T) {
	n, late, b := apart(t)
	set := func(text string) {
		for _, key := range []string{"a", "b"} {
			_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: key, Value: text})
			require.NoError(t, err)
		}
	}
	set("old")
	var again func()
	again = func() { // whenever it reads
		set("new")
		b.mu.Lock()
		b.get = again
		b.mu.Unlock()
	}
	b.get = func() { set("new") }
	res, err := late.counters.BatchGet(n.ctx(), &v1.BatchGetRequest{Keys: []string{"a", "b"}})
	require.NoError(t, err)
	require.Equal(t, res.Values["a"], res.Values["b"])

	b.mu.Lock()
	b.get = again
	b.mu.Unlock()
	res, err = late.counters.BatchGet(n.ctx(), &v1.BatchGetRequest{Keys: []string{"a", "b"}})
	require.NoError(t, err, "a view of the whole settles it")
	require.Equal(t, map[string]string{"a": "new", "b": "new"}, res.Values)
}

// A session that a node still sees may be gone, for instance with a restore:
// that is what its caller learns.
func TestBeginInASessionThatIsGone(t *testing.T) {
	n, late, b := apart(t)
	n.putPolicy(policy()...)
	n.session("s")
	b.freeze(t)
	b.always = &session.Result{Code: session.NotFound}
	_, err := late.calls.BeginCall(n.ctx(), beginRequest("s", "c"))
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", `sessionId: there is no session "s" any more`)
	require.Equal(t, "sessionId", info(t, err).Metadata["field"])
}

// What a policy's names point to, and how many pin it, is read as recently as the policy:
// a read of one record says nothing of how recently others were seen.
func TestPoliciesAtANodeThatIsBehind(t *testing.T) {
	n, late, b := apart(t)
	n.putPolicy("name: p", "max_tool_calls: 1")
	b.freeze(t)
	n.session("s")
	first, err := late.policies.GetPolicy(late.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
	require.NoError(t, err)
	require.EqualValues(t, 1, first.Policy.Pinned)
	second := n.putPolicy("name: p", "max_tool_calls: 2")
	list, err := late.policies.ListPolicies(late.ctx(), &v1.ListPoliciesRequest{})
	require.NoError(t, err)
	rows := map[string]string{}
	for _, p := range list.Policies {
		rows[p.Digest] = fmt.Sprintf("%s %d pinned %d", p.Name, p.Version, p.Pinned)
	}
	require.Equal(t, map[string]string{first.Policy.Digest: " 0 pinned 1", second.Digest: "p 2 pinned 0"}, rows)
}
