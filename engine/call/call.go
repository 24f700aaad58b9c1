package call

import (
	"strings"
	"time"

	"example.com/govnode/engine/value"
)

// An Input is one call to be judged.
type Input struct {
	Tool      string // name of the tool; empty takes context.tool_name
	Kind      Kind
	AgentID   string // empty takes context.agent_id
	SessionID string // set when a session of the service makes the call
	CallID    string
	Arguments value.Value // mapping; null takes context.arguments
	Context   value.Value // mapping; see WithMetadata
	Facts     *Facts      // nil without a session
	Order     Order
	Now       time.Time // for the audit record; zero means the present

	// Env returns a variable that was pinned for the session; it wins over env of the
	// context. Nil means none.
	Env func(name string) (text string, ok bool)

	// ContentHash returns the hash that is registered for a tool outside the
	// tree; nil means none. The tree's own hashes come first.
	ContentHash func(tool string) (hash string, ok bool)

	// CheckLimits has the call count and the timeout judged on Facts too. The
	// one who reserves calls in an ordered log leaves it off: there the log
	// decides, and a refusal has an outcome of its own.
	CheckLimits bool
	// Explain fills Decision.Trace.
	Explain bool
}

// A Kind is what sort of call is judged.
type Kind uint8

// The kinds of calls. KindTool is the zero value.
const (
	KindTool Kind = iota
	KindModel
	KindAgent
	KindHandoff
	KindSampling // of a server, which asks for a completion
)

// String is the action_type of adapter contract 3.11.1.
func (k Kind) String() string {
	switch k {
	case KindModel:
		return "model_call"
	case KindAgent:
		return "agent_call"
	case KindHandoff:
		return "handoff"
	case KindSampling:
		return "sampling_request"
	}
	return "tool_call"
}

// An Order is the order of the checks of a GovernancePolicy. It decides which
// reason a call that fails several of them is given, never whether it is
// denied: every order runs every check.
type Order uint8

// The orders of checks.
const (
	// OrderUnion is the interceptor's order (policy engine spec 10.3) followed
	// by confidence.
	OrderUnion Order = iota
	// OrderInterceptor is that of adapter contract 5.4; what it does not name
	// follows.
	OrderInterceptor
	// OrderPreExecute is that of adapter contract 3.6.1, with its texts; the
	// allowed tools, which it does not name, follow.
	OrderPreExecute
)

// WithMetadata returns the context of a call that brought metadata, a mapping or
// null. In it metadata is what the request brought and nothing else: what the
// context says under that name, or under a literal key metadata.NAME, which
// would hide it, is the agent's word and is left out.
func WithMetadata(ctx, metadata value.Value) value.Value {
	claims := func(key string) bool { return key == "metadata" || strings.HasPrefix(key, "metadata.") }
	claimed := false
	for k := range ctx.All() {
		claimed = claimed || claims(k)
	}
	if claimed {
		pairs := make([]value.Pair, 0, ctx.Len())
		for k, v := range ctx.All() {
			if !claims(k) {
				pairs = append(pairs, value.Pair{Key: k, Value: v})
			}
		}
		ctx = value.OfMap(pairs...)
	}
	if metadata.Len() == 0 {
		return ctx
	}
	if ctx.Kind() != value.Map {
		ctx = value.OfMap()
	}
	return ctx.With("metadata", metadata)
}
