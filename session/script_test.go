package session_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata print")

// TestScripts plays testdata/*.txt. A line that begins with ">" is a command,
// the lines below it are what it answers; all else is prose. Time stands still
// but for at=.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := play(t, string(text))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			require.Equal(t, string(text), got, "run with -rewrite, and read what changed")
		})
	}
}

func play(t *testing.T, text string) string {
	var out strings.Builder
	s := &script{t: t, state: session.New()}
	skip := false
	for _, line := range strings.SplitAfter(text, "\n") {
		switch {
		case strings.HasPrefix(line, ">"):
			out.WriteString(line)
			out.WriteString(s.run(strings.Fields(line[1:])))
			skip = true
		case skip && strings.TrimSpace(line) != "":
			// The answer as it was; the one above replaces it.
		default:
			skip = false
			out.WriteString(line)
		}
	}
	return out.String()
}

type script struct {
	t     *testing.T
	state *session.State
	now   time.Duration
	args  map[string]string
}

func (s *script) run(words []string) string {
	s.args = map[string]string{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		s.args[k] = v
	}
	if at := s.args["at"]; at != "" {
		s.now = s.dur("at")
	}
	switch words[0] {
	case "show":
		return s.show(words[1])
	case "snapshot":
		s.state = reopen(s.t, s.state)
		return ""
	}
	c := s.command(words[0])
	require.NoError(s.t, session.Validate(c), "%v", words)
	r := s.state.ApplyAll(s.now, []session.Command{c})[0]
	return answer(r) + "\n"
}

func (s *script) str(k, or string) string {
	if v, ok := s.args[k]; ok {
		return v
	}
	return or
}

func (s *script) num(k string, or int64) int64 {
	if v, ok := s.args[k]; ok {
		n, err := strconv.ParseInt(v, 10, 64)
		require.NoError(s.t, err, k)
		return n
	}
	return or
}

func (s *script) dur(k string) time.Duration {
	if v, ok := s.args[k]; ok {
		d, err := time.ParseDuration(v)
		require.NoError(s.t, err, k)
		return d
	}
	return 0
}

// pools reads pools=gpu:2,disk.
func (s *script) pools() (wants []session.Want, names []string) {
	policy := "policy/" + s.str("policy", "p")
	wants, names = []session.Want{{Pool: policy, Weight: 1}}, []string{policy}
	for _, p := range strings.FieldsFunc(s.args["pools"], func(r rune) bool { return r == ',' }) {
		name, weight, ok := strings.Cut(p, ":")
		w := session.Want{Pool: name, Weight: 1}
		if ok {
			n, _ := strconv.Atoi(weight)
			w.Weight = int32(n)
		}
		wants, names = append(wants, w), append(names, name)
	}
	return wants, names
}

// rates reads rates=r:2,llm:tokens,policy/p/r:1/10/1s, where the last two are the
// limit and the time of a policy's.
func (s *script) rates() (wants []session.RateWant) {
	for _, r := range strings.FieldsFunc(s.args["rates"], func(r rune) bool { return r == ',' }) {
		i := strings.LastIndex(r, ":")
		w := session.RateWant{Pool: session.RatePool(r[:i])}
		of := strings.Split(r[i+1:], "/")
		if w.Tokens = of[0] == "tokens"; w.Tokens {
			w.Cost = int32(max(s.num("tokens", 0), 1))
		} else {
			n, _ := strconv.Atoi(of[0])
			w.Cost = int32(n)
		}
		if len(of) == 3 {
			n, _ := strconv.Atoi(of[1])
			w.Limit = int32(n)
			w.Per, _ = time.ParseDuration(of[2])
		}
		wants = append(wants, w)
	}
	return wants
}

// words splits what is between commas.
func (s *script) words(k string) []string {
	return strings.FieldsFunc(s.args[k], func(r rune) bool { return r == ',' })
}

// bills reads spent=team:3,other:0.
func (s *script) bills() (spent []session.Bill) {
	for _, w := range s.words("spent") {
		name, amount, _ := strings.Cut(w, ":")
		n, _ := strconv.Atoi(amount)
		spent = append(spent, session.Bill{Budget: name, Amount: int64(n)})
	}
	return spent
}

// charges reads budgets=root,team<root:5, amounts in millionths.
func (s *script) charges() (nodes []session.Charge) {
	for _, w := range s.words("budgets") {
		w, amount, _ := strings.Cut(w, ":")
		name, parent, _ := strings.Cut(w, "<")
		n, _ := strconv.Atoi(amount)
		nodes = append(nodes, session.Charge{Budget: name, Parent: parent, Amount: int64(n)})
	}
	return nodes
}

func (s *script) print() session.Fingerprint {
	var f session.Fingerprint
	copy(f[:], s.str("content", "same"))
	return f
}

// version reads the version of a text, or 0.
func (s *script) version(k string) string {
	if v, ok := s.args[k]; ok && v != session.Absent {
		return session.Value{Text: v}.Version()
	}
	return s.args[k]
}

func (s *script) maker() session.Maker {
	return session.Maker{Client: s.str("client", "default"), Request: s.args["id"], Content: s.print()}
}

func digest(name string) (d session.Digest) {
	copy(d[:], name)
	return d
}

func (s *script) command(verb string) session.Command {
	wants, names := s.pools()
	rates := []string{}
	for _, r := range s.rates() {
		rates = append(rates, r.Pool)
	}
	one := s.args["pools"]
	ttl := s.dur("ttl")
	if ttl == 0 {
		ttl = 30 * time.Second
	}
	switch verb {
	case "policy":
		l := session.Limits{
			MaxTokens: s.num("tokens", 4096), MaxToolCalls: uint32(s.num("calls", 10)), MaxAttempts: uint32(s.num("attempts", 500)),
			Timeout: 300 * time.Second, MaxConcurrent: int32(s.num("concurrent", 10)), Backpressure: int32(s.num("threshold", 8)),
			Checkpoint: uint32(s.num("checkpoint", 5)),
		}
		if d := s.dur("timeout"); d > 0 {
			l.Timeout = d
		}
		if rm, ok := s.args["rm"]; ok {
			n, _ := strconv.Atoi(rm)
			l.PerTool = []session.ToolLimit{{Tool: "rm", Max: uint32(n)}}
		}
		for i, kind := range []string{"models", "agents", "handoffs", "sampling"} {
			if _, ok := s.args[kind]; ok {
				l.Kinds = append(l.Kinds, session.KindLimit{Kind: session.Model + session.CallKind(i), Max: uint32(s.num(kind, 0))})
			}
		}
		l.MaxFailures, l.BreakerReset = uint32(s.num("failures", 0)), s.dur("reset")
		return &session.PutPolicy{NS: "ns", By: s.maker(), Name: s.str("name", "p"), Digest: digest(s.str("digest", "p")), Tree: []byte("tree"), Limits: l}
	case "hash": // without a text it is taken back
		return &session.PutHash{NS: "ns", By: s.maker(), Tool: s.str("tool", "t"), Hash: s.args["text"]}
	case "drop-policy":
		return &session.DeletePolicy{NS: "ns", By: s.maker(), Name: s.str("name", "p"), Digest: digest(s.str("digest", "p")), Names: []string{s.str("name", "p")}}
	case "pool":
		return &session.PutPool{NS: "ns", By: s.maker(), Pool: s.args["pool"], Slots: int32(s.num("slots", 1)), Threshold: int32(s.num("threshold", 0)), Queue: int32(s.num("queue", 1024))}
	case "drop-pool":
		return &session.DeletePool{NS: "ns", By: s.maker(), Pool: s.args["pool"], Force: s.args["force"] == "yes"}
	case "open":
		idle := s.dur("idle")
		if idle == 0 {
			idle = 24 * time.Hour
		}
		return &session.Open{NS: "ns", Session: s.args["s"], Content: s.print(), Agent: s.str("agent", "bob"), Policy: s.str("policy", "p"), Digest: digest(s.str("digest", "p")), IdleTTL: idle}
	case "begin":
		c := &session.Begin{NS: "ns", Session: s.args["s"], Call: s.args["call"], Content: s.print(), Tool: s.str("tool", "ls"), Digest: digest(s.str("digest", "p")),
			Verdict: session.Verdict{Allow: s.args["deny"] == "", Rule: uint16(s.num("deny", 0))}, Pools: wants, TTL: ttl, MaxHold: s.dur("hold"), Wait: s.dur("wait"),
			Priority: int32(s.num("priority", 0)), Tokens: s.num("tokens", 0), Rates: s.rates(), Budgets: s.charges()}
		c.CallKind = map[string]session.CallKind{"model": session.Model, "agent": session.Agent, "handoff": session.Handoff, "sampling": session.Sampling}[s.args["kind"]]
		if ask, ok := s.args["ask"]; ok {
			c.Asking, c.Verdict.Allow = s.asking(ask), false
		}
		c.Asked = s.args["asked"] != ""
		if v, ok := s.args["saw-calls"]; ok {
			lo, hi, _ := strings.Cut(v, "-")
			l, _ := strconv.Atoi(lo)
			h, _ := strconv.Atoi(hi)
			c.Seen = []session.Premise{{Fact: session.FactCalls, Lo: int64(l), Hi: int64(h)}}
		}
		c.Hashes = uint64(s.num("hashes", 0))
		return c
	case "end":
		status := map[string]session.Status{"ok": session.Succeeded, "failed": session.Failed, "cancelled": session.Cancelled}[s.str("status", "ok")]
		c := &session.End{NS: "ns", Session: s.args["s"], Call: s.args["call"], Pools: names, Rates: rates, Status: status, Tokens: s.num("tokens", -1), Budgets: s.words("budgets"), Spent: s.bills()}
		if s.args["content"] != "" {
			c.Content = s.print()
		}
		return c
	case "cancel":
		if s.args["client"] != "" {
			return &session.Cancel{NS: "ns", Client: s.args["client"], Call: s.args["slot"], Pools: []string{one}}
		}
		return &session.Cancel{NS: "ns", Session: s.args["s"], Call: s.args["call"], Pools: append(names, rates...), Asked: s.args["asked"] != ""}
	case "close":
		return &session.Close{NS: "ns", Session: s.args["s"], Pools: names, Digest: digest(s.str("digest", "p")), Killed: s.args["killed"] != "", Reason: s.args["killed"], Asked: s.words("asked")}
	case "approve", "deny":
		c := &session.Decide{NS: "ns", By: s.maker(), ID: s.approvalID(), Session: s.args["s"], Call: s.args["call"], Approver: s.args["by"], Approve: verb == "approve"}
		if s.args["saw"] != "" {
			c.Request = digest(s.args["saw"])
		}
		return c
	case "drop-approval":
		return &session.CancelApproval{NS: "ns", By: s.maker(), ID: s.approvalID(), Session: s.args["s"], Call: s.args["call"], Pools: names}
	case "request":
		return &session.Ask{NS: "ns", By: s.maker(), ID: s.args["approval"], Agent: s.str("agent", "bob"), Tool: s.str("tool", "ls"), Request: digest(s.str("request", "r")),
			Required: uint32(s.num("required", 1)), Denials: uint32(s.num("denials", 1)), Timeout: s.dur("timeout"), AllowOnTimeout: s.args["allow"] != ""}
	case "stand":
		return &session.PutStanding{NS: "ns", By: s.maker(), Of: s.standing(), Uses: uint32(s.num("uses", 0)), TTL: s.dur("for")}
	case "drop-standing":
		of := s.standing()
		return &session.DeleteStanding{NS: "ns", By: s.maker(), ID: of.ID()}
	case "stop", "continue", "kill":
		kind := map[string]session.SignalKind{"stop": session.Stop, "continue": session.Continue, "kill": session.Kill}[verb]
		return &session.Signal{NS: "ns", By: s.maker(), Target: s.target(), Signal: kind, Reason: s.args["reason"]}
	case "swept":
		return &session.Swept{NS: "ns", Target: s.target(), Number: uint64(s.num("number", 1))}
	case "acquire":
		return &session.Acquire{NS: "ns", Client: s.str("client", "w"), Slot: s.args["slot"], Content: s.print(), Pool: s.args["pool"], Weight: int32(s.num("weight", 1)),
			TTL: ttl, MaxHold: s.dur("hold"), Wait: s.dur("wait"), Priority: int32(s.num("priority", 0)), Label: s.args["label"]}
	case "release":
		return &session.Release{NS: "ns", Client: s.str("client", "w"), Slot: s.args["slot"], Pool: s.args["pool"], Token: uint64(s.num("token", 0))}
	case "renew":
		if s.args["s"] != "" {
			return &session.Renew{NS: "ns", Session: s.args["s"], ID: s.args["call"], Pools: names, Token: uint64(s.num("token", 0)), TTL: ttl}
		}
		return &session.Renew{NS: "ns", Client: s.str("client", "w"), ID: s.args["slot"], Pools: []string{s.args["pool"]}, Token: uint64(s.num("token", 0)), TTL: ttl}
	case "force":
		return &session.ForceRelease{NS: "ns", By: s.maker(), Session: s.args["s"], Holder: s.str("holder", ""), ID: s.str("call", s.args["slot"]), Pools: append(names, s.str("pool", "none"))}
	case "set":
		v := session.Value{Text: s.args["text"]}
		if n, ok := s.args["n"]; ok {
			m, _ := strconv.ParseInt(n, 10, 64)
			v = session.Value{Number: true, N: m}
		}
		return &session.Set{NS: "ns", By: s.maker(), Key: s.args["key"], Value: v, TTL: s.dur("for"), IfVersion: s.version("if")}
	case "budget":
		return &session.PutBudget{NS: "ns", By: s.maker(), Budget: s.args["b"], Parent: s.args["parent"], Amount: s.num("amount", 100), Per: s.dur("per")}
	case "adjust":
		return &session.AdjustBudget{NS: "ns", By: s.maker(), Budget: s.args["b"], Ancestors: s.words("above"), Amount: s.num("by", 1)}
	case "drop-budget":
		return &session.DeleteBudget{NS: "ns", By: s.maker(), Budget: s.args["b"], Parent: s.args["parent"]}
	case "increment":
		return &session.Increment{NS: "ns", By: s.maker(), Key: s.args["key"], Amount: s.num("by", 1000000)}
	case "delete":
		return &session.Delete{NS: "ns", By: s.maker(), Key: s.args["key"], IfVersion: s.version("if")}
	case "append":
		return &session.Append{NS: "ns", By: s.maker(), Key: s.args["key"], Items: strings.Split(s.args["items"], ","), TTL: s.dur("for"),
			From: s.num("from", s.num("if", 0)), Exact: s.args["if"] != ""}
	case "drop-list":
		return &session.DeleteList{NS: "ns", By: s.maker(), Key: s.args["key"]}
	case "repair":
		return &session.Repair{NS: "ns", By: s.maker(), Client: s.str("of", ""), NewerThan: uint64(s.num("newer-than", 1))}
	case "tick":
		s.state.ApplyAll(s.now, nil)
		keys, _ := s.state.DueKeys(1000)
		return &session.Tick{Keys: keys}
	case "rate":
		return &session.PutRate{NS: "ns", By: s.maker(), Rate: s.args["rate"], Limit: int32(s.num("limit", 1)), Per: s.dur("per"), Queue: int32(s.num("queue", 1024))}
	case "drop-rate":
		return &session.DeleteRate{NS: "ns", By: s.maker(), Rate: s.args["rate"]}
	case "take":
		return &session.TakeRate{NS: "ns", Client: s.str("client", "w"), ID: s.args["id"], Content: s.print(), Rate: s.args["rate"], Cost: int32(s.num("cost", 1)),
			Wait: s.dur("wait"), Priority: int32(s.num("priority", 0))}
	case "restore":
		return &session.Restore{}
	}
	s.t.Fatalf("no command %q", verb)
	return nil
}

// asking reads ask=30s or ask=30s/allow, and required=, denials=, pending=, and what
// is asked about: arguments= and request=.
func (s *script) asking(ask string) *session.Asking {
	timeout, allow, _ := strings.Cut(ask, "/")
	d, err := time.ParseDuration(timeout)
	require.NoError(s.t, err)
	return &session.Asking{
		Agent: s.str("agent", "bob"), Required: uint32(s.num("required", 1)), Denials: uint32(s.num("denials", 1)), Timeout: d,
		AllowOnTimeout: allow == "allow", MaxPending: uint32(s.num("pending", 16)), Request: digest(s.str("request", "r")),
		Arguments: digest(s.str("arguments", "none")), Server: s.args["server"],
	}
}

func (s *script) approvalID() string {
	if id := s.args["approval"]; id != "" {
		return id
	}
	return session.ApprovalID("ns", s.args["s"], s.args["call"])
}

// standing reads s=, agent= or name= (of a policy), tool=, server= and arguments=.
func (s *script) standing() session.StandingOf {
	t := s.target()
	of := session.StandingOf{Scope: t.Scope, Name: t.Name, Tool: s.str("tool", "ls"), Server: s.args["server"]}
	if args, ok := s.args["arguments"]; ok {
		of.Exact, of.Arguments = true, digest(args)
	}
	return of
}

func approved(a *session.ApprovalCount) string {
	out := []string{"pending", "approved", "used", "denied", "expired", "cancelled"}[a.State]
	out += []string{"", ",cancelled", ",too-many", ",other-request"}[a.Why]
	if a.Required > 0 {
		out += fmt.Sprintf(",%d/%d-%d/%d,%v", a.For, a.Required, a.Against, a.Denials, a.Left)
	}
	return out
}

// target is one of s=, agent= and name= (of a policy), else everything.
func (s *script) target() session.Target {
	for scope, arg := range map[session.Scope]string{session.OfSession: "s", session.OfAgent: "agent", session.OfPolicy: "name"} { // order-free: there is one
		if name := s.args[arg]; name != "" {
			return session.Target{Scope: scope, Name: name}
		}
	}
	return session.Target{Scope: session.Everything}
}

func halt(h *session.Halt) string {
	of := []string{"", "everything", "agent:", "policy:", "session:"}[h.Target.Scope] + h.Target.Name
	out := []string{"", "STOP", "", "KILL"}[h.Signal] + "(" + of
	if h.Number > 0 {
		out += fmt.Sprintf("#%d", h.Number)
	}
	if h.Swept {
		out += ",swept"
	}
	if h.Reason != "" {
		out += "," + h.Reason
	}
	return out + ")"
}

// answer prints what a result says.
func answer(r session.Result) string {
	out := r.Code.String()
	add := func(format string, args ...any) { out += " " + fmt.Sprintf(format, args...) }
	if r.Repeat {
		add("(repeat)")
	}
	for _, g := range r.Grants {
		if g.Pool == "" {
			add("ttl=%v", g.TTL)
		} else {
			add("%s#%d(%v)", g.Pool, g.Token, g.TTL)
		}
	}
	if r.Queue.Pool != "" {
		add("%s:%d", r.Queue.Pool, r.Queue.Position)
	}
	if r.Rule != 0 {
		add("rule=%d", r.Rule)
	}
	if r.Limit != 0 {
		add("limit=%d", r.Limit)
	}
	if r.Code == session.BreakerOpen {
		add("retry-after=%v", r.RetryAfter)
	}
	if r.Elapsed != 0 {
		add("elapsed=%v", r.Elapsed)
	}
	if r.Pressure.Pressed() && r.Code == session.Admitted {
		add("pressed %d/%d delay=%v", r.Pressure.InUse, r.Pressure.Limit, r.Pressure.Delay())
	}
	if r.Checkpoint != 0 {
		add("checkpoint-%d", r.Checkpoint)
	}
	if r.Value != 0 {
		add("value=%d", r.Value)
	}
	if r.Version != "" {
		add("version=%s", r.Version)
	}
	if r.NewerThan != 0 {
		add("newer-than=%d", r.NewerThan)
	}
	if r.Code == session.StalePremise {
		add("facts=%v pools=%v", r.Facts, r.Pools)
		if r.Rates != nil {
			add("rates=%v", r.Rates)
		}
	}
	if r.Code == session.RateLimited {
		add("%v retry=%v", r.Pools, r.RetryAfter)
	}
	if len(r.Names) > 0 {
		add("names=%v", r.Names)
	}
	if r.Approval != nil {
		add("approval(%s)", approved(r.Approval))
	}
	if r.After != nil && r.After.Approval != nil {
		add("(%s)", approved(r.After.Approval.Count("", r.After.Now)))
	}
	for _, b := range r.Budgets {
		add("%s=%d/%d", b.Budget, b.Used, b.Amount)
		if b.Crossed > 0 {
			add("reached-%d%%", b.Crossed)
		}
	}
	if r.Signal != nil {
		add("%s", halt(r.Signal))
	}
	for _, l := range r.Lapsed {
		add("lapsed=%s/%s", l.Session, l.Call)
	}
	return out
}

func (s *script) show(what string) string {
	s.state.ApplyAll(s.now, nil)
	kind, name, _ := strings.Cut(what, ":")
	switch kind {
	case "session":
		x, ok := s.state.Get(session.SessionKey("ns", name)).(*session.Session)
		if !ok {
			return "absent\n"
		}
		out := fmt.Sprintf("attempts=%d calls=%d executions=%d failures=%d consecutive=%d tokens=%d reserved=%d", x.Attempts, x.Calls, x.Executions, x.Failures, x.Consecutive, x.Tokens, x.Reserved)
		if x.Phase != session.PhaseOpen {
			out += []string{"", " closed", " expired"}[x.Phase]
		}
		for _, c := range x.Tools {
			out += fmt.Sprintf(" %s=%d", c.Tool.Value(), c.Calls)
			if c.Sampling > 0 {
				out += fmt.Sprintf("+%d", c.Sampling)
			}
		}
		if g := x.Gates; g != nil {
			out += fmt.Sprintf(" models=%d agents=%d handoffs=%d failed-at=%v", g.ModelCalls, g.AgentCalls, g.Handoffs, g.FailedAt)
		}
		for i := range x.Open {
			h := &x.Open[i]
			out += fmt.Sprintf(" open:%s(%v)", h.ID(), h.Deadline-s.now)
			switch {
			case h.Parked():
				out += "asked"
			case h.Waiting():
				out += "waiting"
			}
		}
		return out + "\n"
	case "client":
		x, ok := s.state.Get(session.ClientKey("ns", name)).(*session.Client)
		if !ok {
			return "absent\n"
		}
		out := make([]string, len(x.Open))
		for i := range x.Open {
			out[i] = x.Open[i].ID()
		}
		return "open: " + strings.Join(out, " ") + "\n"
	case "signals":
		x, ok := s.state.Get(session.SignalsKey("ns")).(*session.Signals)
		if !ok {
			return "absent\n"
		}
		var out []string
		for i := range x.Halts {
			out = append(out, halt(&x.Halts[i]))
		}
		return fmt.Sprintf("%s unswept=%d\n", strings.Join(out, " "), len(s.state.Unswept()))
	case "pool":
		p, ok := s.state.Get(session.PoolKey("ns", name)).(*session.Pool)
		if !ok {
			return "absent\n"
		}
		var out []string
		for _, l := range p.Leases {
			if l.Spent() {
				out = append(out, fmt.Sprintf("%dx(%v)", l.Weight, l.Expires-s.now))
				continue
			}
			_, maker, id := session.SplitHolder(l.Holder)
			claim := ""
			if l.Claim {
				claim = "?"
			}
			out = append(out, fmt.Sprintf("%s/%s%s#%d(%v)", maker, id, claim, l.Token, l.Expires-s.now))
		}
		out = append(out, "|")
		for _, q := range p.Queue {
			_, maker, id := session.SplitHolder(q.Holder)
			out = append(out, fmt.Sprintf("%s/%s(%v)", maker, id, q.Lapses()-s.now))
		}
		return strings.Join(out, " ") + "\n"
	case "keys":
		var keys []string
		for k := range s.state.Snapshot().All() {
			keys = append(keys, string(k[:1])+":"+k.Name())
		}
		sort.Strings(keys)
		for i, k := range keys {
			keys[i] = strings.ReplaceAll(k, "\x00", "")
		}
		return strings.Join(keys, " ") + "\n"
	case "budget":
		b, ok := s.state.Get(session.BudgetKey("ns", name)).(*session.Budget)
		if !ok {
			return "absent\n"
		}
		return fmt.Sprintf("%d/%d depth=%d children=%d\n", b.Used, b.Amount, b.Depth, b.Children)
	case "approval":
		id, call, _ := strings.Cut(name, "/")
		if call != "" {
			id = session.ApprovalID("ns", id, call)
		}
		a, ok := s.state.Get(session.ApprovalKey("ns", id)).(*session.Approval)
		if !ok {
			return "absent\n"
		}
		out := approved(a.Count("", s.now))
		for _, v := range a.Votes {
			out += fmt.Sprintf(" %s:%v", v.Approver, v.Approve)
		}
		if a.ByTimeout() {
			out += " by-timeout"
		}
		return out + "\n"
	case "counter":
		x, ok := s.state.Get(session.CounterKey("ns", name)).(*session.Counter)
		if !ok {
			return "absent\n"
		}
		return fmt.Sprintf("%+v\n", x.Value)
	case "list":
		x, ok := s.state.Get(session.ListKey("ns", name)).(*session.List)
		if !ok {
			return "absent\n"
		}
		out := fmt.Sprintf("length=%d bytes=%d (%v)", x.Length, x.Bytes, x.Until-s.now)
		for i := range x.Length {
			if item, ok := s.state.Get(session.ListItemKey("ns", name, i)).(*session.ListItem); ok {
				out += fmt.Sprintf(" %d:%s(%v)", i, item.Text, item.Until-s.now)
			}
		}
		return out + "\n"
	}
	return "show what?\n"
}
