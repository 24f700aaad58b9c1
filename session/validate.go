package session

import (
	"fmt"
	"strings"
	"time"

	"example.com/govnode/session/ids"
)

// What a command has to be before it is put in order. The checks that commands
// share are in validate_checks.go.

// Caps of a command. Together with those in record.go they bound what a record
// can grow to, and what a command can cost to apply. Lengths are in bytes.
const (
	MaxID        = 128 // ids, agents, clients, pools, policies
	MaxNamespace = 64
	MaxTool      = 128 // name of a tool; also of a label
	MaxKey       = 512 // key of a counter or a text

	MaxAttributes = 32   // of a session
	MaxAttribute  = 1024 // name and value together
	// MaxPools is how many pools a call may name beside that of its policy.
	MaxPools      = 8
	MaxPremises   = MaxTools + 8 // a premise for each tool, and for each other fact
	MaxToolLimits = 1024         // tools that a policy limits
	maxKinds      = 8            // of calls, with room for those to come
	MaxNames      = 1024         // names that point to one policy, as a premise
	// MaxClosePools is in how many pools a session can hold slots, as a premise.
	MaxClosePools = MaxOpen*(MaxPools+MaxRates) + 1
	MaxTick       = 4096 // keys in one Tick

	MaxText = 64 << 10 // a text of the storage protocol; the output of a call
	MaxHash = 256      // a content hash as it was registered
	// MaxReason is how long the reason of a signal may be, and MaxSignals how many
	// stand in a namespace, beside those of single sessions. The one for everything
	// always has room.
	MaxReason  = 256
	MaxSignals = 256
	MaxTree    = 1 << 20 // a policy, all files together
	// MaxPreview is how much of the arguments people are shown who decide, and
	// MaxMessage how much of why they are asked.
	MaxPreview = 4 << 10
	// What nodes have sealed is longer than it was, by a third and some.
	MaxSealedPreview = MaxPreview/3*4 + 64
	MaxSealedOutput  = MaxText/3*4 + 64
	MaxMessage       = 1 << 10
	// MaxPending is how many calls of a session may wait for somebody to decide.
	MaxPending = 64
	// MinApproval and MaxApproval bound how long there is to decide.
	MinApproval = time.Second
	MaxApproval = 24 * time.Hour
	// MaxStanding is how long a standing approval may stand, and MaxUses how often
	// one may be used that is not for ever.
	MaxStanding = 30 * 24 * time.Hour
	MaxUses     = 1_000_000

	// MinTTL leaves a holder time to renew; MaxTTL is how long a crashed one
	// can keep a slot.
	MinTTL = time.Second
	MaxTTL = time.Hour
	// MaxHold, MaxWait and MaxIdleTTL bound how long somebody stays who does
	// renew, wait, or come back.
	MaxHold    = 24 * time.Hour
	MaxWait    = 10 * time.Minute
	MaxIdleTTL = 30 * 24 * time.Hour
	// MaxDuration bounds times that nothing else bounds, so that log time and
	// any of them do not overflow for 190 years.
	MaxDuration = 100 * 365 * 24 * time.Hour

	// MaxCallTokens is a thousand times the context of a large model, and so
	// little that a session runs out of attempts before its sum overflows.
	MaxCallTokens = 1_000_000_000
	// MaxRule is the highest number of a rule: what a remembered id has room for.
	MaxRule = 1<<14 - 1

	// MaxTokens and MaxDenied are how many tokens and denied subjects a namespace
	// has, MaxPatterns how many agents or policies one token names, and MaxSubject
	// how long the name of a principal is. MaxTokenBytes is what all tokens of a
	// namespace take: they are one record, for which a snapshot must have room.
	MaxTokens     = 4096
	MaxDenied     = 4096
	MaxPatterns   = 64
	MaxTokenBytes = 4 << 20
	MaxSubject    = 256
	// MaxQuota is the highest quota of any kind.
	MaxQuota     = 1 << 50
	maxUnixMilli = 1<<48 - 1

	million = 1_000_000
)

const policyPrefix = "policy/"

// A FieldError says which field of a command is out of bounds, and what to do.
type FieldError struct {
	Field   string // as in "Begin.Pools[1].Weight"
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Validate checks every bound of a command that ApplyAll relies on. It returns
// a *FieldError for the first field that is out of bounds, else nil. Whether
// the command can be carried out is for ApplyAll to say.
func Validate(c Command) error {
	var v validator
	switch c := c.(type) {
	case *Open:
		v.open(c)
	case *Begin:
		v.begin(c)
	case *End:
		v.end(c)
	case *Cancel:
		v.cancel(c)
	case *Close:
		v.close(c)
	case *Acquire:
		v.acquire(c)
	case *Renew:
		v.renew(c)
	case *Release:
		v.release(c)
	case *ForceRelease:
		v.forceRelease(c)
	case *PutPool:
		v.putPool(c)
	case *DeletePool:
		v.of = "DeletePool"
		v.request(c.NS, c.By)
		v.ownPool("Pool", c.Pool)
	case *PutPolicy:
		v.putPolicy(c)
	case *DeletePolicy:
		v.deletePolicy(c)
	case *Set:
		v.set(c)
	case *Delete:
		v.of = "Delete"
		v.request(c.NS, c.By)
		v.text("Key", c.Key, 1, MaxKey)
		v.ifVersion(c.IfVersion)
	case *Increment:
		v.of = "Increment"
		v.request(c.NS, c.By)
		v.text("Key", c.Key, 1, MaxKey)
	case *PutHash:
		v.of = "PutHash"
		v.request(c.NS, c.By)
		v.text("Tool", c.Tool, 1, MaxTool)
		v.toolName("Tool", c.Tool)
		v.text("Hash", c.Hash, 0, MaxHash)
	case *Repair:
		v.of = "Repair"
		v.request(c.NS, c.By)
		v.optional("Client", c.Client)
		between(&v, "NewerThan", c.NewerThan, 1, ids.MaxTime)
	case *PutRate:
		v.putRate(c)
	case *DeleteRate:
		v.of = "DeleteRate"
		v.request(c.NS, c.By)
		v.rate("Rate", c.Rate)
	case *TakeRate:
		v.takeRate(c)
	case *PutBudget:
		v.putBudget(c)
	case *AdjustBudget:
		v.adjustBudget(c)
	case *DeleteBudget:
		v.deleteBudget(c)
	case *Append:
		v.append(c)
	case *DeleteList:
		v.of = "DeleteList"
		v.request(c.NS, c.By)
		v.text("Key", c.Key, 1, MaxKey)
	case *Signal:
		v.signal(c)
	case *Ask:
		v.ask(c)
	case *Decide:
		v.decide(c)
	case *CancelApproval:
		v.cancelApproval(c)
	case *PutStanding:
		v.putStanding(c)
	case *DeleteStanding:
		v.of = "DeleteStanding"
		v.request(c.NS, c.By)
		v.id("ID", c.ID)
	case *Swept:
		v.of = "Swept"
		v.namespace(c.NS)
		v.target(c.Target)
	case *PutToken:
		v.putToken(c)
	case *RevokeToken:
		v.revokeToken(c)
	case *Deny:
		v.deny(c)
	case *Allow:
		v.of = "Allow"
		v.access(c.NS, c.By)
		v.text("Subject", c.Subject, 1, MaxSubject)
	case *UseToken:
		v.useToken(c)
	case *PutQuotas:
		v.of = "PutQuotas"
		v.access(c.NS, c.By)
		v.quotas(&c.Quotas)
	case *KeepKey:
		v.of = "KeepKey"
		v.access(c.NS, c.By)
		v.digest("Key", c.Key)
	case *Tick:
		v.tick(c)
	case *Restore:
	default:
		v.of = "Command"
		v.fail("Kind", fmt.Sprintf("%T is not a command; send one of those in log.proto", c))
	}
	if v.err != nil {
		return v.err
	}
	return nil
}

// A validator keeps the first thing that is wrong with a command.
type validator struct {
	of  string // name of the command
	err *FieldError
}

func (v *validator) fail(field, problem string) {
	if v.err == nil {
		v.err = &FieldError{v.of + "." + field, problem}
	}
}

func (v *validator) open(c *Open) {
	v.of = "Open"
	v.namespace(c.NS)
	v.id("Session", c.Session)
	v.id("Agent", c.Agent)
	v.optional("Policy", c.Policy)
	v.digest("Digest", c.Digest)
	between(v, "IdleTTL", c.IdleTTL, MinTTL, MaxIdleTTL)
	v.optional("Parent", c.Parent)
	v.count("Attributes", len(c.Attributes), 0, MaxAttributes)
	for i, a := range c.Attributes {
		if v.err != nil {
			return
		}
		field := fmt.Sprintf("Attributes[%d]", i)
		v.text(field+".Name", a.Name, 1, MaxAttribute)
		v.free(field+".Value", a.Value, MaxAttribute)
		v.length(field, len(a.Name)+len(a.Value), 1, MaxAttribute)
		if i > 0 && a.Name <= c.Attributes[i-1].Name {
			v.fail(field+".Name", "is not behind the one before it; order attributes by name and give each once")
		}
	}
}

func (v *validator) begin(c *Begin) {
	v.of = "Begin"
	v.namespace(c.NS)
	v.id("Session", c.Session)
	v.id("Call", c.Call)
	between(v, "CallKind", c.CallKind, Tool, Sampling)
	least := 0
	if c.CallKind == Tool || c.CallKind == Sampling {
		least = 1
	}
	v.text("Tool", c.Tool, least, MaxTool)
	if c.CallKind == Tool { // of sampling it is the label of a server
		v.toolName("Tool", c.Tool)
	}
	v.digest("Digest", c.Digest)
	v.premises(c.Seen)
	between(v, "Verdict.Rule", c.Verdict.Rule, 0, MaxRule)
	v.wants(c.Pools)
	between(v, "TTL", c.TTL, MinTTL, MaxTTL)
	between(v, "MaxHold", c.MaxHold, 0, MaxHold)
	between(v, "Wait", c.Wait, 0, MaxWait)
	between(v, "Tokens", c.Tokens, 0, MaxCallTokens)
	v.rates(c)
	v.charges(c.Budgets)
	v.asking(c)
	between(v, "Opened", c.Opened, 0, MaxDuration)
}

func (v *validator) premises(seen []Premise) {
	v.count("Seen", len(seen), 0, MaxPremises)
	for i := range seen {
		p := &seen[i]
		switch {
		case v.err != nil:
			return
		case p.Fact < FactCalls || p.Fact > FactElapsed:
			v.fail(fmt.Sprintf("Seen[%d].Fact", i), "is not a fact that govnode holds")
		case p.Fact == FactToolCalls:
			v.text(fmt.Sprintf("Seen[%d].Name", i), p.Name, 1, MaxTool)
		case p.Name != "":
			v.fail(fmt.Sprintf("Seen[%d].Name", i), "is for the calls of a tool alone; leave it empty")
		}
		if p.Lo > p.Hi {
			v.fail(fmt.Sprintf("Seen[%d].Lo", i), "is above Hi, so that the premise can never hold")
		}
	}
}

// wants holds to the order in which pools are taken, since calls that take them
// in different orders could wait for each other.
func (v *validator) wants(pools []Want) {
	v.count("Pools", len(pools), 1, MaxPools+1)
	for i := range pools {
		w := &pools[i]
		switch {
		case v.err != nil:
			return
		case i == 0:
			if !strings.HasPrefix(w.Pool, policyPrefix) {
				v.fail("Pools[0].Pool", "has to be the pool of the policy, policy/NAME")
			} else if problem := badPool(w.Pool); problem != "" {
				v.fail("Pools[0].Pool", problem)
			}
		default:
			if problem := badOwnPool(w.Pool); problem != "" {
				v.fail(fmt.Sprintf("Pools[%d].Pool", i), problem)
			} else if i > 1 && w.Pool <= pools[i-1].Pool {
				v.fail(fmt.Sprintf("Pools[%d].Pool", i), "is not behind the one before it; order pools by name and name each once")
			}
		}
		if w.Weight < 1 || w.Weight > MaxSlots {
			v.fail(fmt.Sprintf("Pools[%d].Weight", i), outside(w.Weight, 1, MaxSlots))
		}
	}
}

func (v *validator) end(c *End) {
	v.of = "End"
	v.namespace(c.NS)
	v.id("Session", c.Session)
	v.id("Call", c.Call)
	v.pools(c.Pools, MaxPools+1+MaxRates)
	v.count("Rates", len(c.Rates), 0, MaxRates)
	for i, rate := range c.Rates {
		if problem := badPool(rate); problem != "" && v.err == nil {
			v.fail(fmt.Sprintf("Rates[%d]", i), problem)
		}
	}
	between(v, "Status", c.Status, Succeeded, Cancelled)
	if c.Tokens > MaxCallTokens {
		v.fail("Tokens", outside(c.Tokens, 0, MaxCallTokens))
	}
	between(v, "Output.Score", c.Output.Score, 0, million)
	v.free("Output.Text", c.Output.Text, MaxSealedOutput)
	v.spent(c)
	between(v, "Opened", c.Opened, 0, MaxDuration)
}

func (v *validator) cancel(c *Cancel) {
	v.of = "Cancel"
	v.namespace(c.NS)
	v.maker("Client", c.Client, c.Session)
	v.id("Call", c.Call)
	v.pools(c.Pools, MaxPools+1+MaxRates)
	if c.Asked && c.Session == "" {
		v.fail("Asked", "is of calls; a wait for a slot has no approval")
	}
	v.opened(c.Opened, c.Session)
	between(v, "Heard", c.Heard, 0, MaxDuration)
}

func (v *validator) close(c *Close) {
	v.of = "Close"
	v.namespace(c.NS)
	v.id("Session", c.Session)
	v.pools(c.Pools, MaxClosePools)
	v.text("Reason", c.Reason, 0, MaxReason)
	v.names("Asked", c.Asked, MaxOpen)
	between(v, "Opened", c.Opened, 0, MaxDuration)
}

// opened checks the premise of a command that may be of a session, and may be of a slot
// that a client holds.
func (v *validator) opened(at time.Duration, session string) {
	between(v, "Opened", at, 0, MaxDuration)
	if at != 0 && session == "" {
		v.fail("Opened", "is of sessions; leave it out where none is named")
	}
}

func (v *validator) acquire(c *Acquire) {
	v.of = "Acquire"
	v.namespace(c.NS)
	v.id("Client", c.Client)
	v.id("Slot", c.Slot)
	v.ownPool("Pool", c.Pool)
	between(v, "Weight", c.Weight, 1, MaxSlots)
	between(v, "TTL", c.TTL, MinTTL, MaxTTL)
	between(v, "MaxHold", c.MaxHold, 0, MaxHold)
	between(v, "Wait", c.Wait, 0, MaxWait)
	v.text("Label", c.Label, 0, MaxTool)
}

func (v *validator) renew(c *Renew) {
	v.of = "Renew"
	v.namespace(c.NS)
	v.maker("Client", c.Client, c.Session)
	v.id("ID", c.ID)
	v.pools(c.Pools, MaxPools+1+MaxRates)
	between(v, "TTL", c.TTL, MinTTL, MaxTTL)
	v.opened(c.Opened, c.Session)
}

func (v *validator) release(c *Release) {
	v.of = "Release"
	v.namespace(c.NS)
	v.id("Client", c.Client)
	v.id("Slot", c.Slot)
	v.ownPool("Pool", c.Pool)
}

func (v *validator) forceRelease(c *ForceRelease) {
	v.of = "ForceRelease"
	v.request(c.NS, c.By)
	v.maker("Holder", c.Holder, c.Session)
	v.id("ID", c.ID)
	v.pools(c.Pools, MaxPools+1+MaxRates)
}

func (v *validator) putPool(c *PutPool) {
	v.of = "PutPool"
	v.request(c.NS, c.By)
	v.ownPool("Pool", c.Pool)
	between(v, "Slots", c.Slots, 1, MaxSlots)
	between(v, "Threshold", c.Threshold, 0, MaxSlots)
	between(v, "Queue", c.Queue, 0, MaxQueue)
}

func (v *validator) putPolicy(c *PutPolicy) {
	v.of = "PutPolicy"
	v.request(c.NS, c.By)
	v.id("Name", c.Name)
	v.digest("Digest", c.Digest)
	v.length("Tree", len(c.Tree), 1, MaxTree)
	l := &c.Limits
	between(v, "Limits.MaxTokens", l.MaxTokens, 0, 1<<62)
	between(v, "Limits.Timeout", l.Timeout, 0, MaxDuration)
	between(v, "Limits.MaxConcurrent", l.MaxConcurrent, 1, MaxSlots)
	between(v, "Limits.Backpressure", l.Backpressure, 0, 1<<30)
	between(v, "Limits.Drift", l.Drift, 0, million)
	v.count("Limits.PerTool", len(l.PerTool), 0, MaxToolLimits)
	for i, t := range l.PerTool {
		if v.err != nil {
			return
		}
		field := fmt.Sprintf("Limits.PerTool[%d].Tool", i)
		v.text(field, t.Tool, 1, MaxTool)
		v.toolName(field, t.Tool)
		if i > 0 && t.Tool <= l.PerTool[i-1].Tool {
			v.fail(field, "is not behind the one before it; order limits by tool and give each once")
		}
	}
	for i, k := range l.Kinds {
		field := fmt.Sprintf("Limits.Kinds[%d].Kind", i)
		between(v, field, k.Kind, Model, Sampling)
		if i > 0 && k.Kind <= l.Kinds[i-1].Kind {
			v.fail(field, "is not behind the one before it; order limits by kind and give each once")
		}
	}
	between(v, "Limits.BreakerReset", l.BreakerReset, 0, MaxHold)
}

func (v *validator) deletePolicy(c *DeletePolicy) {
	v.of = "DeletePolicy"
	v.request(c.NS, c.By)
	v.optional("Name", c.Name)
	v.digest("Digest", c.Digest)
	v.count("Names", len(c.Names), 0, MaxNames)
	for i, n := range c.Names {
		if v.err != nil {
			return
		}
		field := fmt.Sprintf("Names[%d]", i)
		v.id(field, n)
		if i > 0 && n <= c.Names[i-1] {
			v.fail(field, "is not behind the one before it; order names and give each once")
		}
	}
}

func (v *validator) set(c *Set) {
	v.of = "Set"
	v.request(c.NS, c.By)
	v.text("Key", c.Key, 1, MaxKey)
	v.free("Value.Text", c.Value.Text, MaxText)
	switch {
	case c.Value.Number && c.Value.Text != "":
		v.fail("Value.Text", "stands beside a number; give one of the two")
	case !c.Value.Number && c.Value.N != 0:
		v.fail("Value.N", "stands beside a text; give one of the two")
	}
	between(v, "TTL", c.TTL, 0, MaxDuration)
	v.ifVersion(c.IfVersion)
}

func (v *validator) ifVersion(version string) {
	if version != "" && !IsVersion(version) {
		v.fail("IfVersion", "is no version; give the one that a read answered, or "+Absent+" for a key that is absent")
	}
}

func (v *validator) tick(c *Tick) {
	v.of = "Tick"
	v.count("Keys", len(c.Keys), 0, MaxTick)
	for i, k := range c.Keys {
		if v.err == nil && !k.wellFormed() {
			v.fail(fmt.Sprintf("Keys[%d]", i), "is not the key of a record")
		}
	}
}

// clusterKinds are of what the reserved namespace has: who may do what, and what is
// remembered of the requests that changed it.
const clusterKinds = string(rune(KindAccess)) + string(rune(KindClient)) + string(rune(KindNamespace))

// wellFormed reports whether the key is a letter for a kind, a namespace, a
// slash and a name.
func (k Key) wellFormed() bool {
	if len(k) < 3 || strings.IndexByte(letters, k[0]) < 0 {
		return false
	}
	i := strings.IndexByte(string(k), '/')
	if i <= 1 || badNamespace(string(k[1:i])) != "" && !(k[1:i] == ClusterNamespace && strings.IndexByte(clusterKinds, k[0]) >= 0) {
		return false
	}
	name, most := string(k[i+1:]), MaxKey
	if k[0] == KindList {
		if ok, _ := ofList(name); !ok {
			return false
		}
		most += listSuffix
	}
	return len(name) <= most
}
