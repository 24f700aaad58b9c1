package engine

import (
	"fmt"
	"slices"
	"time"

	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// What a GovernancePolicy may hold beyond the fields of the specification:
// hashes of tools and guardrail endpoints.

func (r governanceReader) contentHashes(g *GovernancePolicy) {
	if f, ok := r.field("content_hash_mode"); ok {
		if f.kind != nodeString {
			r.ps.add(f.line, "content_hash_mode", "content_hash_mode must be strict or warn, got %s", f.repr())
		}
		g.ContentHashMode = ContentHashMode(f.text)
	}
	f, ok := r.field("content_hashes")
	if !ok {
		return
	}
	if f.kind != nodeMap {
		r.ps.add(f.line, "content_hashes", "content_hashes must be a mapping of tool names to SHA-256 hashes, got %s", f.typeName())
		return
	}
	g.ContentHashes = map[string]string{}
	for i, k := range f.keys {
		if f.items[i].kind != nodeString {
			field := join("content_hashes", k.text)
			r.ps.add(k.line, field, "%s must be 64 hexadecimal digits in quotes, got %s", field, f.items[i].repr())
			continue
		}
		g.ContentHashes[k.text] = f.items[i].text
	}
}

func (r governanceReader) guardrails(g *GovernancePolicy) {
	f, ok := r.field("guardrails")
	if !ok {
		return
	}
	if f.kind != nodeList {
		r.ps.add(f.line, "guardrails", "guardrails must be a list of mappings with name and url, got %s", f.typeName())
		return
	}
	for i := range f.items {
		g.Guardrails = append(g.Guardrails, r.endpoint(&f.items[i], fmt.Sprintf("guardrails[%d]", i)))
	}
}

func (r governanceReader) endpoint(n *node, field string) GuardrailEndpoint {
	ep := GuardrailEndpoint{Timeout: DefaultGuardrailTimeout}
	if n.kind != nodeMap {
		r.ps.add(n.line, field, "%s must be a mapping with name and url, got %s", field, n.typeName())
		return ep
	}
	for name, into := range map[string]*string{"name": &ep.Name, "url": &ep.URL} {
		if f, ok := present(n, name); ok && f.kind == nodeString {
			*into = f.text
		}
	}
	if f, ok := n.get("timeout_ms"); ok {
		ms, isInt := f.integer()
		if !isInt || ms <= 0 || ms > MaxGuardrailTimeout.Milliseconds() {
			r.ps.add(f.line, field+".timeout_ms", "%s.timeout_ms must be between 1 and %d, got %s", field, MaxGuardrailTimeout.Milliseconds(), f.repr())
			return ep
		}
		ep.Timeout = time.Duration(ms) * time.Millisecond
	}
	for _, k := range n.keys {
		if known := []string{"name", "url", "timeout_ms"}; !slices.Contains(known, k.text) {
			r.ps.add(k.line, join(field, k.text), "unknown field%s; known are name, url and timeout_ms", nearest.Hint(k.text, "", known))
		}
	}
	return ep
}

// validateInterceptors checks hashes and endpoints.
func (g *GovernancePolicy) validateInterceptors() *FieldError {
	switch g.ContentHashMode {
	case "", ContentHashStrict, ContentHashWarn:
	default:
		return fieldErrorf("content_hash_mode", "content_hash_mode must be strict or warn, got %s", pyString(string(g.ContentHashMode)))
	}
	for _, tool := range sortedKeys(g.ContentHashes) {
		if _, ok := parseContentHash(g.ContentHashes[tool]); !ok {
			field := join("content_hashes", tool)
			return fieldErrorf(field, "%s must be 64 hexadecimal digits in quotes, got %s", field, pyString(clip(g.ContentHashes[tool], 80)))
		}
	}
	if len(g.Guardrails) > maxGuardrails {
		return fieldErrorf("guardrails", "guardrails must have at most %d entries, got %d", maxGuardrails, len(g.Guardrails))
	}
	names := map[string]bool{}
	for i, ep := range g.Guardrails {
		field := fmt.Sprintf("guardrails[%d]", i)
		if err := ep.validate(field); err != nil {
			return err
		}
		if names[ep.Name] {
			return fieldErrorf(field, "%s: the name %s is taken by another guardrail", field, pyString(ep.Name))
		}
		names[ep.Name] = true
	}
	return nil
}

// extensionPairs writes what is set, for Dict.
func (g *GovernancePolicy) extensionPairs() []value.Pair {
	var pairs []value.Pair
	if g.DenyAllTools {
		pairs = append(pairs, value.Pair{Key: "deny_all_tools", Value: value.OfBool(true)})
	}
	if g.ContentHashes != nil {
		hashes := make([]value.Pair, 0, len(g.ContentHashes))
		for _, tool := range sortedKeys(g.ContentHashes) {
			hashes = append(hashes, value.Pair{Key: tool, Value: value.OfString(g.ContentHashes[tool])})
		}
		pairs = append(pairs, value.Pair{Key: "content_hashes", Value: value.OfMap(hashes...)})
	}
	if g.ContentHashMode != "" {
		pairs = append(pairs, value.Pair{Key: "content_hash_mode", Value: value.OfString(string(g.ContentHashMode))})
	}
	if len(g.Guardrails) > 0 {
		pairs = append(pairs, value.Pair{Key: "guardrails", Value: listOf(g.Guardrails, func(ep GuardrailEndpoint) value.Value {
			return value.OfMap(
				value.Pair{Key: "name", Value: value.OfString(ep.Name)},
				value.Pair{Key: "url", Value: value.OfString(ep.URL)},
				value.Pair{Key: "timeout_ms", Value: value.OfInt(ep.Timeout.Milliseconds())},
			)
		})})
	}
	return pairs
}

// linkInterceptors turns what the policy names into what evaluations use.
func (c *compiler) linkInterceptors() {
	p, g := c.policy, c.policy.governance
	if g.verifiesHashes() {
		p.hashes = &hashTable{hashes: map[string]string{}, strict: g.ContentHashMode != ContentHashWarn}
		for tool, hash := range g.ContentHashes {
			p.hashes.hashes[tool], _ = parseContentHash(hash)
		}
	}
	chain := &GuardrailChain{Providers: slices.Clone(c.options.guardrails)}
	for _, ep := range g.Guardrails {
		chain.Providers = append(chain.Providers, newHTTPGuardrail(ep, c.client))
	}
	if len(chain.Providers) > 0 {
		p.guardrails = chain
	}
}
