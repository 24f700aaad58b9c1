package client_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Every outcome that a node may answer with is what it is by itself and over a stream: the
// lease, or a refusal with all that the node says of it.
func TestEveryOutcome(t *testing.T) {
	const whole = `{"outcome": %q, "reason": "why", "retryAfter": "7s", "decisionId": "d", "decision": {"matchedRule": "m"}, "counters": {"calls": 3},
		"approval": {"id": "A", "state": "APPROVAL_STATE_DENIED"}, "signal": {"signal": "KILL"}, "grants": [{"pool": "p", "token": "3", "ttl": "3600s"}]}`
	call := client.Call{ID: "C", Tool: "T", TTL: time.Hour, Wait: client.NoWait}
	slot := []client.SlotOption{client.SlotID("X"), client.TTL(time.Hour), client.Wait(client.NoWait)}
	for _, op := range []struct {
		method string
		answer string
		well   []client.Outcome
		do     func(context.Context, *client.Client) error
		says   client.Refused // beside the outcome and the reason
	}{
		{"BeginCall", whole, []client.Outcome{client.Admitted}, func(ctx context.Context, c *client.Client) error {
			_, err := ofSecret(c).Begin(ctx, call)
			return err
		}, client.Refused{
			Reason: "why", RetryAfter: 7 * time.Second, DecisionID: "d", MatchedRule: "m", Decision: &client.Decision{MatchedRule: "m"}, Counters: &client.Counters{Calls: 3},
			Approval: &client.Approval{Id: "A", State: client.ApprovalDenied}, Signal: &client.Signal{Signal: "KILL"},
		}},
		{"EndCall", `{"outcome": %q, "reason": "why", "counters": {"calls": 3}}`, []client.Outcome{govnodev1.Outcome_OUTCOME_ENDED, client.AlreadyEnded}, func(ctx context.Context, c *client.Client) error {
			open, err := ofSecret(c).Begin(ctx, call)
			if err != nil {
				return err
			}
			first := open.End(ctx, client.Succeeded)
			require.Equal(t, first, open.End(ctx, client.Succeeded), "again")
			return first
		}, client.Refused{Reason: "why", Counters: &client.Counters{Calls: 3}}},
		{"AcquireSlot", `{"outcome": %q, "reason": "why", "retryAfter": "7s", "token": "9", "ttl": "3600s"}`, []client.Outcome{client.Admitted}, func(ctx context.Context, c *client.Client) error {
			_, err := c.Acquire(ctx, "P", slot...)
			return err
		}, client.Refused{Reason: "why", RetryAfter: 7 * time.Second}},
		{"ReleaseSlot", `{"outcome": %q}`, []client.Outcome{govnodev1.Outcome_OUTCOME_RELEASED, govnodev1.Outcome_OUTCOME_ALREADY_RELEASED}, func(ctx context.Context, c *client.Client) error {
			s, err := c.Acquire(ctx, "P", slot...)
			if err != nil {
				return err
			}
			first := s.Release()
			require.Equal(t, first, s.Release(), "again")
			return first
		}, client.Refused{Reason: "the lease ended before it was given back"}},
		{"TakeRate", `{"outcome": %q, "reason": "why", "retryAfter": "7s"}`, []client.Outcome{client.Admitted}, func(ctx context.Context, c *client.Client) error {
			return c.TakeRate(ctx, client.Take{Rate: "R", ID: "I", Wait: client.NoWait})
		}, client.Refused{Reason: "why", RetryAfter: 7 * time.Second}},
	} {
		for _, streams := range []bool{false, true} {
			if streams && op.method == "TakeRate" {
				continue
			}
			t.Run(op.method+map[bool]string{true: ", over a stream"}[streams], func(t *testing.T) {
				var answered client.Outcome
				ctx, _, c, _ := asked(t, act{method: op.method}, streams, func(int) (string, connect.Code, string) {
					return fmt.Sprintf(op.answer, answered.String()), 0, ""
				})
				for number := range govnodev1.Outcome_name {
					answered = client.Outcome(number)
					if answered == govnodev1.Outcome_OUTCOME_QUEUED && streams {
						continue // says that it waits, and no more
					}
					err := op.do(ctx, c)
					well := false
					for _, w := range op.well {
						well = well || w == answered
					}
					if well {
						require.NoError(t, err, answered)
						continue
					}
					var refused *client.Refused
					require.ErrorAs(t, err, &refused, answered)
					want := op.says
					want.Outcome = answered
					require.Equal(t, protoless(want), protoless(*refused), answered)
					lost := answered == client.LeaseLost || answered == client.LeaseExpired || answered == client.Fenced
					if lost {
						require.ErrorIs(t, err, client.ErrLeaseLost, answered)
					} else {
						require.NotErrorIs(t, err, client.ErrLeaseLost, answered)
					}
					name := strings.ToLower(strings.TrimPrefix(answered.String(), "OUTCOME_"))
					require.Equal(t, "client: refused: "+name+": "+want.Reason, refused.Error())
				}
			})
		}
	}
	require.Equal(t, "client: refused: fenced", (&client.Refused{Outcome: client.Fenced}).Error())
}

// protoless is a refusal as text, since messages are not compared as they are.
func protoless(r client.Refused) string {
	return fmt.Sprint(r.Outcome, r.Reason, r.RetryAfter, r.DecisionID, r.MatchedRule, " ",
		protojson.Format(r.Decision), protojson.Format(r.Counters), protojson.Format(r.Approval), protojson.Format(r.Signal))
}

// What an agent may see of an output is what the node says; where rules look at it and
// none has, nothing.
func TestWhatIsShownOfAnOutput(t *testing.T) {
	for name, test := range map[string]struct {
		begun, ended string
		shown        any
		warnings     []string
	}{
		"nobody looks":          {beginning1(false), `{"outcome": "OUTCOME_ENDED"}`, "out", nil},
		"nobody has looked":     {beginning1(true), `{"outcome": "OUTCOME_ENDED"}`, "[OUTPUT SUPPRESSED] rules look at what this tool returns, and none has judged this", []string{"[OUTPUT SUPPRESSED] rules look at what this tool returns, and none has judged this"}},
		"as it is":              {beginning1(true), `{"outcome": "OUTCOME_ENDED", "review": {"output": "other"}}`, "out", nil},
		"as it is, and warned":  {beginning1(true), `{"outcome": "OUTCOME_ENDED", "review": {"warnings": ["a", "b"]}}`, "out", []string{"a", "b"}},
		"changed":               {beginning1(true), `{"outcome": "OUTCOME_ENDED", "review": {"changed": true, "output": {"k": [1]}, "warnings": ["a", "b"]}}`, map[string]any{"k": []any{1.0}}, []string{"a", "b"}},
		"changed, unexpectedly": {beginning1(false), `{"outcome": "OUTCOME_ENDED", "review": {"changed": true, "output": "less"}}`, "less", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, streams := range []bool{false, true} {
				ctx, o, c, _ := asked(t, act{method: "EndCall"}, streams, func(int) (string, connect.Code, string) { return test.ended, 0, "" })
				answer := o.answer
				o.answer = func(method string) (string, connect.Code, string) {
					if method == "BeginCall" {
						return test.begun, 0, ""
					}
					return answer(method)
				}
				open, err := ofSecret(c).Begin(ctx, client.Call{ID: "C", Tool: "T", TTL: time.Hour, Wait: client.NoWait})
				require.NoError(t, err)
				before, _ := open.Shown("out")
				require.Equal(t, strings.Contains(test.begun, "true"), before != "out", "before it has ended")
				require.NoError(t, open.End(ctx, client.Succeeded, client.Output("out")))
				shown, warnings := open.Shown("out")
				require.Equal(t, test.shown, shown)
				require.Equal(t, test.warnings, warnings)
				sent := o.of("EndCall")[0].body.(*govnodev1.EndCallRequest)
				require.Equal(t, strings.Contains(test.begun, "true"), sent.GetBegin() != nil, "the call is sent along where the output is looked at")
			}
		})
	}
}

func beginning1(reviews bool) string {
	return fmt.Sprintf(`{"outcome": "OUTCOME_ADMITTED", "reviews": %t, "grants": [{"pool": "p", "token": "3", "ttl": "3600s"}]}`, reviews)
}

// What the client itself objects to is said with its name, and nothing is sent.
func TestWhatIsNotSent(t *testing.T) {
	const bad = "\xff"
	begin := func(call client.Call) func(context.Context, *client.Client) error {
		return func(ctx context.Context, c *client.Client) error {
			_, err := ofSecret(c).Begin(ctx, call)
			return err
		}
	}
	acquire := func(o ...client.SlotOption) func(context.Context, *client.Client) error {
		return func(ctx context.Context, c *client.Client) error {
			_, err := c.Acquire(ctx, "P", o...)
			return err
		}
	}
	create := func(s client.Session) func(context.Context, *client.Client) error {
		return func(ctx context.Context, c *client.Client) error {
			_, err := c.CreateSession(ctx, s)
			return err
		}
	}
	long := strings.Repeat("i", 129)
	for _, test := range []struct {
		says string
		do   func(context.Context, *client.Client) error
	}{
		{"Call: Tool", begin(client.Call{Tool: bad})},
		{"ServerLabel", begin(client.Call{Tool: "t", ServerLabel: bad})},
		{"ArgumentsJSON", begin(client.Call{Tool: "t", ArgumentsJSON: bad})},
		{"ContextJSON", begin(client.Call{Tool: "t", ContextJSON: bad})},
		{"MetadataJSON", begin(client.Call{Tool: "t", MetadataJSON: bad})},
		{"Call.ID: 129 bytes", begin(client.Call{Tool: "t", ID: long})},
		{"Call.ID", begin(client.Call{Tool: "t", ID: "a b"})},
		{"Call.Arguments", begin(client.Call{Tool: "t", Arguments: map[string]any{"a": make(chan int)}})},
		{"Call.Context", begin(client.Call{Tool: "t", Context: map[string]any{"a": make(chan int)}})},
		{"slot id: 129 bytes", acquire(client.SlotID(long))},
		{"Label", acquire(client.Label(bad))},
		{"Session.ID: 129 bytes", create(client.Session{ID: long, Policy: "p"})},
		{"Policy and PolicyDigest", create(client.Session{})},
		{"Policy and PolicyDigest", create(client.Session{Policy: "p", PolicyDigest: "d"})},
		{"Take.ID: 129 bytes", func(ctx context.Context, c *client.Client) error {
			return c.TakeRate(ctx, client.Take{Rate: "r", ID: long})
		}},
		{"Rate.Name", func(ctx context.Context, c *client.Client) error {
			_, err := c.PutRate(ctx, client.Rate{})
			return err
		}},
		{"Spending.Budget", func(ctx context.Context, c *client.Client) error {
			_, err := c.PutBudget(ctx, client.Spending{})
			return err
		}},
		{"Pool.Name", func(ctx context.Context, c *client.Client) error {
			_, err := c.PutPool(ctx, client.Pool{})
			return err
		}},
		{"Question.Arguments", func(ctx context.Context, c *client.Client) error {
			_, err := c.RequestApproval(ctx, client.Question{Arguments: map[string]any{"a": make(chan int)}})
			return err
		}},
		{"Standing.Arguments", func(ctx context.Context, c *client.Client) error {
			_, err := c.PutStanding(ctx, client.Standing{Arguments: map[string]any{"a": make(chan int)}})
			return err
		}},
		{"Target", func(ctx context.Context, c *client.Client) error {
			_, err := c.Signal(ctx, client.Target{Session: "s", Agent: "a"}, client.Stop, "")
			return err
		}},
		{"Target", func(ctx context.Context, c *client.Client) error {
			_, err := c.Signal(ctx, client.Target{Policy: "s", Everything: true}, client.Stop, "")
			return err
		}},
	} {
		for _, streams := range []bool{false, true} {
			ctx, o, c, _ := asked(t, act{}, streams, nil)
			require.ErrorContains(t, test.do(ctx, c), test.says, test.says)
			require.NoError(t, c.Close())
			require.ErrorIs(t, begin(client.Call{Tool: "t"})(ctx, c), client.ErrClosed)
			for _, s := range o.asked {
				require.Equal(t, "Status", s.method, test.says)
			}
		}
	}

	// An end that is wrong is not sent, and the call goes on.
	ctx, o, c, _ := asked(t, act{}, false, nil)
	open, err := ofSecret(c).Begin(ctx, client.Call{Tool: "t", TTL: time.Hour})
	require.NoError(t, err)
	require.ErrorContains(t, open.End(ctx, client.Succeeded, client.Output(make(chan int))), "client: Output")
	require.ErrorContains(t, open.End(ctx, client.Succeeded, client.Spent(client.Cost{Budget: "a", Amount: "1"}, client.Cost{Budget: "b"})), `budget "b"`)
	require.Empty(t, o.of("EndCall"))
	require.Equal(t, client.Held, open.State())
}

// After Close every operation says so, and asks nothing.
func TestEveryOperationEndsWithTheClient(t *testing.T) {
	for _, a := range acts() {
		ctx, o, c, _ := asked(t, a, false, nil)
		require.NoError(t, c.Close())
		got, err := a.do(ctx, c)
		require.ErrorIs(t, err, client.ErrClosed, a.name)
		nothing(t, a, got)
		require.Empty(t, o.of(a.method), a.name)
	}
}
