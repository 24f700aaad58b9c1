package engine

import (
	"fmt"
	"slices"
	"time"
)

// governanceExtensions are what a GovernancePolicy file may hold beyond the
// policy object: hashes of tools and guardrail endpoints.
type governanceExtensions struct {
	hashes     map[string]string
	hashMode   ContentHashMode
	hashed     bool // either was stated
	guardrails []locatedEndpoint
}

type locatedEndpoint struct {
	GuardrailEndpoint
	line  int
	field string
}

func readExtensions(n *node, ps *problems) governanceExtensions {
	ext := governanceExtensions{hashMode: ContentHashStrict}
	readContentHashes(n, ps, &ext)
	if f, ok := present(n, "guardrails"); ok {
		if f.kind != nodeList || len(f.items) > maxGuardrails {
			ps.add(f.line, "guardrails", "guardrails must be a list of at most %d mappings with name and url, got %s", maxGuardrails, f.typeName())
			return ext
		}
		for i := range f.items {
			if ep, ok := readEndpoint(&f.items[i], fmt.Sprintf("guardrails[%d]", i), ps); ok {
				ext.guardrails = append(ext.guardrails, ep)
			}
		}
	}
	return ext
}

func readContentHashes(n *node, ps *problems, ext *governanceExtensions) {
	if f, ok := present(n, "content_hash_mode"); ok {
		ext.hashed = true
		ext.hashMode = ContentHashMode(f.text)
		if f.kind != nodeString || (ext.hashMode != ContentHashStrict && ext.hashMode != ContentHashWarn) {
			ps.add(f.line, "content_hash_mode", "content_hash_mode must be strict or warn, got %s", f.repr())
		}
	}
	f, ok := present(n, "content_hashes")
	if !ok {
		return
	}
	ext.hashed = true
	if f.kind != nodeMap {
		ps.add(f.line, "content_hashes", "content_hashes must be a mapping of tool names to SHA-256 hashes, got %s", f.typeName())
		return
	}
	ext.hashes = map[string]string{}
	for i, k := range f.keys {
		h, valid := parseContentHash(f.items[i].text)
		if f.items[i].kind != nodeString || !valid {
			field := join("content_hashes", k.text)
			ps.add(k.line, field, "%s must be 64 hexadecimal digits in quotes, got %s", field, f.items[i].repr())
			continue
		}
		ext.hashes[k.text] = h
	}
}

func readEndpoint(n *node, field string, ps *problems) (locatedEndpoint, bool) {
	ep := locatedEndpoint{line: n.line, field: field}
	ep.Timeout = DefaultGuardrailTimeout
	if n.kind != nodeMap {
		ps.add(n.line, field, "%s must be a mapping with name and url, got %s", field, n.typeName())
		return ep, false
	}
	before := len(ps.list)
	for _, want := range []struct {
		name string
		into *string
	}{{"name", &ep.Name}, {"url", &ep.URL}} {
		f, ok := present(n, want.name)
		if !ok || f.kind != nodeString || f.text == "" {
			ps.add(n.line, join(field, want.name), "%s must be a non-empty string", join(field, want.name))
			continue
		}
		*want.into = f.text
	}
	if f, ok := present(n, "timeout_ms"); ok {
		ms, isInt := f.integer()
		if !isInt || ms <= 0 || ms > MaxGuardrailTimeout.Milliseconds() {
			ps.add(f.line, field+".timeout_ms", "timeout_ms must be between 1 and %d, got %s", MaxGuardrailTimeout.Milliseconds(), f.repr())
		}
		ep.Timeout = time.Duration(ms) * time.Millisecond
	}
	for _, k := range n.keys {
		if !slices.Contains([]string{"name", "url", "timeout_ms"}, k.text) {
			ps.add(k.line, join(field, k.text), "unknown field; known are name, url and timeout_ms")
		}
	}
	return ep, len(ps.list) == before
}

// linkExtensions turns what the files name into what evaluations use.
func (c *compiler) linkExtensions() {
	p, ext := c.policy, c.extensions
	if ext.hashed {
		p.hashes = &hashTable{hashes: ext.hashes, strict: ext.hashMode == ContentHashStrict}
	}
	chain := &GuardrailChain{Providers: slices.Clone(c.options.guardrails)}
	names := map[string]bool{}
	for _, ep := range ext.guardrails {
		g, err := newHTTPGuardrail(ep.GuardrailEndpoint, c.client)
		if err == nil && names[ep.Name] {
			err = fmt.Errorf("the name %s is taken by another guardrail", pyString(ep.Name))
		}
		if err != nil {
			c.addf(c.governance, ep.line, ep.field, "%s: %v", ep.field, err)
			continue
		}
		names[ep.Name] = true
		chain.Providers = append(chain.Providers, g)
	}
	if len(chain.Providers) > 0 {
		p.guardrails = chain
	}
}

var _ GuardrailProvider = (*httpGuardrail)(nil)
