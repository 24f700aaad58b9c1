package engine

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"

	"example.com/govnode/engine/value"
)

// A ToolCall is a vendor-neutral request to call a tool (policy engine spec
// 10.1, adapter contract 5.1).
type ToolCall struct {
	ToolName  string
	Arguments value.Value // mapping
	CallID    string
	AgentID   string
	Metadata  value.Value // mapping; content_hash is read from it
}

// A ToolResult is an interceptor's answer (policy engine spec 10.2).
type ToolResult struct {
	Allowed           bool
	Reason            string       // why not; empty on an allow
	ModifiedArguments *value.Value // what to call the tool with instead
	AuditEntry        value.Value  // null where there is none
}

// An Interceptor judges a tool call (adapter contract 5.3). It must be safe
// for concurrent use.
type Interceptor interface {
	Intercept(ctx context.Context, call ToolCall) ToolResult
}

func denied(format string, args ...any) ToolResult {
	return ToolResult{Reason: fmt.Sprintf(format, args...)}
}

// A PolicyInterceptor enforces a GovernancePolicy in the order of policy
// engine spec 10.3: approval, allowed tools, blocked patterns, call count.
type PolicyInterceptor struct {
	Governance *GovernancePolicy // validated
	// CallCount returns the calls made so far; nil leaves the count unchecked,
	// for those whose calls are reserved in an ordered log.
	CallCount func() int64
}

// Intercept checks one call. A policy that was not validated denies.
func (i *PolicyInterceptor) Intercept(_ context.Context, call ToolCall) ToolResult {
	g := i.Governance
	switch {
	case g == nil || g.patterns == nil:
		return denied("%s", textError)
	case g.RequireHumanApproval:
		return denied("%s", textApproval(call.ToolName))
	case g.DenyAllTools || (len(g.AllowedTools) > 0 && !slices.Contains(g.AllowedTools, call.ToolName)):
		return denied("%s", textNotAllowed(call.ToolName, g.AllowedTools))
	}
	args := call.Arguments
	if args.Kind() == value.Null {
		args = emptyArguments
	}
	if hits := g.MatchesArguments(args); len(hits) > 0 {
		return denied("%s", textPatternTool(hits[0], call.ToolName))
	}
	if i.CallCount != nil && i.CallCount() >= g.MaxToolCalls {
		return denied("%s", textMaxToolCalls(g.MaxToolCalls))
	}
	return ToolResult{Allowed: true}
}

// A ContentHashInterceptor verifies that the tool behind a name is the one
// that was registered (adapter contract 5.5, 21.1).
type ContentHashInterceptor struct {
	Log *slog.Logger // of tools that mode warn lets pass; nil means the default

	mode   ContentHashMode
	mu     sync.RWMutex
	hashes map[string]string
}

// NewContentHashInterceptor builds one from tool names and SHA-256 hashes.
func NewContentHashInterceptor(hashes map[string]string, mode ContentHashMode) (*ContentHashInterceptor, error) {
	if mode != ContentHashStrict && mode != ContentHashWarn {
		return nil, fmt.Errorf("content hash mode must be strict or warn, got %q", mode)
	}
	i := &ContentHashInterceptor{mode: mode, hashes: map[string]string{}}
	for _, tool := range sortedKeys(hashes) {
		if err := i.RegisterHash(tool, hashes[tool]); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// RegisterHash records the expected hash of a tool, in place of an earlier one.
func (i *ContentHashInterceptor) RegisterHash(tool, hash string) error {
	h, ok := parseContentHash(hash)
	if !ok || tool == "" {
		return fmt.Errorf("the content hash of %q must be 64 hexadecimal digits", tool)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hashes[tool] = h
	return nil
}

// Intercept compares the hash in the call's metadata with the registered one.
func (i *ContentHashInterceptor) Intercept(_ context.Context, call ToolCall) ToolResult {
	i.mu.RLock()
	want, known := i.hashes[call.ToolName]
	i.mu.RUnlock()
	verdict := compareHash(call.ToolName, want, known, contentHash(call.Metadata), i.mode == ContentHashStrict)
	if verdict.unknown {
		orDefault(i.Log).Warn("no content hash is registered for a tool, allowed in mode warn", "tool", Redact(call.ToolName))
	}
	return ToolResult{Allowed: verdict.allowed, Reason: verdict.reason}
}

// Intercept runs the chain as an Interceptor.
func (c *GuardrailChain) Intercept(ctx context.Context, call ToolCall) ToolResult {
	v := c.run(ctx, GuardrailCall{ToolName: call.ToolName, Args: call.Arguments, AgentName: call.AgentID, CallID: call.CallID}, false)
	switch {
	case v.err != nil:
		return denied("Policy evaluation error (fail-closed): guardrail %s: %v", v.by, v.err)
	case !v.allowed:
		return denied("%s", v.reason)
	case v.changed:
		return ToolResult{Allowed: true, ModifiedArguments: &v.args}
	}
	return ToolResult{Allowed: true}
}

// A CompositeInterceptor chains interceptors (policy engine spec 10.4): all
// must allow, the first denial ends the chain. Arguments that one of them
// rewrote are what the next one sees. All are asked once more about what has
// become of them, and then may only allow or deny.
type CompositeInterceptor struct {
	Log *slog.Logger // of members that panic; nil means the default

	interceptors []Interceptor
}

// NewCompositeInterceptor chains interceptors in order. An empty chain allows.
func NewCompositeInterceptor(interceptors ...Interceptor) *CompositeInterceptor {
	return &CompositeInterceptor{interceptors: slices.Clone(interceptors)}
}

// Add appends an interceptor and returns the chain.
func (c *CompositeInterceptor) Add(i Interceptor) *CompositeInterceptor {
	c.interceptors = append(c.interceptors, i)
	return c
}

// Intercept runs the chain. A member that panics denies.
func (c *CompositeInterceptor) Intercept(ctx context.Context, call ToolCall) ToolResult {
	var modified *value.Value
	for _, member := range c.interceptors {
		res := c.ask(ctx, member, call)
		if !res.Allowed {
			return res
		}
		if m := res.ModifiedArguments; m != nil && m.JSON() != call.Arguments.JSON() {
			call.Arguments, modified = *m, m
		}
	}
	if modified == nil {
		return ToolResult{Allowed: true}
	}
	for _, member := range c.interceptors {
		if res := c.ask(ctx, member, call); !res.Allowed {
			return res
		}
	}
	return ToolResult{Allowed: true, ModifiedArguments: modified}
}

func (c *CompositeInterceptor) ask(ctx context.Context, member Interceptor, call ToolCall) (res ToolResult) {
	defer func() {
		if r := recover(); r != nil {
			orDefault(c.Log).Error(textError, "panic", Redact(fmt.Sprint(r)), "tool", Redact(call.ToolName), "stack", string(debug.Stack()))
			res = denied("%s", textError)
		}
	}()
	return member.Intercept(ctx, call)
}

func orDefault(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default()
	}
	return log
}
