package governance

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// What a GovernancePolicy may hold beyond the fields of the specification:
// hashes of tools, guardrail endpoints, and what scans do.

// ContentHashMode says what becomes of a tool without a registered hash
// (adapter contract 5.5).
type ContentHashMode string

// The modes. Strict is the default.
const (
	ContentHashStrict ContentHashMode = "strict" // unknown tools are denied
	ContentHashWarn   ContentHashMode = "warn"   // unknown tools pass with a warning
)

// VerifiesHashes reports whether tools have to bring their hashes.
func (g *Policy) VerifiesHashes() bool {
	return g.ContentHashes != nil || g.ContentHashMode != ""
}

// parseContentHash accepts 64 hexadecimal digits, with or without sha256:.
func parseContentHash(s string) (string, bool) {
	s = strings.ToLower(strings.TrimPrefix(s, source.DigestPrefix))
	b, err := hex.DecodeString(s)
	return s, err == nil && len(b) == 32
}

func (r reader) contentHashes(g *Policy) {
	if f, ok := r.n.Get("content_hash_mode"); ok {
		if g.ContentHashMode = ContentHashMode(f.Text); f.Kind != source.String || g.ContentHashMode != ContentHashStrict && g.ContentHashMode != ContentHashWarn {
			r.Add(f.Line, "content_hash_mode", "content_hash_mode must be strict or warn, got %s", f.Repr())
		}
	}
	f := r.holding("content_hashes", source.Map, "mapping of tool names to SHA-256 hashes")
	if f.Kind == source.Map {
		g.ContentHashes = map[string]string{}
	}
	for i, k := range f.Keys {
		hash, ok := parseContentHash(f.Items[i].Text)
		if !ok || f.Items[i].Kind != source.String {
			field := source.Join("content_hashes", k.Text)
			r.Add(k.Line, field, "%s must be 64 hexadecimal digits in quotes, got %s", field, f.Items[i].Repr())
		}
		g.ContentHashes[k.Text] = hash
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

func (r reader) guardrails(g *Policy) {
	f := r.holding("guardrails", source.List, "list of mappings with name and url")
	if len(f.Items) > maxGuardrails {
		r.Add(f.Line, "guardrails", "guardrails must have at most %d entries, got %d", maxGuardrails, len(f.Items))
		return
	}
	for i := range f.Items {
		field := fmt.Sprintf("guardrails[%d]", i)
		ep := r.endpoint(&f.Items[i], field)
		if slices.ContainsFunc(g.Guardrails, func(o GuardrailEndpoint) bool { return o.Name == ep.Name }) {
			r.Add(f.Items[i].Line, field, "%s: the name %s is taken by another guardrail", field, value.Quote(ep.Name))
		}
		g.Guardrails = append(g.Guardrails, ep)
	}
}

func (r reader) endpoint(n *source.Node, field string) GuardrailEndpoint {
	ep := GuardrailEndpoint{Timeout: DefaultGuardrailTimeout}
	if n.Kind != source.Map {
		r.Add(n.Line, field, "%s must be a mapping with name and url, got %s", field, n.TypeName())
		return ep
	}
	ep.Name, ep.URL = r.text(n, field, "name"), r.text(n, field, "url")
	if problem := urlProblem(ep.URL); ep.URL != "" && problem != "" {
		r.Add(n.Line, field+".url", "%s.url %s", field, problem)
	}
	if f, ok := n.Get("timeout_ms"); ok {
		ms, _ := f.Integer()
		if ep.Timeout = time.Duration(ms) * time.Millisecond; ms <= 0 || ms > MaxGuardrailTimeout.Milliseconds() {
			r.Add(f.Line, field+".timeout_ms", "%s.timeout_ms must be between 1 and %d, got %s", field, MaxGuardrailTimeout.Milliseconds(), f.Repr())
		}
	}
	for _, k := range n.Keys {
		if known := []string{"name", "url", "timeout_ms"}; !slices.Contains(known, k.Text) {
			r.Add(k.Line, source.Join(field, k.Text), "unknown field%s; known are name, url and timeout_ms", nearest.Hint(k.Text, "", known))
		}
	}
	return ep
}

// text reads a string that has to be there.
func (r reader) text(n *source.Node, field, name string) string {
	f, ok := n.Get(name)
	if !ok {
		f = n
	}
	if !ok || f.Kind != source.String || f.Text == "" {
		r.Add(f.Line, field+"."+name, "%s.%s must be a non-empty string", field, name)
		return ""
	}
	return f.Text
}

func urlProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		return "must be an absolute https URL, got " + value.Quote(source.Clip(text, 100))
	case u.User != nil:
		return "must not carry a user or password"
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return ""
	}
	return "must be https, or http to a loopback address, got " + value.Quote(source.Clip(text, 100))
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// A ScanAction is what a scan does where it finds something.
type ScanAction string

// The actions.
const (
	ScanOff    ScanAction = "off" // it is not looked for
	ScanRedact ScanAction = "redact"
	ScanDeny   ScanAction = "deny"
)

// A Scan says what becomes of texts in which credentials or personal data are
// found.
type Scan struct {
	Credentials, PersonalData ScanAction
}

func (r reader) scan(g *Policy) {
	known := []string{"credentials", "personal_data"}
	f := r.holding("scan", source.Map, "mapping with credentials and personal_data")
	for i, k := range f.Keys {
		field := source.Join("scan", k.Text)
		action := ScanAction(f.Items[i].Text)
		if f.Items[i].Kind != source.String || action != ScanOff && action != ScanRedact && action != ScanDeny {
			r.Add(k.Line, field, "%s must be off, redact or deny, got %s", field, f.Items[i].Repr())
			continue
		}
		switch k.Text {
		case "credentials":
			g.Scan.Credentials = action
		case "personal_data":
			g.Scan.PersonalData = action
		default:
			r.Add(k.Line, field, "unknown field%s; known are credentials and personal_data", nearest.Hint(k.Text, "", known))
		}
	}
}

// extensionPairs writes what is set, for Dict.
func (g *Policy) extensionPairs() []value.Pair {
	var pairs []value.Pair
	if g.DenyAllTools {
		pairs = append(pairs, value.Pair{Key: "deny_all_tools", Value: value.OfBool(true)})
	}
	pairs = append(pairs, g.kindPairs()...)
	if len(g.Budgets) > 0 {
		pairs = append(pairs, value.Pair{Key: "budgets", Value: value.ListOf(g.Budgets, budgetValue)})
	}
	if g.Approval != nil {
		pairs = append(pairs, value.Pair{Key: "approval", Value: approvalValue(g.Approval)})
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
	if g.Scan != Default().Scan {
		pairs = append(pairs, value.Pair{Key: "scan", Value: value.OfMap(
			value.Pair{Key: "credentials", Value: value.OfString(string(g.Scan.Credentials))},
			value.Pair{Key: "personal_data", Value: value.OfString(string(g.Scan.PersonalData))},
		)})
	}
	if g.SensitiveReads != nil {
		pairs = append(pairs, value.Pair{Key: "deny_sensitive_reads", Value: sensitiveValue(g.SensitiveReads)})
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
	if len(g.RateLimits) > 0 {
		pairs = append(pairs, value.Pair{Key: "rate_limits", Value: value.ListOf(g.RateLimits, rateLimitValue)})
	}
	return pairs
}
