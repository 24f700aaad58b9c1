package alone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/client"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/proto/grpc/health/v1/healthv1connect"
)

const (
	// lasts is for how long a script may go on, and asks how often one step is asked for.
	lasts = 25 * time.Second
	asks  = 8
)

// Prefix is what all names begin with that scripts use.
const Prefix = "alone"

// A Client is who runs scripts, one at a time.
type Client struct {
	name    string
	shipped *client.Client
	another func(client.Config) (*client.Client, error) // of the same nodes, which are reached in the same way
	web     *http.Client
	nodes   []*node
	people  map[string][]govnodev1connect.ApprovalServiceClient // at each node
	known   bool                                                // people are known by what they show, and do not say who they are
	rng     *rand.Rand
	broke   func(text string)
	// Shows is what the client shows of who it is, which may be another the next time; nil
	// where that is nothing.
	Shows func() string
	// Guards are where the nodes find guardrails; nil where they find none.
	Guards *Guards
	// Hasty says that the clocks of nodes may go ahead, so that who waits there may wait
	// less than he said.
	Hasty bool
}

// A node is the API of one.
type node struct {
	url       string
	counters  govnodev1connect.CounterServiceClient
	sessions  govnodev1connect.SessionServiceClient
	calls     govnodev1connect.CallServiceClient
	slots     govnodev1connect.SlotServiceClient
	limits    govnodev1connect.LimitServiceClient
	policies  govnodev1connect.PolicyServiceClient
	approvals govnodev1connect.ApprovalServiceClient
	access    govnodev1connect.AccessServiceClient
	events    govnodev1connect.EventServiceClient
	explains  govnodev1connect.DecisionServiceClient
	health    healthv1connect.HealthClient
}

// New makes a client of the nodes at urls, to which shipped goes as well, and of two people
// who vote, with how each of them reaches the nodes: nil for one who says his name. What an
// answer says and must not is told to broke.
func New(name string, urls []string, own *http.Client, shipped *client.Client, people map[string]*http.Client, rng *rand.Rand, broke func(text string)) *Client {
	another := func(cfg client.Config) (*client.Client, error) {
		cfg.Addresses, cfg.Logger = urls, slog.New(slog.DiscardHandler)
		if cfg.HTTPClient == nil {
			cfg.HTTPClient = own
		}
		return client.New(cfg)
	}
	c := &Client{name: name, shipped: shipped, another: another, web: own, people: map[string][]govnodev1connect.ApprovalServiceClient{}, rng: rng, broke: broke}
	for _, u := range urls {
		c.nodes = append(c.nodes, &node{
			url: u, counters: govnodev1connect.NewCounterServiceClient(own, u), sessions: govnodev1connect.NewSessionServiceClient(own, u),
			calls: govnodev1connect.NewCallServiceClient(own, u), slots: govnodev1connect.NewSlotServiceClient(own, u),
			limits: govnodev1connect.NewLimitServiceClient(own, u), policies: govnodev1connect.NewPolicyServiceClient(own, u),
			approvals: govnodev1connect.NewApprovalServiceClient(own, u), access: govnodev1connect.NewAccessServiceClient(own, u),
			events: govnodev1connect.NewEventServiceClient(own, u), explains: govnodev1connect.NewDecisionServiceClient(own, u),
			health: healthv1connect.NewHealthClient(own, u),
		})
		for who, to := range people {
			if to == nil {
				to = own
			} else {
				c.known = true
			}
			c.people[who] = append(c.people[who], govnodev1connect.NewApprovalServiceClient(to, u))
		}
	}
	return c
}

// Scripts are the names of all there are.
func Scripts() (names []string) {
	for _, s := range scripts {
		names = append(names, s.name)
	}
	return names
}

var scripts = []struct {
	name string
	run  func(*script)
}{
	{"pool", ofRegister(poolRegister)}, {"rate", ofRegister(rateRegister)}, {"budget", ofRegister(budgetRegister)},
	{"policy", ofRegister(policyRegister)}, {"hash", ofRegister(hashRegister)}, {"standing", ofRegister(standingRegister)},
	{"value", ofRegister(valueRegister)}, {"list", list},
	{"slots", slots}, {"take", take}, {"spend", spend},
	{"calls", calls}, {"limits", limits}, {"signals", signals}, {"tree", tree},
	{"votes", votes}, {"ask", ask},
	{"queue", queue}, {"back", back}, {"leave", leave}, {"kinds", kinds}, {"counter", counter}, {"tokens", tokens},
	{"pages", pages}, {"lapsing", lapsing}, {"facts", facts}, {"stages", stages}, {"follow", follow},
	{"secret", secret}, {"reviews", reviews}, {"explained", explained}, {"deadline", deadline}, {"waits", waits},
	{"charged", charged}, {"holds", holds}, {"refusal", refusal}, {"shown", shown},
	{"expires", expires}, {"apart", apart}, {"outputs", outputs}, {"hashed", hashed}, {"stand", stand},
	{"advice", advice}, {"together", together},
	{"ruled", ruled}, {"aged", aged}, {"mixed", mixed}, {"quotas", quotas},
	{"question", question}, {"keeps", keeps}, {"worked", worked}, {"kept", kept}, {"capped", capped}, {"braked", braked}, {"late", late},
	{"drawn", drawn}, {"texts", texts}, {"held-up", heldUp}, {"given-up", givenUp},
	{"folders", folders}, {"overrides", overrides}, {"closes", closes},
	{"reused", reused}, {"reputs", reputs}, {"states", states}, {"shut", shut}, {"shape", shape},
	{"windows", windows}, {"fleet", fleet}, {"periods", periods}, {"deep", deep}, {"line", line}, {"tried", tried}, {"opened", opened}, {"passing", passing}, {"bounds", bounds},
	{"asked", asked}, {"lapsed", lapsed}, {"narrowest", narrowest}, {"halted", halted}, {"everybody", everybody}, {"judged", judged}, {"versions", versions}, {"scanned", scanned}, {"heard", heard}, {"traced", traced},
	{"swept", swept}, {"crowded", crowded}, {"stopped", stopped},
	{"guarded", guarded}, {"chained", chained}, {"unguarded", unguarded}, {"rejudged", rejudged}, {"made", made},
	{"itemized", itemized}, {"withheld", withheld}, {"crossed", crossed}, {"ousted", ousted},
	{"ballots", ballots}, {"sorts", sorts}, {"in-all", inAll}, {"scoped", scoped}, {"granted", granted},
	{"busy", busy}, {"throng", throng}, {"taken", taken}, {"finished", finished}, {"parted", parted},
	{"gates", gates}, {"corners", corners}, {"faulty", faulty}, {"refusals", refusals}, {"marked", marked}, {"outdated", outdated}, {"administered", administered},
	{"risky", risky}, {"unheard-of", unheardOf}, {"retried", retried}, {"worded", worded},
	{"rulesets", rulesets}, {"composed", composed}, {"sandboxed", sandboxed}, {"reviewed", reviewed}, {"backends", backends},
}

// Run runs a script that is drawn, and returns its name and how many steps were answered.
func (c *Client) Run(ctx context.Context) (name string, steps int) {
	drawn := scripts[c.rng.IntN(len(scripts))]
	steps, _ = c.play(ctx, drawn.name, drawn.run)
	return drawn.name, steps
}

// Only runs the script of a name, and tells whether it came to its end.
func (c *Client) Only(ctx context.Context, name string) (steps int, whole bool) {
	i := slices.Index(Scripts(), name)
	return c.play(ctx, name, scripts[i].run)
}

func (c *Client) play(outer context.Context, name string, run func(*script)) (steps int, whole bool) {
	ctx, cancel := context.WithTimeout(outer, lasts)
	defer cancel()
	s := &script{Client: c, shown: c.shows(), ctx: ctx, outer: outer, own: strings.ToLower(Prefix + "-" + c.name + "-" + name + "-" + ulid.Make().String())}
	defer s.Guards.forget(s.own)
	defer func() {
		if steps, whole = s.steps, !s.over; s.over {
			_ = recover() // it was about to look into an answer that nobody has given
		}
	}()
	if run(s); s.behind != nil {
		s.behind()
	}
	return s.steps, !s.over
}

func (c *Client) shows() string {
	if c.Shows == nil {
		return ""
	}
	return c.Shows()
}

// A script is one that is under way.
type script struct {
	*Client
	shown  string // when it began
	ctx    context.Context
	outer  context.Context // for what may last longer
	own    string          // part of all names that it uses
	steps  int             // that were answered
	last   string          // the step that was asked for last
	tries  int             // how often it was sent
	over   bool            // nobody knows how things stand any more, or it is known to be wrong
	single bool            // nothing is asked for again that was answered
	behind func()          // what is asked at the end; nil for nothing
	good   time.Time       // until then it is known how things stand; zero: for ever
}

// id draws the id of a request.
func (s *script) id() string { return ulid.Make().String() }

// told asks nodes, one after another, until one answers. A step that changes something
// names itself by an id, so that it may be asked for again. What is refused has a reason,
// and the zero answer. It is not ok if the script is over.
func told[R any](s *script, step string, ask func(context.Context, *node) (R, error)) (answer R, reason string, ok bool) {
	if s.over {
		return answer, "", false
	}
	s.last = step
	begun := time.Now() // an attempt whose answer was lost may be what was carried out
	for s.tries = 1; s.tries <= asks; s.tries++ {
		at := s.nodes[s.rng.IntN(len(s.nodes))]
		asking, cancel := context.WithTimeout(s.ctx, 3*time.Second)
		res, err := ask(asking, at)
		cancel()
		if err == nil {
			s.steps++
			again(s, res, begun, ask)
			return res, "", !s.over
		}
		if reason := refused(err); reason != "" {
			s.steps++
			return answer, reason, true
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(time.Duration(s.rng.Int64N(int64(300 * time.Millisecond)))):
		}
		if s.ctx.Err() != nil {
			break
		}
	}
	s.over = true
	return answer, "", false
}

// done is told, for what is not refused.
func done[R any](s *script, step string, ask func(context.Context, *node) (R, error)) (answer R, ok bool) {
	answer, reason, ok := told(s, step, ask)
	s.wrong(ok && reason != "", "it was refused: %s", reason)
	return answer, ok && !s.over
}

// refused is the reason of an error that is an answer; empty for one that only says that
// there is none.
func refused(err error) string {
	ce := (*connect.Error)(nil)
	if !errors.As(err, &ce) || !connect.IsWireError(err) {
		return ""
	}
	switch ce.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeUnknown, connect.CodeResourceExhausted,
		connect.CodeUnauthenticated:
		return ""
	}
	if reason := why(err); !slices.Contains([]string{"NOT_APPLIED", "OUTCOME_UNKNOWN", "STALE_ID"}, reason) {
		return reason
	}
	return ""
}

// wrong says what is wrong with the last answer, if it is, and ends the script.
func (s *script) wrong(wrong bool, format string, args ...any) {
	if s.over || !wrong {
		return
	}
	if s.over = true; s.shows() != s.shown {
		return // what it holds is that of who it was
	}
	if !s.good.IsZero() && time.Now().After(s.good) {
		return
	}
	s.broke(fmt.Sprintf("%s, %s (asked %d times, %d steps): %s", s.own, s.last, s.tries, s.steps, fmt.Sprintf(format, args...)))
}

// same holds what was answered to what it has to be.
func same[T comparable](s *script, what string, got, want T) {
	s.wrong(got != want, "%s is %v, want %v", what, got, want)
}

// alike is same for messages.
func (s *script) alike(what string, got, want proto.Message) {
	s.wrong(!proto.Equal(got, want), "%s is {%v}, want {%v}", what, got, want)
}

// absent asks for what must not be there.
func absent[R any](s *script, step string, ask func(context.Context, *node) (R, error)) {
	got, reason, ok := told(s, step, ask)
	s.wrong(ok && reason != "NOT_FOUND", "it is there, or refused as %q: %v", reason, got)
}

// found looks for what a list must have once, or not at all, page by page.
func found[T any](s *script, step string, page func(ctx context.Context, n *node, token string) (items []T, next string, err error), is func(T) bool) (item T, times int) {
	type answer struct {
		items []T
		next  string
	}
	for token := ""; ; {
		a, ok := done(s, step, func(ctx context.Context, n *node) (answer, error) {
			items, next, err := page(ctx, n, token)
			return answer{items, next}, err
		})
		if !ok {
			return item, -1
		}
		for _, i := range a.items {
			if is(i) {
				item, times = i, times+1
			}
		}
		if a.next == "" {
			return item, times
		}
		s.wrong(a.next == token, "the list does not go on")
		token = a.next
	}
}

// person is how one of the two who vote reaches a node.
func (s *script) person(i int) govnodev1connect.ApprovalServiceClient {
	at := s.people[People[i]]
	return at[s.rng.IntN(len(at))]
}

// approver is what a person says of who he is.
func (s *script) approver(i int) string {
	if s.known {
		return "" // it is told by what he shows
	}
	return People[i]
}

// People are who votes.
var People = []string{"amy", "bob"}
