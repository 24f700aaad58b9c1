package engine

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/value"
)

// What a GovernancePolicy may hold beyond the fields of the specification:
// hashes of tools and guardrail endpoints.

// ContentHashMode says what becomes of a tool without a registered hash
// (adapter contract 5.5).
type ContentHashMode string

// The modes. Strict is the default.
const (
	ContentHashStrict ContentHashMode = "strict" // unknown tools are denied
	ContentHashWarn   ContentHashMode = "warn"   // unknown tools pass with a warning
)

// VerifiesHashes reports whether tools have to bring their hashes.
func (g *GovernancePolicy) VerifiesHashes() bool {
	return g.ContentHashes != nil || g.ContentHashMode != ""
}

// parseContentHash accepts 64 hexadecimal digits, with or without sha256:.
func parseContentHash(s string) (string, bool) {
	s = strings.ToLower(strings.TrimPrefix(s, digestPrefix))
	b, err := hex.DecodeString(s)
	return s, err == nil && len(b) == 32
}

func (r governanceReader) contentHashes(g *GovernancePolicy) {
	if f, ok := r.n.get("content_hash_mode"); ok {
		if g.ContentHashMode = ContentHashMode(f.text); f.kind != nodeString || g.ContentHashMode != ContentHashStrict && g.ContentHashMode != ContentHashWarn {
			r.add(f.line, "content_hash_mode", "content_hash_mode must be strict or warn, got %s", f.repr())
		}
	}
	f := r.holding("content_hashes", nodeMap, "mapping of tool names to SHA-256 hashes")
	if f.kind == nodeMap {
		g.ContentHashes = map[string]string{}
	}
	for i, k := range f.keys {
		hash, ok := parseContentHash(f.items[i].text)
		if !ok || f.items[i].kind != nodeString {
			field := join("content_hashes", k.text)
			r.add(k.line, field, "%s must be 64 hexadecimal digits in quotes, got %s", field, f.items[i].repr())
		}
		g.ContentHashes[k.text] = hash
	}
}

// A GuardrailEndpoint is a provider that a tree names: a URL that is sent the
// call as JSON and answers with a decision.
//
//	POST {"tool_name": ..., "args": {...}, "agent_name": ..., "call_id": ...}
//	200  {"decision": "allow|deny|modify", "reason": ..., "modified_args": {...}, "metadata": {...}}
//
// It must be https, or http to the loopback interface. Redirects are not
// followed: a tree names every host that sees arguments.
type GuardrailEndpoint struct {
	Name    string
	URL     string
	Timeout time.Duration // of one request, response included
}

// Bounds and default of an endpoint's timeout.
const (
	DefaultGuardrailTimeout = time.Second
	MaxGuardrailTimeout     = 10 * time.Second
	maxGuardrails           = 8
)

func (r governanceReader) guardrails(g *GovernancePolicy) {
	f := r.holding("guardrails", nodeList, "list of mappings with name and url")
	if len(f.items) > maxGuardrails {
		r.add(f.line, "guardrails", "guardrails must have at most %d entries, got %d", maxGuardrails, len(f.items))
		return
	}
	for i := range f.items {
		field := fmt.Sprintf("guardrails[%d]", i)
		ep := r.endpoint(&f.items[i], field)
		if slices.ContainsFunc(g.Guardrails, func(o GuardrailEndpoint) bool { return o.Name == ep.Name }) {
			r.add(f.items[i].line, field, "%s: the name %s is taken by another guardrail", field, value.Quote(ep.Name))
		}
		g.Guardrails = append(g.Guardrails, ep)
	}
}

func (r governanceReader) endpoint(n *node, field string) GuardrailEndpoint {
	ep := GuardrailEndpoint{Timeout: DefaultGuardrailTimeout}
	if n.kind != nodeMap {
		r.add(n.line, field, "%s must be a mapping with name and url, got %s", field, n.typeName())
		return ep
	}
	ep.Name, ep.URL = r.text(n, field, "name"), r.text(n, field, "url")
	if problem := urlProblem(ep.URL); ep.URL != "" && problem != "" {
		r.add(n.line, field+".url", "%s.url %s", field, problem)
	}
	if f, ok := n.get("timeout_ms"); ok {
		ms, _ := f.integer()
		if ep.Timeout = time.Duration(ms) * time.Millisecond; ms <= 0 || ms > MaxGuardrailTimeout.Milliseconds() {
			r.add(f.line, field+".timeout_ms", "%s.timeout_ms must be between 1 and %d, got %s", field, MaxGuardrailTimeout.Milliseconds(), f.repr())
		}
	}
	for _, k := range n.keys {
		if !slices.Contains([]string{"name", "url", "timeout_ms"}, k.text) {
			r.add(k.line, join(field, k.text), "unknown field; known are name, url and timeout_ms")
		}
	}
	return ep
}

// text reads a string that has to be there.
func (r governanceReader) text(n *node, field, name string) string {
	f, ok := n.get(name)
	if !ok {
		f = n
	}
	if !ok || f.kind != nodeString || f.text == "" {
		r.add(f.line, field+"."+name, "%s.%s must be a non-empty string", field, name)
		return ""
	}
	return f.text
}

func urlProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		return "must be an absolute https URL, got " + value.Quote(clip(text, 100))
	case u.User != nil:
		return "must not carry a user or password"
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return ""
	}
	return "must be https, or http to a loopback address, got " + value.Quote(clip(text, 100))
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// extensionPairs writes what is set, for Dict.
func (g *GovernancePolicy) extensionPairs() []value.Pair {
	var pairs []value.Pair
	if g.DenyAllTools {
		pairs = append(pairs, value.Pair{Key: "deny_all_tools", Value: value.OfBool(true)})
	}
	if g.ContentHashes != nil {
		hashes := make([]value.Pair, 0, len(g.ContentHashes))
		for _, tool := range slices.Sorted(maps.Keys(g.ContentHashes)) {
			hashes = append(hashes, value.Pair{Key: tool, Value: value.OfString(g.ContentHashes[tool])})
		}
		pairs = append(pairs, value.Pair{Key: "content_hashes", Value: value.OfMap(hashes...)})
	}
	if g.ContentHashMode != "" {
		pairs = append(pairs, value.Pair{Key: "content_hash_mode", Value: value.OfString(string(g.ContentHashMode))})
	}
	if len(g.Guardrails) > 0 {
		pairs = append(pairs, value.Pair{Key: "guardrails", Value: value.ListOf(g.Guardrails, func(ep GuardrailEndpoint) value.Value {
			return value.OfMap(
				value.Pair{Key: "name", Value: value.OfString(ep.Name)},
				value.Pair{Key: "url", Value: value.OfString(ep.URL)},
				value.Pair{Key: "timeout_ms", Value: value.OfInt(ep.Timeout.Milliseconds())},
			)
		})})
	}
	return pairs
}
