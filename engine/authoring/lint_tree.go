package authoring

import (
	"maps"
	"path"
	"slices"
	"strings"

	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/value"
)

// What a tree as a whole may have that is valid and probably not meant.

// placement looks for documents and settings whose place takes their effect.
func (l *linter) placement() {
	p := l.docs
	root := p.Folders["."]
	for _, doc := range p.Flat {
		if base := path.Base(doc.Path); base == "governance.json" {
			l.addf(doc.Path, 0, "", "the file is one of the flat list: only governance.yaml and governance.yml hold for their folder")
		}
		if doc.Scope != nil {
			l.addf(doc.Path, 0, "scope", "scope has no effect in the flat list: the document holds for every path; name it governance.yaml in the folder it is for")
		}
		if !doc.Inherit {
			l.addf(doc.Path, 0, "inherit", "inherit has no effect in the flat list, which has no parents")
		}
		for _, r := range doc.Rules {
			if r.Override {
				l.addf(doc.Path, r.Line, r.Name, "override has no effect in the flat list, which is not merged")
			}
		}
		if root != nil && root.Doc.Scope == nil && !p.Strict {
			l.addf(doc.Path, 0, "", "the document holds for calls without a context.path alone: at every path %s and what lies below it hold in its place", root.Doc.Path)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(p.Folders)) {
		doc := p.Folders[dir].Doc
		if doc.Scope != nil && !mayApply(*doc.Scope, dir) {
			l.addf(doc.Path, 0, "scope", "the document never applies: no path below %s/ matches the scope %s, which is matched against the whole path from the root", dir, value.Quote(*doc.Scope))
		}
	}
}

// mayApply reports whether a scope may match a path below a folder. It may miss
// one that matches none, and never takes one that matches for such.
func mayApply(scope, dir string) bool {
	if dir == "." {
		return true
	}
	literal := scope
	if i := strings.IndexAny(scope, "*?["); i >= 0 {
		literal = scope[:i]
	} else if scope != dir && !strings.HasPrefix(scope, dir+"/") {
		return false
	}
	below := dir + "/"
	return strings.HasPrefix(below, literal) || strings.HasPrefix(literal, below) || strings.HasPrefix(dir, literal)
}

// hiddenDenies looks for a deny or an ask that merging drops because a parent has
// a rule of its name that is less strict (policy engine spec 11.1). In strict mode
// it stands.
func (l *linter) hiddenDenies() {
	p := l.docs
	if p.Strict {
		return
	}
	for _, dir := range slices.Sorted(maps.Keys(p.Folders)) {
		f := p.Folders[dir]
		merged, _ := composition.Merge(f.Chain, nil)
		for _, r := range f.Doc.Rules {
			if r.Action.Allows() || slices.Contains(merged, r) {
				continue
			}
			for _, kept := range merged {
				if kept.Name == r.Name && (kept.Action.Allows() || kept.Action == document.Ask && r.Action.Denies()) {
					l.addf(r.Doc.Path, r.Line, r.Name, "the %s is dropped: %s (line %d) has a rule of this name, which does not deny; rename this one, or set override: true",
						r.Action, kept.Doc.Path, kept.Line)
				}
			}
		}
	}
}
