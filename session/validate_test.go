package session

import (
	"encoding/base64"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session/approval"

	"example.com/govnode/session/budget"
)

func validCommands() map[string]Command {
	by := Maker{Client: "c", Request: "r", Content: Fingerprint{1}}
	return map[string]Command{
		"Open":         &Open{NS: "default", Session: "s", Agent: "a", Policy: "p", Digest: Digest{1}, IdleTTL: time.Hour, Parent: "s0", Attributes: []Attr{{"a", "1"}, {"b", ""}}, Over: Digest{2}},
		"Begin":        typicalBegin(),
		"End":          typicalEnd(),
		"Cancel":       &Cancel{NS: "default", Session: "s", Call: "c", Pools: []string{"policy/p", "q"}},
		"Close":        &Close{NS: "default", Session: "s", Pools: []string{"q", "policy/p"}, Digest: Digest{1}, Killed: true, Reason: "r"},
		"Acquire":      &Acquire{NS: "default", Client: "c", Slot: "s", Pool: "q", Weight: 1, TTL: time.Minute, Label: "build ä"},
		"Renew":        &Renew{NS: "default", Client: "c", ID: "s", Pools: []string{"q"}, TTL: time.Minute},
		"Release":      &Release{NS: "default", Client: "c", Slot: "s", Pool: "q", Token: 1},
		"ForceRelease": &ForceRelease{NS: "default", By: by, Holder: "c", ID: "s", Pools: []string{"q"}},
		"PutPool":      &PutPool{NS: "default", By: by, Pool: "q", Slots: 1},
		"DeletePool":   &DeletePool{NS: "default", By: by, Pool: "q"},
		"PutPolicy": &PutPolicy{NS: "default", By: by, Name: "p", Digest: Digest{1}, Tree: []byte("x"),
			Limits: Limits{MaxConcurrent: 1, PerTool: []ToolLimit{{"a", 0}, {"b", 1}}, Kinds: []KindLimit{{Model, 0}, {Agent, 1}}}},
		"DeletePolicy":   &DeletePolicy{NS: "default", By: by, Digest: Digest{1}, Names: []string{"p", "q"}},
		"Set":            &Set{NS: "default", By: by, Key: "any key", Value: Value{Text: "two\nlines"}},
		"Delete":         &Delete{Authorized: Authorized{&Authority{Principal: Principal{1, 2}, Epoch: 3, Audited: Digest{4}}}, NS: "default", By: by, Key: "k"},
		"Increment":      &Increment{NS: "default", By: by, Key: "k", Amount: math.MinInt64},
		"Tick":           &Tick{Keys: []Key{"sdefault/x", "ndefault/"}},
		"Restore":        &Restore{},
		"Repair":         &Repair{NS: "default", By: by, Client: "c", NewerThan: 1},
		"PutRate":        &PutRate{NS: "default", By: by, Rate: "r", Limit: 1, Per: time.Second},
		"DeleteRate":     &DeleteRate{NS: "default", By: by, Rate: "r"},
		"TakeRate":       &TakeRate{NS: "default", Client: "c", ID: "t", Rate: "r", Cost: 1},
		"Ask":            &Ask{NS: "default", By: by, ID: "x", Agent: "a", Tool: "t", Required: 1, Denials: 8, Timeout: time.Second},
		"Decide":         &Decide{NS: "default", By: by, ID: "x", Session: "s", Call: "c", Approver: "amy@x", Approve: true, Reason: "two\nlines"},
		"CancelApproval": &CancelApproval{NS: "default", By: by, ID: "x"},
		"PutStanding":    &PutStanding{NS: "default", By: by, Of: StandingOf{Scope: OfAgent, Name: "a", Tool: "t", Exact: true}, TTL: time.Hour},
		"DeleteStanding": &DeleteStanding{NS: "default", By: by, ID: "x"},
		"Signal":         &Signal{NS: "default", By: by, Target: Target{OfAgent, "a"}, Signal: Stop, Reason: "look"},
		"Swept":          &Swept{NS: "default", Target: Target{OfPolicy, "p"}, Number: 1},
		"PutHash":        &PutHash{NS: "default", By: by, Tool: "t"},
		"PutBudget":      &PutBudget{NS: "default", By: by, Budget: "b", Parent: "a", Amount: 1, Per: time.Hour},
		"AdjustBudget":   &AdjustBudget{NS: "default", By: by, Budget: "c", Ancestors: []string{"b", "a"}, Amount: -1},
		"DeleteBudget":   &DeleteBudget{NS: "default", By: by, Budget: "b", Parent: "a"},
		"Append":         &Append{NS: "default", By: by, Key: "any key", Items: []string{"two\nlines", ""}, TTL: time.Hour},
		"DeleteList":     &DeleteList{NS: "default", By: by, Key: "any key"},
		"PutToken":       &PutToken{NS: ClusterNamespace, By: by, Token: Token{ID: "t", Hash: Digest{1}, Roles: 2, Agents: []string{"a*"}, Policies: []string{"p"}, Made: 1, Expires: 2, By: "local:0", Label: "one", Environment: "staging", Node: "n1"}, Before: 1},
		"RevokeToken":    &RevokeToken{NS: "default", By: by, ID: "t"},
		"UseToken":       &UseToken{NS: ClusterNamespace, By: by, ID: "t", Node: "n4", At: 1},
		"Deny":           &Deny{NS: "default", By: by, Denied: DeniedSubject{Subject: "cert:x", Reason: "lost", At: 1}},
		"Allow":          &Allow{NS: "default", By: by, Subject: "cert:x"},
		"KeepKey":        &KeepKey{NS: ClusterNamespace, By: by, Key: Digest{1}},
		"PutQuotas":      &PutQuotas{NS: "default", By: by, Quotas: Quotas{Sessions: 1, Clients: 2, Pools: 3, Policies: 4, Keys: 5, Bytes: 6, Waiters: 7, Followers: 8, Streams: 9, Operations: 10}},
	}
}

func TestValidCommandsPass(t *testing.T) {
	all := validCommands()
	require.Len(t, all, kinds, "each kind of command is tested")
	for name, c := range all {
		require.NoError(t, Validate(c), name)
	}
	require.Error(t, Validate(nil))
}

// Every command says in which namespace it works.
func TestEveryCommandHasANamespace(t *testing.T) {
	for name, c := range validCommands() {
		ns := reflect.ValueOf(c).Elem().FieldByName("NS")
		if !ns.IsValid() {
			require.Empty(t, c.Namespace(), name)
			continue
		}
		for _, bad := range []string{"", "a b", "a/b", text(65)} {
			ns.SetString(bad)
			require.ErrorContains(t, Validate(c), name+".NS", "%q", bad)
		}
	}
}

// rates are rates that a call names.
func rates(n int) []RateWant {
	return times(n, func(i int) RateWant { return RateWant{Pool: fmt.Sprintf("rate/%02d", i), Cost: 1} })
}

func ofPolicy(limit int32, per time.Duration) []RateWant {
	return []RateWant{{Pool: "rate/policy/p/r", Cost: 1, Limit: limit, Per: per}}
}

func text(n int) string { return strings.Repeat("x", n) }

// times makes a list of n different elements in order.
func times[T any](n int, f func(i int) T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = f(i)
	}
	return list
}

// charges are charges of roots.
func charges(n int) []Charge {
	return times(n, func(i int) Charge { return Charge{Budget: numbered(i), Amount: 1} })
}

// below makes each the child of the next.
func below(nodes []Charge) []Charge {
	for i := range len(nodes) - 1 {
		nodes[i].Parent = nodes[i+1].Budget
	}
	return nodes
}

func bill(i int) Bill { return Bill{Budget: numbered(i)} }

func numbered(i int) string { return fmt.Sprintf("x%05d", i) }

// on is a change of a command of one type.
func on[C Command](change func(C)) func(Command) { return func(c Command) { change(c.(C)) } }

// asking is a change of a call that asks.
func asking(change func(*Begin)) func(Command) {
	return on(func(c *Begin) {
		c.Verdict.Allow = false
		c.Asking = &Asking{Agent: "a", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 1}
		change(c)
	})
}

// Each cap at its edges: the fields of a command set as one says pass, those
// as the other says are refused by their name.
func TestCaps(t *testing.T) {
	type edges struct {
		field string
		pass  []func(Command)
		fail  []func(Command)
	}

	wants := func(n int) []Want {
		return append([]Want{{"policy/p", 1}}, times(n-1, func(i int) Want { return Want{numbered(i), 1} })...)
	}
	for _, tt := range []edges{
		{"Begin.NS", []func(Command){
			on(func(c *Begin) { c.NS = text(MaxNamespace) }), on(func(c *Begin) { c.NS = "Az09._-" }),
		}, []func(Command){
			on(func(c *Begin) { c.NS = "" }), on(func(c *Begin) { c.NS = text(MaxNamespace + 1) }),
			on(func(c *Begin) { c.NS = "a/b" }), on(func(c *Begin) { c.NS = "a:b" }),
		}},
		{"Begin.Session", []func(Command){
			on(func(c *Begin) { c.Session = text(MaxID) }), on(func(c *Begin) { c.Session = "Az09._:@/-" }),
		}, []func(Command){
			on(func(c *Begin) { c.Session = "" }), on(func(c *Begin) { c.Session = text(MaxID + 1) }),
			on(func(c *Begin) { c.Session = "a b" }), on(func(c *Begin) { c.Session = "ä" }), on(func(c *Begin) { c.Session = "a\x00" }),
		}},
		{"Begin.Verdict.Allow", nil, []func(Command){asking(func(c *Begin) { c.Verdict.Allow = true })}},
		{"Begin.Asking.Required", []func(Command){asking(func(c *Begin) { c.Asking.Required = 1 }), asking(func(c *Begin) { c.Asking.Required = approval.MaxVotes })}, []func(Command){asking(func(c *Begin) { c.Asking.Required = approval.MaxVotes + 1 }), asking(func(c *Begin) { c.Asking.Required = 0 })}},
		{"Begin.Asking.Denials", []func(Command){asking(func(c *Begin) { c.Asking.Denials = 1 }), asking(func(c *Begin) { c.Asking.Denials = approval.MaxVotes })}, []func(Command){asking(func(c *Begin) { c.Asking.Denials = approval.MaxVotes + 1 }), asking(func(c *Begin) { c.Asking.Denials = 0 })}},
		{"Begin.Asking.Timeout", []func(Command){asking(func(c *Begin) { c.Asking.Timeout = MinApproval }), asking(func(c *Begin) { c.Asking.Timeout = MaxApproval })}, []func(Command){asking(func(c *Begin) { c.Asking.Timeout = MaxApproval + 1 }), asking(func(c *Begin) { c.Asking.Timeout = MinApproval - 1 })}},
		{"Begin.Asking.MaxPending", []func(Command){asking(func(c *Begin) { c.Asking.MaxPending = 1 }), asking(func(c *Begin) { c.Asking.MaxPending = MaxPending })}, []func(Command){asking(func(c *Begin) { c.Asking.MaxPending = MaxPending + 1 }), asking(func(c *Begin) { c.Asking.MaxPending = 0 })}},
		{"Begin.Asking.Agent", []func(Command){asking(func(c *Begin) { c.Asking.Agent = text(MaxID) })}, []func(Command){asking(func(c *Begin) { c.Asking.Agent = text(MaxID + 1) }), asking(func(c *Begin) { c.Asking.Agent = "" })}},
		{"Begin.Asking.Server", []func(Command){asking(func(c *Begin) { c.Asking.Server = text(MaxTool) })}, []func(Command){asking(func(c *Begin) { c.Asking.Server = text(MaxTool + 1) })}},
		{"Begin.Asking.Preview", []func(Command){asking(func(c *Begin) { c.Asking.Preview = text(MaxSealedPreview) })}, []func(Command){asking(func(c *Begin) { c.Asking.Preview = text(MaxSealedPreview + 1) })}},
		{"Begin.Asking.Reason", []func(Command){asking(func(c *Begin) { c.Asking.Reason = text(MaxMessage) })}, []func(Command){asking(func(c *Begin) { c.Asking.Reason = text(MaxMessage + 1) })}},
		{"Ask.Required", []func(Command){on(func(c *Ask) { c.Required = 1 }), on(func(c *Ask) { c.Required = approval.MaxVotes })}, []func(Command){on(func(c *Ask) { c.Required = approval.MaxVotes + 1 }), on(func(c *Ask) { c.Required = 0 })}},
		{"Ask.Denials", []func(Command){on(func(c *Ask) { c.Denials = 1 }), on(func(c *Ask) { c.Denials = approval.MaxVotes })}, []func(Command){on(func(c *Ask) { c.Denials = approval.MaxVotes + 1 }), on(func(c *Ask) { c.Denials = 0 })}},
		{"Ask.Timeout", []func(Command){on(func(c *Ask) { c.Timeout = MinApproval }), on(func(c *Ask) { c.Timeout = MaxApproval })}, []func(Command){on(func(c *Ask) { c.Timeout = MaxApproval + 1 }), on(func(c *Ask) { c.Timeout = MinApproval - 1 })}},
		{"Ask.ID", []func(Command){on(func(c *Ask) { c.ID = text(MaxID) })}, []func(Command){on(func(c *Ask) { c.ID = text(MaxID + 1) }), on(func(c *Ask) { c.ID = "" })}},
		{"Ask.Agent", []func(Command){on(func(c *Ask) { c.Agent = text(MaxID) })}, []func(Command){on(func(c *Ask) { c.Agent = text(MaxID + 1) }), on(func(c *Ask) { c.Agent = "" })}},
		{"Ask.Session", []func(Command){on(func(c *Ask) { c.Session = text(MaxID) })}, []func(Command){on(func(c *Ask) { c.Session = text(MaxID + 1) })}},
		{"Ask.Tool", []func(Command){on(func(c *Ask) { c.Tool = text(MaxTool) })}, []func(Command){on(func(c *Ask) { c.Tool = text(MaxTool + 1) }), on(func(c *Ask) { c.Tool = "" })}},
		{"Ask.Preview", []func(Command){on(func(c *Ask) { c.Preview = text(MaxSealedPreview) })}, []func(Command){on(func(c *Ask) { c.Preview = text(MaxSealedPreview + 1) })}},
		{"Ask.Reason", []func(Command){on(func(c *Ask) { c.Reason = text(MaxMessage) })}, []func(Command){on(func(c *Ask) { c.Reason = text(MaxMessage + 1) })}},
		{"Decide.ID", []func(Command){on(func(c *Decide) { c.ID = text(MaxID) })}, []func(Command){on(func(c *Decide) { c.ID = text(MaxID + 1) }), on(func(c *Decide) { c.ID = "" })}},
		{"Decide.Approver", []func(Command){on(func(c *Decide) { c.Approver = text(MaxID) })}, []func(Command){
			on(func(c *Decide) { c.Approver = "" }), on(func(c *Decide) { c.Approver = text(MaxID + 1) }), on(func(c *Decide) { c.Approver = "Amy" }),
		}},
		{"Decide.Session", []func(Command){on(func(c *Decide) { c.Session, c.Call = "", "" })}, []func(Command){
			on(func(c *Decide) { c.Session = "" }), on(func(c *Decide) { c.Call = "" }),
		}},
		{"CancelApproval.Session", []func(Command){on(func(c *CancelApproval) { c.Session, c.Call = "s", "c" })}, []func(Command){
			on(func(c *CancelApproval) { c.Call = "c" }), on(func(c *CancelApproval) { c.Session = "s" }),
		}},
		{"PutStanding.Of.Scope", []func(Command){on(func(c *PutStanding) { c.Of.Scope = OfAgent }), on(func(c *PutStanding) { c.Of.Scope = OfSession })}, []func(Command){
			on(func(c *PutStanding) { c.Of.Scope = Everything }), on(func(c *PutStanding) { c.Of.Scope = OfSession + 1 }),
		}},
		{"PutStanding.Of.Arguments", []func(Command){on(func(c *PutStanding) { c.Of.Arguments = Digest{1} })}, []func(Command){
			on(func(c *PutStanding) { c.Of.Exact, c.Of.Arguments = false, Digest{1} }),
		}},
		{"Cancel.Asked", []func(Command){on(func(c *Cancel) { c.Asked = true })}, []func(Command){
			on(func(c *Cancel) { c.Session, c.Client, c.Asked = "", "c", true }),
		}},
		{"Begin.Opened", []func(Command){on(func(c *Begin) { c.Opened = MaxDuration })}, []func(Command){
			on(func(c *Begin) { c.Opened = -1 }), on(func(c *Begin) { c.Opened = MaxDuration + 1 }),
		}},
		{"End.Opened", []func(Command){on(func(c *End) { c.Opened = MaxDuration })}, []func(Command){
			on(func(c *End) { c.Opened = -1 }), on(func(c *End) { c.Opened = MaxDuration + 1 }),
		}},
		{"Cancel.Opened", []func(Command){on(func(c *Cancel) { c.Opened = MaxDuration })}, []func(Command){
			on(func(c *Cancel) { c.Opened = MaxDuration + 1 }), on(func(c *Cancel) { c.Session, c.Client, c.Asked, c.Opened = "", "c", false, 1 }),
		}},
		{"Close.Opened", []func(Command){on(func(c *Close) { c.Opened = MaxDuration })}, []func(Command){
			on(func(c *Close) { c.Opened = -1 }), on(func(c *Close) { c.Opened = MaxDuration + 1 }),
		}},
		{"Renew.Opened", []func(Command){on(func(c *Renew) { c.Session, c.Client, c.Opened = "s", "", MaxDuration })}, []func(Command){
			on(func(c *Renew) { c.Session, c.Client, c.Opened = "s", "", MaxDuration+1 }), on(func(c *Renew) { c.Opened = 1 }),
		}},
		{"Close.Asked", []func(Command){on(func(c *Close) { c.Asked = times(MaxOpen, numbered) })}, []func(Command){
			on(func(c *Close) { c.Asked = times(MaxOpen+1, numbered) }),
		}},
		{"Decide.Reason", []func(Command){on(func(c *Decide) { c.Reason = text(MaxMessage) })}, []func(Command){on(func(c *Decide) { c.Reason = text(MaxMessage + 1) })}},
		{"CancelApproval.ID", []func(Command){on(func(c *CancelApproval) { c.ID = text(MaxID) })}, []func(Command){on(func(c *CancelApproval) { c.ID = text(MaxID + 1) }), on(func(c *CancelApproval) { c.ID = "" })}},
		{"DeleteStanding.ID", []func(Command){on(func(c *DeleteStanding) { c.ID = text(MaxID) })}, []func(Command){on(func(c *DeleteStanding) { c.ID = text(MaxID + 1) }), on(func(c *DeleteStanding) { c.ID = "" })}},
		{"PutStanding.Of.Name", []func(Command){on(func(c *PutStanding) { c.Of.Name = text(MaxID) })}, []func(Command){on(func(c *PutStanding) { c.Of.Name = text(MaxID + 1) }), on(func(c *PutStanding) { c.Of.Name = "" })}},
		{"PutStanding.Of.Tool", []func(Command){on(func(c *PutStanding) { c.Of.Tool = text(MaxTool) })}, []func(Command){on(func(c *PutStanding) { c.Of.Tool = text(MaxTool + 1) }), on(func(c *PutStanding) { c.Of.Tool = "" })}},
		{"PutStanding.Of.Server", []func(Command){on(func(c *PutStanding) { c.Of.Server = text(MaxTool) })}, []func(Command){on(func(c *PutStanding) { c.Of.Server = text(MaxTool + 1) })}},
		{"PutStanding.Shown", []func(Command){on(func(c *PutStanding) { c.Shown = text(MaxSealedPreview) })}, []func(Command){on(func(c *PutStanding) { c.Shown = text(MaxSealedPreview + 1) })}},
		{"PutStanding.Uses", []func(Command){on(func(c *PutStanding) { c.Uses = 0 }), on(func(c *PutStanding) { c.Uses = MaxUses })}, []func(Command){on(func(c *PutStanding) { c.Uses = MaxUses + 1 })}},
		{"PutStanding.TTL", []func(Command){on(func(c *PutStanding) { c.TTL = MinApproval }), on(func(c *PutStanding) { c.TTL = MaxStanding })}, []func(Command){on(func(c *PutStanding) { c.TTL = MaxStanding + 1 }), on(func(c *PutStanding) { c.TTL = MinApproval - 1 })}},
		{"Close.Reason", []func(Command){on(func(c *Close) { c.Reason = text(MaxReason) })}, []func(Command){
			on(func(c *Close) { c.Reason = text(MaxReason + 1) }), on(func(c *Close) { c.Reason = "a\nb" }),
		}},
		{"Signal.Reason", []func(Command){on(func(c *Signal) { c.Reason = text(MaxReason) }), on(func(c *Signal) { c.Reason = "" })}, []func(Command){
			on(func(c *Signal) { c.Reason = text(MaxReason + 1) }), on(func(c *Signal) { c.Reason = "a\nb" }), on(func(c *Signal) { c.Reason = "\xff" }),
		}},
		{"Signal.Signal", []func(Command){on(func(c *Signal) { c.Signal = Kill })}, []func(Command){
			on(func(c *Signal) { c.Signal = 0 }), on(func(c *Signal) { c.Signal = Kill + 1 }),
		}},
		{"Signal.Target.Scope", []func(Command){on(func(c *Signal) { c.Target = Target{Scope: Everything} }), on(func(c *Signal) { c.Target.Scope = OfSession })}, []func(Command){
			on(func(c *Signal) { c.Target = Target{} }), on(func(c *Signal) { c.Target.Scope = OfSession + 1 }),
		}},
		{"Signal.Target.Name", []func(Command){on(func(c *Signal) { c.Target.Name = text(MaxID) })}, []func(Command){
			on(func(c *Signal) { c.Target.Name = text(MaxID + 1) }), on(func(c *Signal) { c.Target.Name = "" }),
			on(func(c *Signal) { c.Target.Scope = Everything }),
		}},
		{"Signal.NS", nil, []func(Command){on(func(c *Signal) { c.NS = "" })}},
		{"Swept.NS", nil, []func(Command){on(func(c *Swept) { c.NS = "" })}},
		{"Swept.Target.Name", nil, []func(Command){on(func(c *Swept) { c.Target.Name = "" })}},
		{"End.Session", nil, []func(Command){on(func(c *End) { c.Session = "" })}},
		{"End.Call", nil, []func(Command){on(func(c *End) { c.Call = "a b" })}},
		{"Open.Session", nil, []func(Command){on(func(c *Open) { c.Session = "" })}},
		{"Repair.Client", []func(Command){on(func(c *Repair) { c.Client = "" })}, []func(Command){on(func(c *Repair) { c.Client = "a b" })}},
		{"Repair.NewerThan", nil, []func(Command){on(func(c *Repair) { c.NewerThan = 0 })}},
		{"KeepKey.Key", nil, []func(Command){on(func(c *KeepKey) { c.Key = Digest{} })}},
		{"Deny.By.Client", nil, []func(Command){on(func(c *Deny) { c.By.Client = "" })}},
		{"Deny.By.Request", []func(Command){on(func(c *Deny) { c.By.Request = "" })}, []func(Command){on(func(c *Deny) { c.By.Request = "a b" })}},
		{"Begin.Asking.Rule", []func(Command){asking(func(c *Begin) { c.Asking.Rule = MaxRule })}, []func(Command){asking(func(c *Begin) { c.Asking.Rule = MaxRule + 1 })}},
		{"Decide.Call", nil, []func(Command){on(func(c *Decide) { c.Call = "a b" })}},
		{"AdjustBudget.Budget", nil, []func(Command){on(func(c *AdjustBudget) { c.Budget = "" })}},
		{"DeleteBudget.Parent", []func(Command){on(func(c *DeleteBudget) { c.Parent = "" })}, []func(Command){on(func(c *DeleteBudget) { c.Parent = "a b" })}},
		{"Begin.Budgets[0].Budget", nil, []func(Command){on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Budget = "a b" })}},
		{"End.Spent[0].Budget", nil, []func(Command){on(func(c *End) { c.Spent = []Bill{{"a b", 1}} })}},
		{"Close.Asked[1]", nil, []func(Command){on(func(c *Close) { c.Asked = []string{"x", "x"} }), on(func(c *Close) { c.Asked = []string{"x", ""} })}},
		{"Cancel.Pools", []func(Command){on(func(c *Cancel) { c.Pools = times(MaxPools+1+MaxRates, numbered) })}, []func(Command){on(func(c *Cancel) { c.Pools = times(MaxPools+2+MaxRates, numbered) })}},
		{"Renew.Pools", []func(Command){on(func(c *Renew) { c.Pools = times(MaxPools+1+MaxRates, numbered) })}, []func(Command){on(func(c *Renew) { c.Pools = times(MaxPools+2+MaxRates, numbered) })}},
		{"CancelApproval.Pools", []func(Command){on(func(c *CancelApproval) { c.Pools = times(MaxPools+1+MaxRates, numbered) })}, []func(Command){
			on(func(c *CancelApproval) { c.Pools = times(MaxPools+2+MaxRates, numbered) }),
		}},
		{"Begin.Call", nil, []func(Command){on(func(c *Begin) { c.Call = "" }), on(func(c *Begin) { c.Call = "a b" })}},
		{"Begin.CallKind", []func(Command){on(func(c *Begin) { c.CallKind = Sampling })}, []func(Command){on(func(c *Begin) { c.CallKind = Sampling + 1 })}},
		{"Begin.Tool", []func(Command){
			on(func(c *Begin) { c.Tool = text(MaxTool) }), on(func(c *Begin) { c.Tool = "with blank, ä" }),
			on(func(c *Begin) { c.Tool, c.CallKind = "", Model }), on(func(c *Begin) { c.Tool = "t" }),
		}, []func(Command){
			on(func(c *Begin) { c.Tool = "" }), on(func(c *Begin) { c.Tool, c.CallKind = "", Sampling }), on(func(c *Begin) { c.Tool = text(MaxTool + 1) }),
			on(func(c *Begin) { c.Tool = "a\u200bb" }), on(func(c *Begin) { c.Tool = "\u0430b" }),
			on(func(c *Begin) { c.Tool = "a\nb" }), on(func(c *Begin) { c.Tool = "\xff" }),
		}},
		{"Begin.Digest", nil, []func(Command){on(func(c *Begin) { c.Digest = Digest{} })}},
		{"Begin.Seen", []func(Command){
			on(func(c *Begin) { c.Seen = nil }),
			on(func(c *Begin) {
				c.Seen = times(MaxPremises, func(i int) Premise { return Premise{FactToolCalls, numbered(i), 0, 0} })
			}),
		}, []func(Command){on(func(c *Begin) { c.Seen = times(MaxPremises+1, func(int) Premise { return Premise{Fact: FactCalls} }) })}},
		{"Begin.Seen[0].Fact", []func(Command){on(func(c *Begin) { c.Seen[0].Fact = FactElapsed })}, []func(Command){
			on(func(c *Begin) { c.Seen[0].Fact = 0 }), on(func(c *Begin) { c.Seen[0].Fact = FactElapsed + 1 }),
		}},
		{"Begin.Seen[0].Name", []func(Command){on(func(c *Begin) { c.Seen[0].Fact, c.Seen[0].Name = FactToolCalls, "t" })}, []func(Command){
			on(func(c *Begin) { c.Seen[0].Name = "x" }), on(func(c *Begin) { c.Seen[0].Fact = FactToolCalls }),
		}},
		{"Begin.Seen[0].Lo", []func(Command){on(func(c *Begin) { c.Seen[0].Lo = c.Seen[0].Hi })}, []func(Command){
			on(func(c *Begin) { c.Seen[0].Lo = c.Seen[0].Hi + 1 }),
		}},
		{"Begin.Verdict.Rule", []func(Command){on(func(c *Begin) { c.Verdict.Rule = MaxRule })}, []func(Command){
			on(func(c *Begin) { c.Verdict.Rule = MaxRule + 1 }),
		}},
		{"Begin.Pools", []func(Command){on(func(c *Begin) { c.Pools = wants(1) }), on(func(c *Begin) { c.Pools = wants(MaxPools + 1) })},
			[]func(Command){on(func(c *Begin) { c.Pools = nil }), on(func(c *Begin) { c.Pools = wants(MaxPools + 2) })}},
		{"Begin.Pools[0].Pool", []func(Command){on(func(c *Begin) { c.Pools[0].Pool = "policy/" + text(MaxID) })}, []func(Command){
			on(func(c *Begin) { c.Pools[0].Pool = "p" }), on(func(c *Begin) { c.Pools[0].Pool = "policy/" }),
			on(func(c *Begin) { c.Pools[0].Pool = "policy/" + text(MaxID+1) }), on(func(c *Begin) { c.Pools[0].Pool = "policy/a b" }),
		}},
		{"Begin.Pools[1].Pool", nil, []func(Command){
			on(func(c *Begin) { c.Pools[1].Pool = "policy/q" }), on(func(c *Begin) { c.Pools[1].Pool = "" }),
		}},
		{"Begin.Pools[2].Pool", []func(Command){on(func(c *Begin) { c.Pools = []Want{{"policy/p", 1}, {"a", 1}, {"b", 1}} })}, []func(Command){
			on(func(c *Begin) { c.Pools = []Want{{"policy/p", 1}, {"y", 1}, {"x", 1}} }),
			on(func(c *Begin) { c.Pools = append(c.Pools, c.Pools[1]) }),
			on(func(c *Begin) { c.Pools = append(c.Pools, Want{"a", 1}) }),
		}},
		{"Begin.Pools[1].Weight", []func(Command){on(func(c *Begin) { c.Pools[1].Weight = MaxSlots })}, []func(Command){
			on(func(c *Begin) { c.Pools[1].Weight = 0 }), on(func(c *Begin) { c.Pools[1].Weight = -1 }),
			on(func(c *Begin) { c.Pools[1].Weight = MaxSlots + 1 }),
		}},
		{"Begin.Rates", []func(Command){on(func(c *Begin) { c.Rates = rates(MaxRates) })}, []func(Command){
			on(func(c *Begin) { c.Rates = rates(MaxRates + 1) }),
		}},
		{"Begin.Rates[0].Pool", []func(Command){
			on(func(c *Begin) { c.Rates = []RateWant{{Pool: "rate/" + text(MaxID), Cost: 1}} }),
			on(func(c *Begin) {
				c.Rates = []RateWant{{Pool: RatePool(PolicyRate(text(MaxID), text(MaxRateName), text(MaxID))), Cost: 1, Limit: 1, Per: MinPer}}
			}),
		}, []func(Command){
			on(func(c *Begin) { c.Rates = []RateWant{{Pool: "x", Cost: 1}} }),
			on(func(c *Begin) { c.Rates = []RateWant{{Pool: "rate/", Cost: 1}} }),
			on(func(c *Begin) { c.Rates = []RateWant{{Pool: "rate/a b", Cost: 1}} }),
		}},
		{"Begin.Rates[1].Pool", nil, []func(Command){on(func(c *Begin) { c.Rates = append(rates(1), rates(1)...) })}},
		{"Begin.Rates[0].Cost", []func(Command){
			on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Cost = MaxRate }),
			on(func(c *Begin) { c.Rates, c.Tokens = rates(1), 0; c.Rates[0].Tokens = true }),
			on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Tokens, c.Rates[0].Cost = true, int32(c.Tokens) }),
		}, []func(Command){
			on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Cost = 0 }),
			on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Cost = MaxRate + 1 }),
			on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Tokens, c.Rates[0].Cost = true, int32(c.Tokens)+1 }),
		}},
		{"Begin.Rates[0].Limit", []func(Command){on(func(c *Begin) { c.Rates = ofPolicy(MaxRate, MaxPer) })}, []func(Command){
			on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Limit = 1 }), on(func(c *Begin) { c.Rates = rates(1); c.Rates[0].Per = MinPer }),
			on(func(c *Begin) { c.Rates = ofPolicy(0, MinPer) }), on(func(c *Begin) { c.Rates = ofPolicy(MaxRate+1, MinPer) }),
		}},
		{"Begin.Rates[0].Per", []func(Command){on(func(c *Begin) { c.Rates = ofPolicy(1, MinPer) })}, []func(Command){
			on(func(c *Begin) { c.Rates = ofPolicy(1, MinPer-1) }), on(func(c *Begin) { c.Rates = ofPolicy(1, MaxPer+1) }),
		}},
		{"End.Rates", []func(Command){on(func(c *End) { c.Rates = slices.Repeat([]string{"rate/x"}, MaxRates) })}, []func(Command){
			on(func(c *End) { c.Rates = slices.Repeat([]string{"rate/x"}, MaxRates+1) }),
		}},
		{"End.Rates[0]", nil, []func(Command){on(func(c *End) { c.Rates = []string{""} })}},
		{"Begin.TTL", []func(Command){on(func(c *Begin) { c.TTL = MinTTL }), on(func(c *Begin) { c.TTL = MaxTTL })}, []func(Command){
			on(func(c *Begin) { c.TTL = MinTTL - 1 }), on(func(c *Begin) { c.TTL = MaxTTL + 1 }), on(func(c *Begin) { c.TTL = 0 }),
		}},
		{"Begin.MaxHold", []func(Command){on(func(c *Begin) { c.MaxHold = MaxHold })}, []func(Command){
			on(func(c *Begin) { c.MaxHold = -1 }), on(func(c *Begin) { c.MaxHold = MaxHold + 1 }),
		}},
		{"Begin.Wait", []func(Command){on(func(c *Begin) { c.Wait = MaxWait }), on(func(c *Begin) { c.Wait = 0 })}, []func(Command){
			on(func(c *Begin) { c.Wait = -1 }), on(func(c *Begin) { c.Wait = MaxWait + 1 }),
		}},
		{"Begin.Tokens", []func(Command){on(func(c *Begin) { c.Tokens = MaxCallTokens }), on(func(c *Begin) { c.Tokens = 0 })}, []func(Command){
			on(func(c *Begin) { c.Tokens = -1 }), on(func(c *Begin) { c.Tokens = MaxCallTokens + 1 }),
		}},
		{"End.Pools", []func(Command){on(func(c *End) { c.Pools = nil }), on(func(c *End) { c.Pools = times(MaxPools+1+MaxRates, numbered) })},
			[]func(Command){on(func(c *End) { c.Pools = times(MaxPools+2+MaxRates, numbered) })}},
		{"End.Pools[16]", nil, []func(Command){on(func(c *End) { c.Pools = append(times(MaxPools+MaxRates, numbered), numbered(3)) })}},
		{"End.Pools[1]", nil, []func(Command){on(func(c *End) { c.Pools[1] = c.Pools[0] }), on(func(c *End) { c.Pools[1] = "" })}},
		{"End.Status", []func(Command){on(func(c *End) { c.Status = Cancelled })}, []func(Command){
			on(func(c *End) { c.Status = 0 }), on(func(c *End) { c.Status = Cancelled + 1 }),
		}},
		{"End.Tokens", []func(Command){on(func(c *End) { c.Tokens = -1 }), on(func(c *End) { c.Tokens = MaxCallTokens })}, []func(Command){
			on(func(c *End) { c.Tokens = MaxCallTokens + 1 }),
		}},
		{"End.Output.Score", []func(Command){on(func(c *End) { c.Output.Score = million })}, []func(Command){
			on(func(c *End) { c.Output.Score = -1 }), on(func(c *End) { c.Output.Score = million + 1 }),
		}},
		{"End.Output.Text", []func(Command){on(func(c *End) { c.Output.Text = text(MaxSealedOutput) })}, []func(Command){
			on(func(c *End) { c.Output.Text = text(MaxSealedOutput + 1) }), on(func(c *End) { c.Output.Text = "\xc3" }),
		}},
		{"Open.Agent", []func(Command){on(func(c *Open) { c.Agent = text(MaxID) })}, []func(Command){
			on(func(c *Open) { c.Agent = "" }), on(func(c *Open) { c.Agent = text(MaxID + 1) }),
		}},
		{"Open.Policy", []func(Command){on(func(c *Open) { c.Policy = "" })}, []func(Command){on(func(c *Open) { c.Policy = "a b" })}},
		{"Open.Digest", nil, []func(Command){on(func(c *Open) { c.Digest = Digest{} })}},
		{"Open.IdleTTL", []func(Command){on(func(c *Open) { c.IdleTTL = MinTTL }), on(func(c *Open) { c.IdleTTL = MaxIdleTTL })}, []func(Command){
			on(func(c *Open) { c.IdleTTL = 0 }), on(func(c *Open) { c.IdleTTL = MaxIdleTTL + 1 }),
		}},
		{"Open.Parent", []func(Command){on(func(c *Open) { c.Parent = "" })}, []func(Command){on(func(c *Open) { c.Parent = text(MaxID + 1) })}},
		{"Open.Attributes", []func(Command){on(func(c *Open) { c.Attributes = nil }),
			on(func(c *Open) { c.Attributes = times(MaxAttributes, func(i int) Attr { return Attr{numbered(i), "v"} }) })},
			[]func(Command){on(func(c *Open) {
				c.Attributes = times(MaxAttributes+1, func(i int) Attr { return Attr{numbered(i), "v"} })
			})}},
		{"Open.Attributes[0]", []func(Command){on(func(c *Open) { c.Attributes[0].Value = text(MaxAttribute - 1) })}, []func(Command){
			on(func(c *Open) { c.Attributes[0].Value = text(MaxAttribute) }),
		}},
		{"Open.Attributes[0].Name", nil, []func(Command){on(func(c *Open) { c.Attributes[0].Name = "" })}},
		{"Open.Attributes[0].Value", nil, []func(Command){on(func(c *Open) { c.Attributes[0].Value = "\xff" })}},
		{"Open.Attributes[1].Name", nil, []func(Command){
			on(func(c *Open) { c.Attributes[1].Name = "a" }), on(func(c *Open) { c.Attributes[1].Name = "A" }),
		}},
		{"Cancel.Client", []func(Command){on(func(c *Cancel) { c.Session, c.Client = "", "c" })}, []func(Command){
			on(func(c *Cancel) { c.Client = "c" }), on(func(c *Cancel) { c.Session = "" }),
		}},
		{"Cancel.Session", nil, []func(Command){on(func(c *Cancel) { c.Session = "a b" })}},
		{"Cancel.Call", nil, []func(Command){on(func(c *Cancel) { c.Call = "" })}},
		{"Close.Pools", []func(Command){on(func(c *Close) { c.Pools = times(MaxClosePools, numbered) })},
			[]func(Command){on(func(c *Close) { c.Pools = times(MaxClosePools+1, numbered) })}},
		{"Close.Pools[17]", nil, []func(Command){on(func(c *Close) { c.Pools = append(times(MaxPools+1+MaxRates, numbered), numbered(3)) })}},
		{"Close.Pools[10]", nil, []func(Command){on(func(c *Close) { c.Pools = append(times(10, numbered), numbered(3)) })}},
		{"Close.Session", nil, []func(Command){on(func(c *Close) { c.Session = "" })}},
		{"Acquire.Client", nil, []func(Command){on(func(c *Acquire) { c.Client = "" })}},
		{"Acquire.Slot", nil, []func(Command){on(func(c *Acquire) { c.Slot = "" })}},
		{"Acquire.Pool", []func(Command){on(func(c *Acquire) { c.Pool = text(MaxID) })}, []func(Command){
			on(func(c *Acquire) { c.Pool = "policy/p" }), on(func(c *Acquire) { c.Pool = "" }),
		}},
		{"Acquire.Weight", []func(Command){on(func(c *Acquire) { c.Weight = MaxSlots })}, []func(Command){
			on(func(c *Acquire) { c.Weight = 0 }), on(func(c *Acquire) { c.Weight = MaxSlots + 1 }),
		}},
		{"Acquire.TTL", []func(Command){on(func(c *Acquire) { c.TTL = MinTTL }), on(func(c *Acquire) { c.TTL = MaxTTL })}, []func(Command){
			on(func(c *Acquire) { c.TTL = MinTTL - 1 }), on(func(c *Acquire) { c.TTL = MaxTTL + 1 }),
		}},
		{"Acquire.MaxHold", []func(Command){on(func(c *Acquire) { c.MaxHold = MaxHold })}, []func(Command){
			on(func(c *Acquire) { c.MaxHold = -1 }), on(func(c *Acquire) { c.MaxHold = MaxHold + 1 }),
		}},
		{"Acquire.Wait", []func(Command){on(func(c *Acquire) { c.Wait = MaxWait })}, []func(Command){
			on(func(c *Acquire) { c.Wait = -1 }), on(func(c *Acquire) { c.Wait = MaxWait + 1 }),
		}},
		{"Acquire.Label", []func(Command){on(func(c *Acquire) { c.Label = text(MaxTool) })}, []func(Command){
			on(func(c *Acquire) { c.Label = text(MaxTool + 1) }), on(func(c *Acquire) { c.Label = "\x1b[2J" }),
		}},
		{"Renew.Client", []func(Command){on(func(c *Renew) { c.Session, c.Client = "s", "" })}, []func(Command){
			on(func(c *Renew) { c.Session = "s" }), on(func(c *Renew) { c.Client = "" }),
		}},
		{"Renew.ID", nil, []func(Command){on(func(c *Renew) { c.ID = "" })}},
		{"Renew.Pools[0]", []func(Command){on(func(c *Renew) { c.Pools = nil })}, []func(Command){on(func(c *Renew) { c.Pools[0] = "policy/" })}},
		{"Renew.TTL", []func(Command){on(func(c *Renew) { c.TTL = MaxTTL })}, []func(Command){on(func(c *Renew) { c.TTL = MaxTTL + 1 })}},
		{"Release.Pool", nil, []func(Command){on(func(c *Release) { c.Pool = "policy/p" })}},
		{"Release.Slot", nil, []func(Command){on(func(c *Release) { c.Slot = "" })}},
		{"Release.Client", nil, []func(Command){on(func(c *Release) { c.Client = "" })}},
		{"ForceRelease.Holder", []func(Command){on(func(c *ForceRelease) { c.Session, c.Holder = "s", "" })},
			[]func(Command){on(func(c *ForceRelease) { c.Session = "s" })}},
		{"ForceRelease.ID", nil, []func(Command){on(func(c *ForceRelease) { c.ID = "" })}},
		{"ForceRelease.Pools", []func(Command){on(func(c *ForceRelease) { c.Pools = times(MaxPools+1+MaxRates, numbered) })}, []func(Command){on(func(c *ForceRelease) { c.Pools = times(MaxPools+2+MaxRates, numbered) })}},
		{"PutPool.By.Client", nil, []func(Command){on(func(c *PutPool) { c.By.Client = "" })}},
		{"PutPool.By.Request", []func(Command){on(func(c *PutPool) { c.By.Request = "" })}, []func(Command){on(func(c *PutPool) { c.By.Request = "a b" })}},
		{"PutPool.Pool", nil, []func(Command){on(func(c *PutPool) { c.Pool = "policy/p" })}},
		{"PutPool.Slots", []func(Command){on(func(c *PutPool) { c.Slots = MaxSlots })}, []func(Command){
			on(func(c *PutPool) { c.Slots = 0 }), on(func(c *PutPool) { c.Slots = MaxSlots + 1 }),
		}},
		{"PutPool.Threshold", []func(Command){on(func(c *PutPool) { c.Threshold = MaxSlots })}, []func(Command){
			on(func(c *PutPool) { c.Threshold = -1 }), on(func(c *PutPool) { c.Threshold = MaxSlots + 1 }),
		}},
		{"PutPool.Queue", []func(Command){on(func(c *PutPool) { c.Queue = MaxQueue })}, []func(Command){
			on(func(c *PutPool) { c.Queue = -1 }), on(func(c *PutPool) { c.Queue = MaxQueue + 1 }),
		}},
		{"PutRate.Rate", []func(Command){on(func(c *PutRate) { c.Rate = text(MaxID) })}, []func(Command){
			on(func(c *PutRate) { c.Rate = "policy/p" }), on(func(c *PutRate) { c.Rate = "" }), on(func(c *PutRate) { c.Rate = text(MaxID + 1) }),
		}},
		{"PutRate.Limit", []func(Command){on(func(c *PutRate) { c.Limit = MaxRate })}, []func(Command){
			on(func(c *PutRate) { c.Limit = 0 }), on(func(c *PutRate) { c.Limit = MaxRate + 1 }),
		}},
		{"PutRate.Per", []func(Command){on(func(c *PutRate) { c.Per = MinPer }), on(func(c *PutRate) { c.Per = MaxPer })}, []func(Command){
			on(func(c *PutRate) { c.Per = MinPer - 1 }), on(func(c *PutRate) { c.Per = MaxPer + 1 }),
		}},
		{"PutRate.Queue", []func(Command){on(func(c *PutRate) { c.Queue = MaxQueue })}, []func(Command){
			on(func(c *PutRate) { c.Queue = -1 }), on(func(c *PutRate) { c.Queue = MaxQueue + 1 }),
		}},
		{"DeleteRate.Rate", nil, []func(Command){on(func(c *DeleteRate) { c.Rate = "policy/p" })}},
		{"TakeRate.Rate", nil, []func(Command){on(func(c *TakeRate) { c.Rate = "policy/p" })}},
		{"TakeRate.Client", nil, []func(Command){on(func(c *TakeRate) { c.Client = "" })}},
		{"TakeRate.ID", nil, []func(Command){on(func(c *TakeRate) { c.ID = "" })}},
		{"TakeRate.Cost", []func(Command){on(func(c *TakeRate) { c.Cost = MaxRate })}, []func(Command){
			on(func(c *TakeRate) { c.Cost = 0 }), on(func(c *TakeRate) { c.Cost = MaxRate + 1 }),
		}},
		{"TakeRate.Wait", []func(Command){on(func(c *TakeRate) { c.Wait = MaxWait })}, []func(Command){
			on(func(c *TakeRate) { c.Wait = -1 }), on(func(c *TakeRate) { c.Wait = MaxWait + 1 }),
		}},
		{"PutPool.Pool", nil, []func(Command){on(func(c *PutPool) { c.Pool = "rate/p" })}},
		{"DeletePool.Pool", nil, []func(Command){on(func(c *DeletePool) { c.Pool = "policy/p" })}},
		{"PutPolicy.Name", []func(Command){on(func(c *PutPolicy) { c.Name = text(MaxID) })}, []func(Command){on(func(c *PutPolicy) { c.Name = "" })}},
		{"PutPolicy.Digest", nil, []func(Command){on(func(c *PutPolicy) { c.Digest = Digest{} })}},
		{"PutPolicy.Tree", []func(Command){on(func(c *PutPolicy) { c.Tree = make([]byte, MaxTree) })}, []func(Command){
			on(func(c *PutPolicy) { c.Tree = nil }), on(func(c *PutPolicy) { c.Tree = make([]byte, MaxTree+1) }),
		}},
		{"PutPolicy.Limits.MaxTokens", []func(Command){on(func(c *PutPolicy) { c.Limits.MaxTokens = 1 << 62 })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.MaxTokens = -1 }), on(func(c *PutPolicy) { c.Limits.MaxTokens = 1<<62 + 1 }),
		}},
		{"PutPolicy.Limits.Timeout", []func(Command){on(func(c *PutPolicy) { c.Limits.Timeout = MaxDuration })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.Timeout = -1 }), on(func(c *PutPolicy) { c.Limits.Timeout = MaxDuration + 1 }),
		}},
		{"PutPolicy.Limits.MaxConcurrent", []func(Command){on(func(c *PutPolicy) { c.Limits.MaxConcurrent = MaxSlots })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.MaxConcurrent = 0 }), on(func(c *PutPolicy) { c.Limits.MaxConcurrent = MaxSlots + 1 }),
		}},
		{"PutPolicy.Limits.Backpressure", []func(Command){on(func(c *PutPolicy) { c.Limits.Backpressure = 1 << 30 })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.Backpressure = -1 }), on(func(c *PutPolicy) { c.Limits.Backpressure = 1<<30 + 1 }),
		}},
		{"PutPolicy.Limits.Drift", []func(Command){on(func(c *PutPolicy) { c.Limits.Drift = million })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.Drift = -1 }), on(func(c *PutPolicy) { c.Limits.Drift = million + 1 }),
		}},
		{"PutPolicy.Limits.PerTool", []func(Command){on(func(c *PutPolicy) {
			c.Limits.PerTool = times(MaxToolLimits, func(i int) ToolLimit { return ToolLimit{numbered(i), 1} })
		})}, []func(Command){on(func(c *PutPolicy) {
			c.Limits.PerTool = times(MaxToolLimits+1, func(i int) ToolLimit { return ToolLimit{numbered(i), 1} })
		})}},
		{"PutPolicy.Limits.PerTool[1].Tool", nil, []func(Command){
			on(func(c *PutPolicy) { c.Limits.PerTool[1].Tool = "" }), on(func(c *PutPolicy) { c.Limits.PerTool[1].Tool = "b " }), on(func(c *PutPolicy) { c.Limits.PerTool[1].Tool = "a" }),
		}},
		{"PutPolicy.Limits.Kinds[0].Kind", nil, []func(Command){
			on(func(c *PutPolicy) { c.Limits.Kinds[0].Kind = Tool }), on(func(c *PutPolicy) { c.Limits.Kinds[0].Kind = Sampling + 1 }),
		}},
		{"PutPolicy.Limits.Kinds[1].Kind", []func(Command){on(func(c *PutPolicy) { c.Limits.Kinds[1].Kind = Sampling })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.Kinds[1].Kind = Model }), on(func(c *PutPolicy) { c.Limits.Kinds[0].Kind = Handoff }),
		}},
		{"PutPolicy.Limits.BreakerReset", []func(Command){on(func(c *PutPolicy) { c.Limits.BreakerReset = MaxHold })}, []func(Command){
			on(func(c *PutPolicy) { c.Limits.BreakerReset = -1 }), on(func(c *PutPolicy) { c.Limits.BreakerReset = MaxHold + 1 }),
		}},
		{"DeletePolicy.Name", []func(Command){on(func(c *DeletePolicy) { c.Name = "p" })}, []func(Command){on(func(c *DeletePolicy) { c.Name = "a b" })}},
		{"DeletePolicy.Digest", nil, []func(Command){on(func(c *DeletePolicy) { c.Digest = Digest{} })}},
		{"DeletePolicy.Names", []func(Command){on(func(c *DeletePolicy) { c.Names = nil }), on(func(c *DeletePolicy) { c.Names = times(MaxNames, numbered) })}, []func(Command){
			on(func(c *DeletePolicy) { c.Names = times(MaxNames+1, numbered) }),
		}},
		{"DeletePolicy.Names[1]", nil, []func(Command){on(func(c *DeletePolicy) { c.Names[1] = "p" }), on(func(c *DeletePolicy) { c.Names[1] = "" })}},
		{"Set.Key", []func(Command){on(func(c *Set) { c.Key = "k" }), on(func(c *Set) { c.Key = text(MaxKey) })}, []func(Command){
			on(func(c *Set) { c.Key = "" }), on(func(c *Set) { c.Key = text(MaxKey + 1) }), on(func(c *Set) { c.Key = "a\tb" }),
		}},
		{"Set.Value.Text", []func(Command){on(func(c *Set) { c.Value.Text = text(MaxText) }), on(func(c *Set) { c.Value.Text = "" })}, []func(Command){
			on(func(c *Set) { c.Value.Text = text(MaxText + 1) }), on(func(c *Set) { c.Value.Text = "\xff" }), on(func(c *Set) { c.Value.Number = true }),
		}},
		{"Set.Value.N", []func(Command){on(func(c *Set) { c.Value = Value{Number: true, N: math.MinInt64} })}, []func(Command){on(func(c *Set) { c.Value.N = 1 })}},
		{"Set.TTL", []func(Command){on(func(c *Set) { c.TTL = MaxDuration })}, []func(Command){
			on(func(c *Set) { c.TTL = -1 }), on(func(c *Set) { c.TTL = MaxDuration + 1 }),
		}},
		{"Set.IfVersion", []func(Command){on(func(c *Set) { c.IfVersion = "0" }), on(func(c *Set) { c.IfVersion = (Value{}).Version() })}, []func(Command){
			on(func(c *Set) { c.IfVersion = "1" }), on(func(c *Set) { c.IfVersion = strings.ToUpper((Value{Text: "a"}).Version()) }),
			on(func(c *Set) { c.IfVersion = text(32) }), on(func(c *Set) { c.IfVersion = "00" }),
		}},
		{"Delete.IfVersion", nil, []func(Command){on(func(c *Delete) { c.IfVersion = "x" })}},
		{"Append.Key", []func(Command){on(func(c *Append) { c.Key = text(MaxKey) })}, []func(Command){
			on(func(c *Append) { c.Key = "" }), on(func(c *Append) { c.Key = text(MaxKey + 1) }), on(func(c *Append) { c.Key = "a\tb" }),
		}},
		{"Append.Items", []func(Command){on(func(c *Append) { c.Items = times(MaxAppend, numbered) })}, []func(Command){
			on(func(c *Append) { c.Items = nil }), on(func(c *Append) { c.Items = times(MaxAppend+1, numbered) }),
		}},
		{"Append.Items[1]", []func(Command){on(func(c *Append) { c.Items[1] = text(MaxItem) })}, []func(Command){
			on(func(c *Append) { c.Items[1] = text(MaxItem + 1) }), on(func(c *Append) { c.Items[1] = "\xff" }),
		}},
		{"Append.TTL", []func(Command){on(func(c *Append) { c.TTL = 1 }), on(func(c *Append) { c.TTL = MaxListTTL })}, []func(Command){
			on(func(c *Append) { c.TTL = 0 }), on(func(c *Append) { c.TTL = MaxListTTL + 1 }),
		}},
		{"Append.From", []func(Command){on(func(c *Append) { c.From = MaxList / MinItemSize })}, []func(Command){
			on(func(c *Append) { c.From = -1 }), on(func(c *Append) { c.From = MaxList/MinItemSize + 1 }),
		}},
		{"PutToken.NS", []func(Command){on(func(c *PutToken) { c.NS = "team" })}, []func(Command){
			on(func(c *PutToken) { c.NS = "$other" }), on(func(c *PutToken) { c.NS = "" }),
		}},
		{"PutToken.Token.ID", nil, []func(Command){on(func(c *PutToken) { c.Token.ID = "" }), on(func(c *PutToken) { c.Token.ID = "a b" })}},
		{"PutToken.Token.Hash", nil, []func(Command){on(func(c *PutToken) { c.Token.Hash = Digest{} })}},
		{"PutToken.Token.Roles", []func(Command){on(func(c *PutToken) { c.Token.Roles = 1 }), on(func(c *PutToken) { c.Token.Roles = 1<<15 - 1 })}, []func(Command){on(func(c *PutToken) { c.Token.Roles = 0 }), on(func(c *PutToken) { c.Token.Roles = 1 << 15 })}},
		{"PutToken.Token.Agents", []func(Command){on(func(c *PutToken) { c.Token.Agents = times(MaxPatterns, numbered) })}, []func(Command){
			on(func(c *PutToken) { c.Token.Agents = times(MaxPatterns+1, numbered) }),
		}},
		{"PutToken.Token.Agents[0]", nil, []func(Command){on(func(c *PutToken) { c.Token.Agents[0] = "" }), on(func(c *PutToken) { c.Token.Agents[0] = text(MaxID + 1) })}},
		{"PutToken.Token.Policies", nil, []func(Command){on(func(c *PutToken) { c.Token.Policies = times(MaxPatterns+1, numbered) })}},
		{"PutToken.Token.Made", nil, []func(Command){on(func(c *PutToken) { c.Token.Made = -1 })}},
		{"PutToken.Token.Expires", nil, []func(Command){on(func(c *PutToken) { c.Token.Expires = -1 })}},
		{"PutToken.Token.By", nil, []func(Command){on(func(c *PutToken) { c.Token.By = text(MaxSubject + 1) })}},
		{"PutToken.Token.Label", nil, []func(Command){on(func(c *PutToken) { c.Token.Label = "a\nb" })}},
		{"PutToken.Token.Environment", nil, []func(Command){on(func(c *PutToken) { c.Token.Environment = "a b" })}},
		{"PutToken.Token.Node", []func(Command){on(func(c *PutToken) { c.Token.Node = "" })}, []func(Command){on(func(c *PutToken) { c.Token.Node = "a b" })}},
		{"PutToken.Token.Used", nil, []func(Command){on(func(c *PutToken) { c.Token.Used = 1 }), on(func(c *PutToken) { c.Token.Used = -1 })}},
		{"UseToken.NS", []func(Command){on(func(c *UseToken) { c.NS = "team" })}, []func(Command){on(func(c *UseToken) { c.NS = "" })}},
		{"UseToken.ID", nil, []func(Command){on(func(c *UseToken) { c.ID = "" })}},
		{"UseToken.Node", nil, []func(Command){on(func(c *UseToken) { c.Node = "" }), on(func(c *UseToken) { c.Node = "a b" })}},
		{"UseToken.At", []func(Command){on(func(c *UseToken) { c.At = 1 })}, []func(Command){on(func(c *UseToken) { c.At = 0 }), on(func(c *UseToken) { c.At = -1 })}},
		{"PutToken.Before", nil, []func(Command){on(func(c *PutToken) { c.Before = -1 })}},
		{"RevokeToken.ID", []func(Command){on(func(c *RevokeToken) { c.ID, c.Node = "", "n4" })}, []func(Command){
			on(func(c *RevokeToken) { c.ID = "" }), on(func(c *RevokeToken) { c.Node = "n4" }),
		}},
		{"RevokeToken.Node", nil, []func(Command){on(func(c *RevokeToken) { c.ID, c.Node = "", "a b" })}},
		{"Deny.Denied.Subject", []func(Command){on(func(c *Deny) { c.Denied.Subject = "s" })}, []func(Command){on(func(c *Deny) { c.Denied.Subject = "" }), on(func(c *Deny) { c.Denied.Subject = text(MaxSubject + 1) })}},
		{"Deny.Denied.Reason", nil, []func(Command){on(func(c *Deny) { c.Denied.Reason = text(MaxReason + 1) })}},
		{"Deny.Denied.At", nil, []func(Command){on(func(c *Deny) { c.Denied.At = -1 })}},
		{"Allow.Subject", []func(Command){on(func(c *Allow) { c.Subject = "s" })}, []func(Command){on(func(c *Allow) { c.Subject = "" })}},
		{"PutQuotas.Quotas", []func(Command){on(func(c *PutQuotas) { c.Quotas.Bytes = MaxQuota })}, []func(Command){
			on(func(c *PutQuotas) { c.Quotas.Bytes = MaxQuota + 1 }), on(func(c *PutQuotas) { c.Quotas.Operations = -1 }),
		}},
		{"DeleteList.Key", []func(Command){on(func(c *DeleteList) { c.Key = "k" })}, []func(Command){on(func(c *DeleteList) { c.Key = "" })}},
		{"Delete.Key", nil, []func(Command){on(func(c *Delete) { c.Key = "" })}},
		{"Increment.Key", nil, []func(Command){on(func(c *Increment) { c.Key = "" })}},
		{"PutHash.Tool", nil, []func(Command){on(func(c *PutHash) { c.Tool = "" }), on(func(c *PutHash) { c.Tool = "a " })}},
		{"PutHash.Hash", []func(Command){on(func(c *PutHash) { c.Hash = text(MaxHash) })}, []func(Command){
			on(func(c *PutHash) { c.Hash = text(MaxHash + 1) }),
		}},
		{"Begin.Budgets", []func(Command){on(func(c *Begin) { c.Budgets = charges(MaxBudgets) })}, []func(Command){
			on(func(c *Begin) { c.Budgets = charges(MaxBudgets + 1) }),
		}},
		{"Begin.Budgets[1].Budget", nil, []func(Command){
			on(func(c *Begin) { c.Budgets = append(charges(1), charges(1)...) }), on(func(c *Begin) { c.Budgets = charges(2); c.Budgets[1].Budget = "a" }),
		}},
		{"Begin.Budgets[0].Amount", []func(Command){
			on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Amount = budget.MaxAmount }), on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Amount = 0 }),
		}, []func(Command){
			on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Amount = budget.MaxAmount + 1 }), on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Amount = -1 }),
		}},
		{"Begin.Budgets[0].Parent", []func(Command){on(func(c *Begin) { c.Budgets = below(charges(budget.MaxDepth)) })}, []func(Command){
			on(func(c *Begin) { c.Budgets = below(charges(budget.MaxDepth + 1)) }), on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Parent = "zzz" }),
			on(func(c *Begin) { c.Budgets = charges(1); c.Budgets[0].Parent = c.Budgets[0].Budget }),
		}},
		{"End.Spent", []func(Command){on(func(c *End) { c.Spent = times(MaxBudgets, bill) })}, []func(Command){on(func(c *End) { c.Spent = times(MaxBudgets+1, bill) })}},
		{"End.Spent[0].Amount", []func(Command){on(func(c *End) { c.Spent = []Bill{{"b", budget.MaxAmount}} })}, []func(Command){
			on(func(c *End) { c.Spent = []Bill{{"b", budget.MaxAmount + 1}} }), on(func(c *End) { c.Spent = []Bill{{"b", -1}} }),
		}},
		{"End.Spent[1].Budget", nil, []func(Command){on(func(c *End) { c.Spent = []Bill{{"b", 1}, {"b", 1}} })}},
		{"End.Budgets", []func(Command){on(func(c *End) { c.Budgets = times(MaxBudgets, numbered) })}, []func(Command){on(func(c *End) { c.Budgets = times(MaxBudgets+1, numbered) })}},
		{"PutBudget.Budget", []func(Command){on(func(c *PutBudget) { c.Budget = text(MaxID) })}, []func(Command){
			on(func(c *PutBudget) { c.Budget = "" }), on(func(c *PutBudget) { c.Budget = text(MaxID + 1) }),
		}},
		{"PutBudget.Parent", []func(Command){on(func(c *PutBudget) { c.Parent = "" })}, []func(Command){
			on(func(c *PutBudget) { c.Parent = "b" }), on(func(c *PutBudget) { c.Parent = "a b" }),
		}},
		{"PutBudget.Amount", []func(Command){on(func(c *PutBudget) { c.Amount = 0 }), on(func(c *PutBudget) { c.Amount = budget.MaxAmount })}, []func(Command){
			on(func(c *PutBudget) { c.Amount = -1 }), on(func(c *PutBudget) { c.Amount = budget.MaxAmount + 1 }),
		}},
		{"PutBudget.Per", []func(Command){
			on(func(c *PutBudget) { c.Per = 0 }), on(func(c *PutBudget) { c.Per = MinBudgetPer }), on(func(c *PutBudget) { c.Per = MaxBudgetPer }),
		}, []func(Command){
			on(func(c *PutBudget) { c.Per = MinBudgetPer - 1 }), on(func(c *PutBudget) { c.Per = MaxBudgetPer + 1 }), on(func(c *PutBudget) { c.Per = -1 }),
		}},
		{"AdjustBudget.Ancestors", []func(Command){on(func(c *AdjustBudget) { c.Ancestors = times(budget.MaxDepth-1, numbered) })}, []func(Command){
			on(func(c *AdjustBudget) { c.Ancestors = times(budget.MaxDepth, numbered) }), on(func(c *AdjustBudget) { c.Ancestors = []string{"c"} }),
		}},
		{"AdjustBudget.Amount", []func(Command){on(func(c *AdjustBudget) { c.Amount = budget.MaxAmount }), on(func(c *AdjustBudget) { c.Amount = -budget.MaxAmount })},
			[]func(Command){on(func(c *AdjustBudget) { c.Amount = budget.MaxAmount + 1 }), on(func(c *AdjustBudget) { c.Amount = -budget.MaxAmount - 1 })}},
		{"DeleteBudget.Budget", nil, []func(Command){on(func(c *DeleteBudget) { c.Budget = "" })}},
		{"Tick.Keys", []func(Command){on(func(c *Tick) { c.Keys = nil }), on(func(c *Tick) { c.Keys = slices.Repeat([]Key{"sn/x"}, MaxTick) })}, []func(Command){
			on(func(c *Tick) { c.Keys = slices.Repeat([]Key{"sn/x"}, MaxTick+1) }),
		}},
		{"Tick.Keys[1]", []func(Command){on(func(c *Tick) { c.Keys[1] = Key("kn/" + text(MaxKey)) }), on(func(c *Tick) { c.Keys[1] = ListItemKey("n", text(MaxKey), MaxList) })}, []func(Command){
			on(func(c *Tick) { c.Keys[1] = "" }), on(func(c *Tick) { c.Keys[1] = "xn/x" }), on(func(c *Tick) { c.Keys[1] = "s/x" }),
			on(func(c *Tick) { c.Keys[1] = "snx" }), on(func(c *Tick) { c.Keys[1] = Key("kn/" + text(MaxKey+1)) }),
			on(func(c *Tick) { c.Keys[1] = ListKey("n", text(MaxKey+1)) }), on(func(c *Tick) { c.Keys[1] = "ln/x" }), on(func(c *Tick) { c.Keys[1] = "ln/x/0000000g" }),
		}},
	} {
		kind, _, _ := strings.Cut(tt.field, ".")
		t.Run(tt.field, func(t *testing.T) {
			for i, change := range tt.pass {
				c := validCommands()[kind]
				change(c)
				require.NoError(t, Validate(c), "pass %d", i)
			}
			require.NotEmpty(t, tt.fail)
			for i, change := range tt.fail {
				c := validCommands()[kind]
				change(c)
				err := Validate(c)
				var bad *FieldError
				require.ErrorAs(t, err, &bad, "fail %d", i)
				require.Equal(t, tt.field, bad.Field)
				require.NotEmpty(t, bad.Problem)
				require.True(t, strings.HasPrefix(err.Error(), tt.field+": "))
			}
		})
	}
}

// What people are told of caps, in documents and by the service itself, holds: the
// figure that stands here passes, and the next one does not.
func TestCapsAreTheFiguresThatPeopleAreTold(t *testing.T) {
	const day = 24 * time.Hour
	begin := func(change func(*Begin)) Command { return changed("Begin", change) }
	token := func(change func(*PutToken)) Command { return changed("PutToken", change) }
	for name, tt := range map[string]struct {
		most int
		of   func(n int) Command
	}{
		"bytes of an id":        {128, func(n int) Command { return begin(func(c *Begin) { c.Session = text(n) }) }},
		"bytes of a namespace":  {64, func(n int) Command { return begin(func(c *Begin) { c.NS = text(n) }) }},
		"bytes of a tool":       {128, func(n int) Command { return begin(func(c *Begin) { c.Tool = text(n) }) }},
		"bytes of a key":        {512, func(n int) Command { return changed("Set", func(c *Set) { c.Key = text(n) }) }},
		"bytes of an attribute": {1024, func(n int) Command { return changed("Open", func(c *Open) { c.Attributes[0].Value = text(n - 1) }) }},
		"bytes of a text":       {64 << 10, func(n int) Command { return changed("Set", func(c *Set) { c.Value.Text = text(n) }) }},
		"bytes of a hash":       {256, func(n int) Command { return changed("PutHash", func(c *PutHash) { c.Hash = text(n) }) }},
		"bytes of a reason":     {256, func(n int) Command { return changed("Signal", func(c *Signal) { c.Reason = text(n) }) }},
		"bytes of a message":    {1 << 10, func(n int) Command { return changed("Decide", func(c *Decide) { c.Reason = text(n) }) }},
		"bytes of a principal":  {256, func(n int) Command { return changed("Allow", func(c *Allow) { c.Subject = text(n) }) }},
		"bytes of a policy":     {1 << 20, func(n int) Command { return changed("PutPolicy", func(c *PutPolicy) { c.Tree = make([]byte, n) }) }},
		"attributes of a session": {32, func(n int) Command {
			return changed("Open", func(c *Open) { c.Attributes = times(n, func(i int) Attr { return Attr{numbered(i), ""} }) })
		}},
		"pools of a call, beside its policy's": {8, func(n int) Command {
			return begin(func(c *Begin) {
				c.Pools = append(c.Pools[:1], times(n, func(i int) Want { return Want{numbered(i), 1} })...)
			})
		}},
		"facts: one of each tool, and eight more": {256 + 8, func(n int) Command {
			return begin(func(c *Begin) { c.Seen = times(n, func(int) Premise { return Premise{Fact: FactCalls} }) })
		}},
		"number of a rule": {16383, func(n int) Command { return begin(func(c *Begin) { c.Verdict.Rule = uint16(n) }) }},
		"tokens of a call": {1_000_000_000, func(n int) Command { return begin(func(c *Begin) { c.Tokens = int64(n) }) }},
		"calls that somebody has to decide": {64, func(n int) Command {
			return changed("Begin", asking(func(c *Begin) { c.Asking.MaxPending = uint32(n) }))
		}},
		"tools that a policy limits": {1024, func(n int) Command {
			return changed("PutPolicy", func(c *PutPolicy) {
				c.Limits.PerTool = times(n, func(i int) ToolLimit { return ToolLimit{numbered(i), 1} })
			})
		}},
		"calls of a policy at once": {4096, func(n int) Command {
			return changed("PutPolicy", func(c *PutPolicy) { c.Limits.MaxConcurrent = int32(n) })
		}},
		"slots of a pool":        {4096, func(n int) Command { return changed("PutPool", func(c *PutPool) { c.Slots = int32(n) }) }},
		"who may wait at a pool": {4096, func(n int) Command { return changed("PutPool", func(c *PutPool) { c.Queue = int32(n) }) }},
		"names of a tree": {1024, func(n int) Command {
			return changed("DeletePolicy", func(c *DeletePolicy) { c.Names = times(n, numbered) })
		}},
		"open calls of a session":         {1024, func(n int) Command { return changed("Close", func(c *Close) { c.Asked = times(n, numbered) }) }},
		"pools of all calls of a session": {1024*(8+8) + 1, func(n int) Command { return changed("Close", func(c *Close) { c.Pools = times(n, numbered) }) }},
		"keys of a tick": {4096, func(n int) Command {
			return changed("Tick", func(c *Tick) { c.Keys = slices.Repeat([]Key{"sn/x"}, n) })
		}},
		"time of a lease":                 {int(time.Hour), func(n int) Command { return changed("Acquire", func(c *Acquire) { c.TTL = time.Duration(n) }) }},
		"time that something is held":     {int(day), func(n int) Command { return changed("Acquire", func(c *Acquire) { c.MaxHold = time.Duration(n) }) }},
		"time of a wait":                  {int(10 * time.Minute), func(n int) Command { return changed("Acquire", func(c *Acquire) { c.Wait = time.Duration(n) }) }},
		"time that a session is not used": {int(30 * day), func(n int) Command { return changed("Open", func(c *Open) { c.IdleTTL = time.Duration(n) }) }},
		"time that a value is kept":       {int(100 * 365 * day), func(n int) Command { return changed("Set", func(c *Set) { c.TTL = time.Duration(n) }) }},
		"time to decide":                  {int(day), func(n int) Command { return changed("Ask", func(c *Ask) { c.Timeout = time.Duration(n) }) }},
		"time that an approval stands":    {int(30 * day), func(n int) Command { return changed("PutStanding", func(c *PutStanding) { c.TTL = time.Duration(n) }) }},
		"uses of an approval that stands": {1_000_000, func(n int) Command { return changed("PutStanding", func(c *PutStanding) { c.Uses = uint32(n) }) }},
		"millionths of a score":           {1_000_000, func(n int) Command { return changed("End", func(c *End) { c.Output.Score = int64(n) }) }},
		"agents of a token":               {64, func(n int) Command { return token(func(c *PutToken) { c.Token.Agents = times(n, numbered) }) }},
		"when a token was made":           {1<<48 - 1, func(n int) Command { return token(func(c *PutToken) { c.Token.Made = int64(n) }) }},
		"when a token expires":            {1<<48 - 1, func(n int) Command { return token(func(c *PutToken) { c.Token.Expires = int64(n) }) }},
		"when tokens have expired":        {1<<48 - 1, func(n int) Command { return token(func(c *PutToken) { c.Before = int64(n) }) }},
		"when a token was used":           {1<<48 - 1, func(n int) Command { return changed("UseToken", func(c *UseToken) { c.At = int64(n) }) }},
		"when a subject was denied":       {1<<48 - 1, func(n int) Command { return changed("Deny", func(c *Deny) { c.Denied.At = int64(n) }) }},
		"quota":                           {1 << 50, func(n int) Command { return changed("PutQuotas", func(c *PutQuotas) { c.Quotas.Streams = int64(n) }) }},
		"time of an id that is repaired":  {1<<44 - 1, func(n int) Command { return changed("Repair", func(c *Repair) { c.NewerThan = uint64(n) }) }},
	} {
		require.NoError(t, Validate(tt.of(tt.most)), "%s: %d", name, tt.most)
		require.Error(t, Validate(tt.of(tt.most+1)), "%s: %d", name, tt.most+1)
	}
}

// changed is the valid command of that name, with a change.
func changed[C Command](name string, change func(C)) Command {
	c := validCommands()[name]
	change(c.(C))
	return c
}

// What nodes have sealed passes that passed before, and not much more: it has a mark
// before it, a nonce and a tag beside it, and is written in base64.
func TestCapsOfWhatIsSealed(t *testing.T) {
	sealed := func(n int) int { return len("sealed:1:") + base64.RawStdEncoding.EncodedLen(12+n+16) }
	for _, tt := range []struct{ plain, most int }{{4 << 10, MaxSealedPreview}, {64 << 10, MaxSealedOutput}} {
		require.GreaterOrEqual(t, tt.most, sealed(tt.plain))
		require.Less(t, tt.most, sealed(tt.plain)+32)
	}
	require.EqualValues(t, 4<<10, MaxPreview)
}

// What is refused says what may be given.
func TestWhatIsOutOfBoundsSaysTheBounds(t *testing.T) {
	for _, tt := range []struct {
		c    Command
		want string
	}{
		{changed("Begin", func(c *Begin) { c.Pools[1].Weight = 0 }), "Begin.Pools[1].Weight: 0 is out of bounds; give 1 to 4096"},
		{changed("End", func(c *End) { c.Tokens = 2_000_000_000 }), "End.Tokens: 2000000000 is out of bounds; give 0 to 1000000000"},
		{changed("Set", func(c *Set) { c.Value.Text = text(65537) }), "Set.Value.Text: has 65537 bytes; give 0 to 65536"},
		{changed("Append", func(c *Append) { c.Items = nil }), "Append.Items: has 0 elements; give 1 to 256"},
	} {
		require.EqualError(t, Validate(tt.c), tt.want)
	}
}

// The reserved namespace has the records of who may do what and of requests for that, and
// no other namespace begins like it.
func TestKeysOfTheReservedNamespace(t *testing.T) {
	for _, k := range []Key{AccessKey(ClusterNamespace), ClientKey(ClusterNamespace, "c"), NamespaceKey(ClusterNamespace)} {
		require.True(t, WellFormed(k), k)
	}
	for _, k := range []Key{SessionKey(ClusterNamespace, "s"), PoolKey(ClusterNamespace, "p"), CounterKey(ClusterNamespace, "k"), AccessKey("$other"), ClientKey("$", "c")} {
		require.False(t, WellFormed(k), k)
	}
	require.True(t, WellFormed(NamespaceKey("n")), "the shortest there is")
}

func TestValidateAllocatesNothingForWhatIsValid(t *testing.T) {
	b, e := typicalBegin(), typicalEnd()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if Validate(b) != nil || Validate(e) != nil {
			t.Fatal("refused")
		}
	}))
}

// What passes survives the trip to another node.
func TestValidCommandsAreDecodedAsTheyWere(t *testing.T) {
	for name, c := range validCommands() {
		got, err := DecodeCommand(EncodeCommand(c))
		require.NoError(t, err, name)
		require.Equal(t, c, got)
		require.NoError(t, Validate(got), name)
	}
}
