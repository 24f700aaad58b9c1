package composition

import (
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
)

// A folder is a directory of the tree with a governance file, and everything
// that follows from its place: which documents above it count. Chains are
// found once per tree; a path only selects one.
type folder struct {
	Doc   *document.Document
	Chain []*document.Document // root first, this folder's document last
	// denyOnly is how many documents at the head of the chain were cut off by
	// inherit: false and contribute their denies alone (strict mode).
	denyOnly int
	// above is how many documents at the head of the chain one below them would
	// have cut off, had they allowed it (strict mode).
	above int

	all      atomic.Pointer[Ruleset] // every document of the chain in scope
	variants sync.Map                // uint64, a bit per document in scope -> *ruleset
}

// newFolders finds the chain of every governance file (policy engine spec 12).
func newFolders(docs map[string]*document.Document, strict bool) map[string]*folder {
	folders := make(map[string]*folder, len(docs))
	for dir, doc := range docs {
		f := &folder{Doc: doc, Chain: []*document.Document{doc}}
		// Leaf first while climbing, reversed at the end (12.1).
		leafFirst := []*document.Document{doc}
		cut, denyFrom, aboveFrom := !doc.Inherit, -1, -1
		for parent := dir; parent != "."; {
			parent = path.Dir(parent)
			above, ok := docs[parent]
			if !ok {
				continue
			}
			if cut {
				if !strict {
					break // 12.2: the document is the new root
				}
				// Strict mode: a parent decides whether children may leave
				// its rules, and its denies stay in any case.
				if aboveFrom < 0 {
					aboveFrom = len(leafFirst)
				}
				if denyFrom < 0 && above.AllowCutoff {
					denyFrom = len(leafFirst)
				}
				cut = false
			}
			leafFirst = append(leafFirst, above)
			cut = !above.Inherit
		}
		f.Chain = make([]*document.Document, 0, len(leafFirst))
		for i := len(leafFirst) - 1; i >= 0; i-- {
			f.Chain = append(f.Chain, leafFirst[i])
		}
		if denyFrom >= 0 {
			f.denyOnly = len(leafFirst) - denyFrom
		}
		if aboveFrom >= 0 {
			f.above = len(leafFirst) - aboveFrom
		}
		folders[dir] = f
	}
	return folders
}

// cleanPath turns the path of an action into one relative to the root of the
// tree, or reports that it leaves it (policy engine spec 12.4). The check sees
// through percent encoding and backslashes, so that no later reader of the
// same text can be led outside; what passes is used as it was sent.
func cleanPath(raw string) (string, bool) {
	text := raw
	for range 3 {
		if escapes(strings.ReplaceAll(text, `\`, "/")) {
			return "", false
		}
		decoded := percentDecode(text)
		if decoded == text {
			break
		}
		text = decoded
	}
	return path.Clean(raw), true
}

// percentDecode decodes every escape that is one and leaves a broken one as it
// stands. Readers that refuse a text with a broken escape do no harm; for those
// that decode the rest, one broken escape must not hide the others.
func percentDecode(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	decoded := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if b, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				decoded = append(decoded, b[0])
				i += 2
				continue
			}
		}
		decoded = append(decoded, s[i])
	}
	return string(decoded)
}

func escapes(p string) bool {
	if strings.HasPrefix(p, "/") || source.HasDriveLetter(p) || strings.IndexByte(p, 0) >= 0 {
		return true
	}
	clean := path.Clean(p)
	return clean == ".." || strings.HasPrefix(clean, "../")
}

// find returns the folder nearest to a clean path, from the path itself up to
// the root; a file has no governance file below it, so the extra step for one
// finds nothing.
func (c *Documents) findFolder(clean string) *folder {
	dir := clean
	// Deeper than any governance file there is nothing to find; cutting first
	// keeps a path of ten thousand segments cheap.
	if end := cutSegments(dir, c.deepest); end < len(dir) {
		dir = dir[:end]
	}
	for {
		if f, ok := c.Folders[dir]; ok {
			return f
		}
		slash := strings.LastIndexByte(dir, '/')
		switch {
		case slash > 0:
			dir = dir[:slash]
		case dir != ".":
			dir = "."
		default:
			return nil
		}
	}
}

// cutSegments returns where the first n segments of p end.
func cutSegments(p string, n int) int {
	for i := range len(p) {
		if p[i] == '/' {
			if n--; n <= 0 {
				return i
			}
		}
	}
	return len(p)
}

// chainFor returns the ruleset of the documents of a folder that apply to a
// path, or nil where none does.
func (c *Documents) chainFor(f *folder, clean string) *Ruleset {
	mask := ^uint64(0)
	included := 0
	scoped := false
	for i, doc := range f.Chain {
		if doc.Scope == nil {
			included++
			continue
		}
		scoped = true
		if pattern.FnMatch(clean, *doc.Scope) {
			included++
		} else if i < 64 {
			mask &^= 1 << i
		}
	}
	switch {
	case included == 0:
		return nil
	case !scoped:
		return c.cachedChain(&f.all, f)
	case len(f.Chain) > 64:
		return c.BuildChain(f, func(i int) bool {
			return f.Chain[i].Scope == nil || pattern.FnMatch(clean, *f.Chain[i].Scope)
		})
	}
	if s, ok := f.variants.Load(mask); ok {
		return s.(*Ruleset)
	}
	s := c.BuildChain(f, func(i int) bool { return mask&(1<<i) != 0 })
	if c.mayKeep(s) {
		f.variants.Store(mask, s)
	}
	return s
}

func (c *Documents) cachedChain(at *atomic.Pointer[Ruleset], f *folder) *Ruleset {
	if s := at.Load(); s != nil {
		return s
	}
	s := c.BuildChain(f, func(int) bool { return true })
	if c.mayKeep(s) {
		at.Store(s)
	}
	return s
}

// maxKeptRules bounds what merged chains may hold in memory, counted in rules.
// Beyond it a chain is merged again on each evaluation.
const maxKeptRules = 200_000

func (c *Documents) mayKeep(s *Ruleset) bool {
	n := len(s.Rules)
	for _, d := range s.Denials {
		n += len(d.Rules)
	}
	return c.keptRules.Add(int64(n)+1) <= maxKeptRules
}

// BuildChain merges the documents of a chain that in selects.
func (c *Documents) BuildChain(f *folder, in func(int) bool) *Ruleset {
	var docs, above, cutOff []*document.Document
	for i, doc := range f.Chain {
		switch {
		case !in(i):
			continue
		case i < f.denyOnly:
			cutOff = append(cutOff, doc)
		case i < f.above:
			above = append(above, doc)
		}
		docs = append(docs, doc)
	}
	// Without strict mode the documents below a cut alone would hold, and where
	// none of those is in scope the flat list. What denies by default there is
	// not opened by what is allowed above.
	leaf := docs[len(docs)-1]
	left := []*document.Document{leaf}
	if len(cutOff)+len(above) == len(docs) {
		left = c.Flat
	}
	if slices.ContainsFunc(left, func(d *document.Document) bool { return d.Defaults.Action.Denies() }) {
		cutOff = append(cutOff, above...)
	}
	only := func(r *document.Rule) bool {
		for _, doc := range cutOff {
			if r.Doc == doc {
				return r.Action.Denies()
			}
		}
		return true
	}
	rules, trace := Merge(docs, only)
	s := &Ruleset{
		List: matching.NewList(c.compiledOf(rules)), Docs: docs, Scoped: true, trace: trace,
		Def: leaf.Defaults.Action, DefPolicy: leaf.Name, Confidence: c.threshold(leaf),
	}
	for _, doc := range docs {
		s.Chain = append(s.Chain, doc.Name)
	}
	if c.Strict {
		c.tighten(s, slices.Concat(docs, left))
		s = c.withDenials(s, []*document.Document{leaf}, slices.Concat(docs[:len(docs)-1], c.Flat))
	}
	return s
}
