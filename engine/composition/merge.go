package composition

import (
	"fmt"

	"example.com/govnode/engine/document"
)

// Merge merges the rules of a chain, root first, into one list (policy
// engine spec 11.1). It is deterministic and keeps the order of equal
// priorities: root before leaf, a replaced rule at the end.
//
// A child cannot replace a parent's deny, whatever it says (11.2); block is an
// alias of deny and just as immutable. So is an ask; a child's deny comes to
// stand beside it, since the child may be stricter.
func Merge(chain []*document.Document, only func(*document.Rule) bool) (merged []*document.Rule, trace []string) {
	at := map[string]int{}
	for _, doc := range chain {
		// Names are unique within a document, so every clash is with a parent.
		for _, rule := range doc.Rules {
			if only != nil && !only(rule) {
				trace = append(trace, fmt.Sprintf("rule '%s' of %s is cut off", rule.Name, doc.Path))
				continue
			}
			i, clash := at[rule.Name]
			switch {
			case !clash:
			case !rule.Override:
				trace = append(trace, fmt.Sprintf("rule '%s' of %s is dropped: %s has it, and override is not set", rule.Name, doc.Path, merged[i].Doc.Path))
				continue
			case merged[i].Action == document.Ask && rule.Action.Denies():
				trace = append(trace, fmt.Sprintf("rule '%s' of %s stands beside that of %s: a deny wins over an ask", rule.Name, doc.Path, merged[i].Doc.Path))
			case merged[i].Action.Restricts():
				trace = append(trace, fmt.Sprintf("rule '%s' of %s is dropped: a parent's %s cannot be overridden", rule.Name, doc.Path, merged[i].Action))
				continue
			default:
				trace = append(trace, fmt.Sprintf("rule '%s' of %s replaces that of %s", rule.Name, doc.Path, merged[i].Doc.Path))
				merged[i] = nil
			}
			at[rule.Name] = len(merged)
			merged = append(merged, rule)
		}
	}
	kept := merged[:0]
	for _, rule := range merged {
		if rule != nil {
			kept = append(kept, rule)
		}
	}
	return kept, trace
}
