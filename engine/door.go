package engine

import (
	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/edictum/workflow"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// What callers need of the rooms below this folder, under the names they know.
// They import this package alone.

// What a policy is written in.
type (
	File      = source.File
	Tree      = source.Tree
	Digest    = source.Digest
	Problem   = source.Problem
	LoadError = source.LoadError
)

// MaxTreeBytes caps all paths and contents of a tree together.
const MaxTreeBytes = source.MaxTreeBytes

// NewTree builds a tree from files in any order; see [source.NewTree].
func NewTree(files []File) (*Tree, error) { return source.NewTree(files) }

// SingleFile is a tree of one file, named policy.yaml.
func SingleFile(yaml string) (*Tree, error) { return source.SingleFile(yaml) }

// DecodeTree reads what [Tree.Encode] wrote.
func DecodeTree(b []byte) (*Tree, error) { return source.DecodeTree(b) }

// ParseDigest reads what [Digest.String] prints.
func ParseDigest(s string) (Digest, error) { return source.ParseDigest(s) }

// What is judged.
type (
	Input    = call.Input
	Kind     = call.Kind
	Order    = call.Order
	Facts    = call.Facts
	FactKind = call.FactKind
	Premise  = call.Premise
)

// What an Edictum ruleset says of a call and of what it has returned.
type (
	RuleRecord = edictum.Record
	Output     = edictum.Output
	Review     = edictum.Result
)

// What a workflow of Edictum says of a call, and how far a session has come in it.
type (
	Workflow        = workflow.Definition
	WorkflowState   = workflow.State
	WorkflowVerdict = workflow.Verdict
	WorkflowCall    = workflow.Call
	WorkflowRunning = workflow.Running
)

// What rules and workflows decide.
const (
	RuleAllows = edictum.Allow
	RuleBlocks = edictum.Block
	RuleAsks   = edictum.Ask
)

// WorkflowCallOf reads a call as workflows see it.
func WorkflowCallOf(tool string, args value.Value) *WorkflowCall { return workflow.CallOf(tool, args) }

// WorkflowKey is the key of the value that is the state of a session in a workflow.
func WorkflowKey(session, name string) string { return workflow.Key(session, name) }

// WorkflowSession is the session whose state in a workflow has a key; empty of another key.
func WorkflowSession(key string) string { return workflow.SessionOf(key) }

// WorkflowOpen is how many calls run by a state as it is written; 0 where it is none.
func WorkflowOpen(state string) int { return workflow.OpenIn(state) }

// WorkflowKept is for how long a state is kept behind its last change.
const WorkflowKept = workflow.Kept

// Unreviewed is the review of an output that cannot be judged: nothing of it is shown.
func Unreviewed(why string) Review { return edictum.Unjudged(why) }

// An Approval is how people are asked about a call.
type Approval = governance.Approval

// A RateLimit is a rate that a policy holds calls to.
type RateLimit = governance.RateLimit

// Who shares a rate.
const (
	ScopeSession   = governance.ScopeSession
	ScopeAgent     = governance.ScopeAgent
	ScopePolicy    = governance.ScopePolicy
	ScopeNamespace = governance.ScopeNamespace
)

// The kinds of calls, the orders of checks, and the facts.
const (
	KindTool     = call.KindTool
	KindModel    = call.KindModel
	KindAgent    = call.KindAgent
	KindHandoff  = call.KindHandoff
	KindSampling = call.KindSampling

	OrderUnion       = call.OrderUnion
	OrderInterceptor = call.OrderInterceptor
	OrderPreExecute  = call.OrderPreExecute

	CallCount   = call.CallCount
	Attempts    = call.Attempts
	TokensUsed  = call.TokensUsed
	ToolCalls   = call.ToolCalls
	ActiveSlots = call.ActiveSlots
	Elapsed     = call.Elapsed
)

// WithMetadata returns the context of a call that brought metadata; see
// [call.WithMetadata].
func WithMetadata(ctx, metadata value.Value) value.Value { return call.WithMetadata(ctx, metadata) }

// Who else is asked.
type (
	Backend         = external.Backend
	BackendInput    = external.BackendInput
	BackendDecision = external.BackendDecision
	BackendLoader   = external.BackendLoader
	GuardrailCall   = external.GuardrailCall
	GuardrailResult = external.GuardrailResult
)

// What guardrails answer.
const (
	GuardrailAllow  = external.GuardrailAllow
	GuardrailDeny   = external.GuardrailDeny
	GuardrailModify = external.GuardrailModify
)

// Redact replaces personal data and credentials in a text; see [redact.Text].
func Redact(text string) string { return redact.Text(text) }

// RedactValue is Redact for the texts in a tree, and for what stands under names of
// secrets.
func RedactValue(v value.Value) value.Value { return redact.Value(v) }

// Caps of the numbers of a policy.
const (
	MaxTokenLimit      = governance.MaxTokenLimit
	MaxTimeoutSeconds  = governance.MaxTimeoutSeconds
	MaxConcurrentCalls = governance.MaxConcurrentCalls
	MaxToolLimits      = governance.MaxToolLimits
	MaxToolName        = governance.MaxToolName
)

// What backends prescribe.
const (
	Allow = document.Allow
	Deny  = document.Deny
	Ask   = document.Ask
)
