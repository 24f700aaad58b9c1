package session

import "time"

// A Command asks for a change. The set is closed; see the package comment for
// how to add one.
type Command interface {
	// Touches lists the records that applying the command may read or write.
	// It depends on the command alone, so that a backend can fetch them first; see
	// Footprint.
	Touches() []Key
	// Kind is the command's number in log.proto, the same for ever.
	Kind() uint16
	// Namespace is in which namespace the command works; empty if in all.
	Namespace() string
	// Authority is who asked for the command, and by what it was judged; nil
	// where that is not known.
	Authority() *Authority
}

// CallKind says what a call is. Attempts count all kinds, calls count tool and
// model calls, per-tool limits count tool calls.
type CallKind uint8

const (
	Tool CallKind = iota
	Model
	Agent
	Handoff
	Sampling // of a server, whose label is the tool; counts in its own limit alone
)

// Status says how a call ended.
type Status uint8

const (
	Succeeded Status = iota + 1
	Failed
	Cancelled
)

// Limits are the numbers that a policy imposes on the sessions that pin it
// (policy engine spec 8.2, and the operation limits beside it).
type Limits struct {
	MaxTokens     int64
	MaxToolCalls  uint32
	MaxAttempts   uint32
	PerTool       []ToolLimit // by tool
	Timeout       time.Duration
	MaxConcurrent int32
	Backpressure  int32
	Checkpoint    uint32 // every so many executions
	Drift         int64  // threshold in millionths; 0 means that drift is not computed

	Kinds        []KindLimit // by kind
	MaxFailures  uint32      // in a row, until the breaker opens; 0: there is none
	BreakerReset time.Duration
}

// A KindLimit bounds the calls of one kind in a session; of sampling, those of
// one server.
type KindLimit struct {
	Kind CallKind
	Max  uint32
}

// A ToolLimit bounds the calls of one tool in a session.
type ToolLimit struct {
	Tool string
	Max  uint32
}

// An Attr is a name and a value that the maker of a session gave it.
type Attr struct{ Name, Value string }

// A Verdict is what the pinned policy said, on the node that received the call.
type Verdict struct {
	Allow bool
	Rule  uint16 // number of the rule in the pinned tree; 0 if none decided
}

// A Fact is a number that the service holds and that a rule may look at.
type Fact uint8

const (
	FactCalls       Fact = iota + 1 // call_count
	FactAttempts                    // attempts
	FactTokens                      // tokens_used
	FactToolCalls                   // tool_calls.<Name>
	FactActiveSlots                 // active_slots, of the policy's pool
	FactElapsed                     // nanoseconds since the session began
)

// A Premise is what a verdict took for granted: the fact stands within the
// range, ends included. If it does not, the command is answered StalePremise
// and counts nothing.
type Premise struct {
	Fact   Fact
	Name   string
	Lo, Hi int64
}

// A Want is a slot that a call asks for.
type Want struct {
	Pool   string
	Weight int32
}

// A Maker says whose request a command is, and under which id it is remembered
// there: requests in the record of the client that made them.
type Maker struct {
	Client  string
	Request string
	Content Fingerprint
}

type (
	// Open starts a session (adapter contract 3.5). Digest is the tree that was
	// evaluated to belong to Policy; if Name points elsewhere by now, the
	// answer is StalePremise. So it is where Over is not what a session of this
	// id still pins that is over and was not dropped yet: After has that session.
	Open struct {
		Authorized
		NS, Session string
		Content     Fingerprint
		Agent       string
		Policy      string // name; empty if the caller named the digest
		Digest      Digest
		IdleTTL     time.Duration
		Parent      string
		Attributes  []Attr // by name
		Over        Digest // premise; zero, as a rule
		Token       Digest // SHA-256 of the secret that calls of the session bring; zero: they need none
	}

	// Begin asks to run one call. It is also how a waiter claims its slot: the
	// same command again.
	Begin struct {
		Authorized
		NS, Session, Call string
		Content           Fingerprint
		CallKind          CallKind
		Tool              string
		Digest            Digest    // premise: the tree that was evaluated
		Seen              []Premise // premise: what its verdict looked at
		Hashes            uint64    // premise: by which registered hashes it was judged; see Signals
		Verdict           Verdict
		Pools             []Want // the policy's pool first, then by name
		TTL, MaxHold      time.Duration
		Wait              time.Duration
		Priority          int32
		Tokens            int64
		Rates             []RateWant    // by name
		Budgets           []Charge      // by name, with all ancestors
		Asking            *Asking       // if the verdict asks; it does not allow then
		Asked             bool          // premise: an approval was asked for before
		Opened            time.Duration // premise: see judged
	}

	// End reports that a call has finished. Pools is a premise: where it holds
	// slots. Tokens below 0 means that what was reserved was used.
	End struct {
		Authorized
		NS, Session, Call string
		Pools             []string
		Status            Status
		Tokens            int64
		Output            Output
		Rates             []string // premise: where it has spent what its end corrects
		Spent             []Bill
		Budgets           []string      // premise: what it was charged to
		Content           Fingerprint   // of the Begin that it ends; not looked at where it is zero
		Opened            time.Duration // premise: see judged
	}

	// Cancel gives up a call that waits, or a wait for a slot if Client is set.
	Cancel struct {
		Authorized
		NS, Session, Call string
		Client            string
		Pools             []string
		Asked             bool          // premise: the call waits for an approval
		Opened            time.Duration // premise: see judged; of a call alone
		// Heard is a premise, of whoever gives up a place because nobody seems to want it: since
		// that log time nothing was heard of it. Zero: the one who waits gives it up.
		Heard time.Duration
	}

	// Close ends a session and frees its slots. Pools, Digest and Asked, the calls
	// that wait for approvals, are premises.
	Close struct {
		Authorized
		NS, Session string
		Pools       []string
		Digest      Digest
		Killed      bool
		Reason      string // of the KILL
		Asked       []string
		Opened      time.Duration // premise: see judged
	}

	// Acquire asks for a slot of a pool; sent again, it claims the slot of a
	// waiter.
	Acquire struct {
		Authorized
		NS, Client, Slot string
		Content          Fingerprint
		Pool             string
		Weight           int32
		TTL, MaxHold     time.Duration
		Wait             time.Duration
		Priority         int32
		Label            string
	}

	// Renew keeps a slot, or all slots of a call if Session is set, or the
	// place of a waiter.
	Renew struct {
		Authorized
		NS, Client, Session string
		ID                  string // of the slot or the call
		Pools               []string
		Token               uint64
		TTL                 time.Duration
		Opened              time.Duration // premise: see judged; of a call alone
	}

	// Release gives a slot back.
	Release struct {
		Authorized
		NS, Client, Slot string
		Pool             string
		Token            uint64
	}

	// ForceRelease frees the slot of a holder that does not give it back: of
	// HolderClient, or of a call if Session is set; then all slots of the call
	// go, and it is settled as lapsed.
	ForceRelease struct {
		Authorized
		NS      string
		By      Maker
		Session string
		Holder  string // client
		ID      string
		Pools   []string
	}

	// PutPool makes or changes a pool.
	PutPool struct {
		Authorized
		NS        string
		By        Maker
		Pool      string
		Slots     int32
		Threshold int32
		Queue     int32
	}

	// DeletePool removes a pool. Its tokens are not given out again.
	DeletePool struct {
		Authorized
		NS    string
		By    Maker
		Pool  string
		Force bool
	}

	// PutPolicy stores a tree and lets its name point to it.
	PutPolicy struct {
		Authorized
		NS     string
		By     Maker
		Name   string
		Digest Digest
		Tree   []byte
		Limits Limits
	}

	// DeletePolicy removes a tree that nobody pins, and Name if it is not
	// empty; Digest is then the premise of what it points to.
	DeletePolicy struct {
		Authorized
		NS     string
		By     Maker
		Name   string
		Digest Digest
		Names  []string // premise: all names that point to Digest
	}

	// Set writes a counter or a text.
	Set struct {
		Authorized
		NS    string
		By    Maker
		Key   string
		Value Value
		TTL   time.Duration // 0: no end
		// IfVersion is the version that the key must have; empty: any.
		IfVersion string
	}

	// Delete removes a counter or a text.
	Delete struct {
		Authorized
		NS        string
		By        Maker
		Key       string
		IfVersion string // as of Set
	}

	// Increment adds to a counter.
	Increment struct {
		Authorized
		NS     string
		By     Maker
		Key    string
		Amount int64 // millionths
	}

	// PutHash registers the content hash of a tool (adapter contract 5.5); an
	// empty Hash removes it.
	PutHash struct {
		Authorized
		NS   string
		By   Maker
		Tool string
		Hash string
	}

	// Repair lowers what was forgotten in a namespace, after an id dated in the
	// future had raised it: ids newer than NewerThan are taken again. Where a
	// client is named, its own record is lowered too; for that it forgets all
	// the ids that it finished.
	Repair struct {
		Authorized
		NS        string
		By        Maker
		Client    string // optional
		NewerThan uint64 // Unix milliseconds
	}

	// Tick moves time and settles the records named, which changes no answer.
	// What has ended there lets go of what it held elsewhere: a session of its
	// pin, and whoever is dropped of the ids it remembered; therefore Keys
	// names the records of pins and namespaces as well.
	Tick struct{ Keys []Key }

	// Restore is the first command after a snapshot was restored by an
	// operator: it raises the generation of tokens and ends all leases. It is
	// applied to a whole state only.
	Restore struct{}
)

// Output is what EndCall was told about the output of a call, for drift
// (adapter contract 3.12).
type Output struct {
	Hash    Digest // of the output's text; zero if there was none
	Against Digest // premise: the baseline that Score compares with; zero if none
	Score   int64  // millionths
	Text    string // bounded; kept as the baseline if there is none yet
}

// A Value is a number or a text under a key of the storage protocol.
type Value struct {
	Number bool
	N      int64 // millionths
	Text   string
}

// PolicyPool returns the name of the pool of a policy.
func PolicyPool(policy string) string { return "policy/" + policy }

func poolKeys(ns string, pools []string, more ...Key) []Key {
	for _, p := range pools {
		more = append(more, PoolKey(ns, p))
	}
	return more
}

func (c *Open) Touches() []Key {
	keys := []Key{
		SessionKey(c.NS, c.Session), NamespaceKey(c.NS), BaselineKey(c.NS, c.Session),
		PolicyKey(c.NS, c.Digest), PinsKey(c.NS, c.Digest, c.Session), SignalsKey(c.NS),
	}
	if c.Policy != "" {
		keys = append(keys, NameKey(c.NS, c.Policy))
	}
	if c.Over != (Digest{}) && c.Over != c.Digest {
		keys = append(keys, PinsKey(c.NS, c.Over, c.Session))
	}
	return keys
}

func (c *Begin) Touches() []Key {
	keys := []Key{SessionKey(c.NS, c.Session), SignalsKey(c.NS)}
	for _, w := range c.Pools {
		keys = append(keys, PoolKey(c.NS, w.Pool))
	}
	for i := range c.Rates {
		keys = append(keys, PoolKey(c.NS, c.Rates[i].Pool))
	}
	for i := range c.Budgets {
		keys = append(keys, BudgetKey(c.NS, c.Budgets[i].Budget))
	}
	if c.namesApproval() {
		keys = append(keys, ApprovalKey(c.NS, ApprovalID(c.NS, c.Session, c.Call)))
	}
	if c.Asking != nil {
		for _, id := range c.standings() {
			keys = append(keys, StandingKey(c.NS, id))
		}
	}
	return keys
}

func (c *End) Touches() []Key {
	return budgetKeys(c.NS, c.Budgets, poolKeys(c.NS, c.Rates, poolKeys(c.NS, c.Pools, SessionKey(c.NS, c.Session), BaselineKey(c.NS, c.Session))...))
}

func (c *Cancel) Touches() []Key {
	keys := poolKeys(c.NS, c.Pools, makerKey(c.NS, c.Client, c.Session))
	if c.Asked {
		keys = append(keys, ApprovalKey(c.NS, ApprovalID(c.NS, c.Session, c.Call)))
	}
	if c.Session == "" {
		keys = append(keys, NamespaceKey(c.NS))
	}
	return keys
}

func (c *Close) Touches() []Key {
	keys := poolKeys(c.NS, c.Pools, SessionKey(c.NS, c.Session), PinsKey(c.NS, c.Digest, c.Session))
	return approvalKeys(c.NS, c.Session, c.Asked, keys)
}

func (c *Acquire) Touches() []Key {
	return []Key{ClientKey(c.NS, c.Client), PoolKey(c.NS, c.Pool), NamespaceKey(c.NS)}
}

func (c *Renew) Touches() []Key { return poolKeys(c.NS, c.Pools, makerKey(c.NS, c.Client, c.Session)) }

func (c *Release) Touches() []Key {
	return []Key{ClientKey(c.NS, c.Client), PoolKey(c.NS, c.Pool), NamespaceKey(c.NS)}
}

func (c *ForceRelease) Touches() []Key {
	return poolKeys(c.NS, c.Pools, append(c.By.touches(c.NS), makerKey(c.NS, c.Holder, c.Session))...)
}

func (c *PutPool) Touches() []Key { return append(c.By.touches(c.NS), PoolKey(c.NS, c.Pool)) }

func (c *DeletePool) Touches() []Key { return append(c.By.touches(c.NS), PoolKey(c.NS, c.Pool)) }

func (c *PutPolicy) Touches() []Key {
	return append(c.By.touches(c.NS), PolicyKey(c.NS, c.Digest), NameKey(c.NS, c.Name))
}

func (c *DeletePolicy) Touches() []Key {
	keys := append(c.By.touches(c.NS), PolicyKey(c.NS, c.Digest))
	if c.Name != "" {
		keys = append(keys, NameKey(c.NS, c.Name))
	}
	for _, n := range c.Names {
		if n != c.Name {
			keys = append(keys, NameKey(c.NS, n))
		}
	}
	return append(keys, PinsKeys(c.NS, c.Digest)...)
}

func (c *Set) Touches() []Key       { return append(c.By.touches(c.NS), CounterKey(c.NS, c.Key)) }
func (c *Delete) Touches() []Key    { return append(c.By.touches(c.NS), CounterKey(c.NS, c.Key)) }
func (c *Increment) Touches() []Key { return append(c.By.touches(c.NS), CounterKey(c.NS, c.Key)) }
func (c *PutHash) Touches() []Key {
	return append(c.By.touches(c.NS), HashKey(c.NS, c.Tool), SignalsKey(c.NS))
}

func (c *Repair) Touches() []Key {
	keys := c.By.touches(c.NS)
	if c.Client != "" && c.Client != c.By.Client {
		keys = append(keys, ClientKey(c.NS, c.Client))
	}
	return keys
}

func (c *Tick) Touches() []Key    { return c.Keys }
func (c *Restore) Touches() []Key { return nil }

func (m Maker) touches(ns string) []Key { return []Key{ClientKey(ns, m.Client), NamespaceKey(ns)} }

// makerKey names the record that remembers an id: the session's if there is
// one, else the client's.
func makerKey(ns, client, session string) Key {
	if session != "" {
		return SessionKey(ns, session)
	}
	return ClientKey(ns, client)
}

func (*Open) Kind() uint16         { return 1 }
func (*Begin) Kind() uint16        { return 2 }
func (*End) Kind() uint16          { return 3 }
func (*Cancel) Kind() uint16       { return 4 }
func (*Close) Kind() uint16        { return 5 }
func (*Acquire) Kind() uint16      { return 6 }
func (*Renew) Kind() uint16        { return 7 }
func (*Release) Kind() uint16      { return 8 }
func (*ForceRelease) Kind() uint16 { return 9 }
func (*PutPool) Kind() uint16      { return 10 }
func (*DeletePool) Kind() uint16   { return 11 }
func (*PutPolicy) Kind() uint16    { return 12 }
func (*DeletePolicy) Kind() uint16 { return 13 }
func (*Set) Kind() uint16          { return 14 }
func (*Delete) Kind() uint16       { return 15 }
func (*Increment) Kind() uint16    { return 16 }
func (*Tick) Kind() uint16         { return 17 }
func (*Restore) Kind() uint16      { return 18 }
func (*PutHash) Kind() uint16      { return 19 }
func (*Repair) Kind() uint16       { return 20 }
func (*Signal) Kind() uint16       { return 21 }
func (*Swept) Kind() uint16        { return 22 }

// Version is the newest kind of command that this build knows. A node
// announces it; what a member does not know is never proposed.
const Version = 42
