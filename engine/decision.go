package engine

import (
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/value"
)

// A Decision is the answer to an Input. It is never absent: what could not be
// judged is denied, with Error set (policy engine spec 16).
//
// A decision may also leave a call to people. Then it does not allow, so that
// whoever knows of two answers alone denies; Action is ask, Ask says how they are
// asked, and MatchedRule, Reason and Category say why. No rule, check or guardrail
// denies such a call.
type Decision struct {
	Allowed       bool
	Action        string   // allow, deny, audit, block or ask
	Policy        string   // the document, "folder-scoped" or "external:<backend>"
	MatchedRule   string   // empty where no rule decided
	Rule          uint16   // number of the text, see Policy.Recall; 0 for free texts
	Reason        string   // private detail: names rules and patterns
	PublicMessage string   // what an end user may read; empty on an allow
	Category      string   // of a denial; see the Category constants
	PolicyChain   []string // folder-scoped: names of the documents, root first
	Backend       string   // the external backend that decided
	Error         string   // why the call could not be judged

	// Records are what became of the rules of an Edictum ruleset that did not pass, or
	// with Input.Explain of all; RulesEvaluated is how many were looked at, SideEffect
	// what it says that the call may change, and Source which of its stages decided.
	Records        []edictum.Record
	RulesEvaluated int
	SideEffect     string
	Source         string

	// Ask is how people are to be asked about the call; nil where they are not.
	// It is shared and must not be written to.
	Ask *governance.Approval

	EvaluationTime    time.Duration // set by Evaluate; Decide leaves it to its caller
	BackendTime       time.Duration // part of it spent in Backend
	Premises          []call.Premise
	ModifiedArguments *value.Value // what to call the tool with instead
	GuardrailMetadata *value.Value // of those that gave some, by name; redacted
	Trace             []string     // with Input.Explain

	errorRule string // which rule could not be judged, for the audit alone
}

// Categories of denials: those of PolicyCheckResult in the adapter contract,
// then what an evaluator itself refuses.
const (
	CategoryRule            = "policy_rule"
	CategoryDefault         = "default_action"
	CategoryBackend         = "policy_backend"
	CategoryApproval        = "human_approval_required"
	CategoryNotAllowedTool  = "not_allowed_tool"
	CategoryPatternTool     = "blocked_pattern_tool"
	CategoryPatternInput    = "blocked_pattern_input"
	CategoryPatternOutput   = "blocked_pattern_output"
	CategoryPatternMemory   = "blocked_pattern_memory"
	CategoryPatternMessage  = "blocked_pattern_message"
	CategoryScan            = "scan"
	CategoryMaxToolCalls    = "max_tool_calls"
	CategoryTimeout         = "timeout"
	CategoryConfidence      = "confidence_threshold"
	CategoryDrift           = "drift"
	CategoryContentHash     = "content_hash"
	CategoryGuardrail       = "guardrail"
	CategoryPolicyError     = "policy_error"
	CategoryPathEscape      = "PATH_ESCAPE"
	CategoryNoPolicy        = "NO_POLICY"
	CategoryBudgetExhausted = "EVAL_BUDGET"
)

// publicNotPermitted is what the denials of rules, defaults and backends say.
const publicNotPermitted = "Action not permitted by governance policy."

// publicMessages say to an end user what happened without naming a rule or a
// pattern.
var publicMessages = map[string]string{
	CategoryRule:            publicNotPermitted,
	CategoryDefault:         publicNotPermitted,
	CategoryBackend:         publicNotPermitted,
	CategoryPathEscape:      publicNotPermitted,
	CategoryNoPolicy:        publicNotPermitted,
	CategoryGuardrail:       "Content blocked by governance policy.",
	CategoryPatternTool:     "Content blocked by governance policy.",
	CategoryPatternInput:    "Content blocked by governance policy.",
	CategoryPatternOutput:   "Content blocked by governance policy.",
	CategoryPatternMemory:   "Content blocked by governance policy.",
	CategoryPatternMessage:  "Content blocked by governance policy.",
	CategoryScan:            "Content blocked by governance policy.",
	CategoryNotAllowedTool:  "Tool not permitted by governance policy.",
	CategoryContentHash:     "Tool blocked by governance policy.",
	CategoryMaxToolCalls:    "Tool-call limit exceeded.",
	CategoryTimeout:         "Execution timeout exceeded.",
	CategoryApproval:        "Human approval required.",
	CategoryConfidence:      "Confidence below required threshold.",
	CategoryDrift:           "Behavioral drift detected.",
	CategoryPolicyError:     "Policy evaluation error.",
	CategoryBudgetExhausted: "Policy evaluation error.",
}
