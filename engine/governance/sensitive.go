package governance

import (
	"strings"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// SensitiveReads turns on Edictum's built-in rule that denies what reads secrets. A
// list that is nil is the rule's own.
type SensitiveReads struct{ Paths, Commands []string }

var sensitiveFields = []string{"paths", "commands"}

// mostSensitive bounds each list of SensitiveReads.
const mostSensitive = 256

func (r reader) sensitiveReads(g *Policy) {
	const name = "deny_sensitive_reads"
	f, ok := r.n.Get(name)
	switch {
	case !ok:
	case f.Kind == source.Bool:
		if strings.EqualFold(f.Text, "true") {
			g.SensitiveReads = &SensitiveReads{}
		}
	case f.Kind != source.Map:
		r.Add(f.Line, name, "%s must be true, false, or a mapping with paths and commands, got %s", name, f.TypeName())
	default:
		g.SensitiveReads = &SensitiveReads{}
		for i, k := range f.Keys {
			switch k.Text {
			case "paths":
				g.SensitiveReads.Paths = r.replaced(&f.Items[i], source.Join(name, k.Text))
			case "commands":
				g.SensitiveReads.Commands = r.replaced(&f.Items[i], source.Join(name, k.Text))
			default:
				r.Add(k.Line, source.Join(name, k.Text), "unknown field%s; known are paths and commands", nearest.Hint(k.Text, "", sensitiveFields))
			}
		}
	}
}

// replaced reads a list that takes the place of a default, and may be empty.
func (r reader) replaced(f *source.Node, field string) []string {
	all := []string{}
	if f.Kind != source.List || len(f.Items) > mostSensitive {
		r.Add(f.Line, field, "%s must be a list of at most %d texts, got %s", field, mostSensitive, f.TypeName())
		return all
	}
	for i := range f.Items {
		item := &f.Items[i]
		if item.Kind != source.String || item.Text == "" || len(item.Text) > MaxToolName {
			r.Add(item.Line, field, "%s must hold texts of 1 to %d bytes, got %s", field, MaxToolName, item.Repr())
			return all
		}
		all = append(all, item.Text)
	}
	return all
}

func sensitiveValue(s *SensitiveReads) value.Value {
	if s.Paths == nil && s.Commands == nil {
		return value.OfBool(true)
	}
	var pairs []value.Pair
	if s.Paths != nil {
		pairs = append(pairs, value.Pair{Key: "paths", Value: value.ListOf(s.Paths, value.OfString)})
	}
	if s.Commands != nil {
		pairs = append(pairs, value.Pair{Key: "commands", Value: value.ListOf(s.Commands, value.OfString)})
	}
	return value.OfMap(pairs...)
}
