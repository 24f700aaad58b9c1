package composition

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/value"
)

func TestMerge(t *testing.T) {
	root, leaf := document.New("governance.yaml"), document.New("a/governance.yaml")
	rule := func(d *document.Document, name string, a document.Action, override bool) {
		d.Rules = append(d.Rules, &document.Rule{Name: name, Action: a, Override: override, Doc: d, Condition: document.Condition{Field: "x", Operator: document.OpEq, Value: value.OfInt(1)}})
	}
	rule(root, "kept", document.Deny, false)
	rule(root, "replaced", document.Allow, false)
	rule(leaf, "kept", document.Allow, true)
	rule(leaf, "replaced", document.Audit, true)
	rule(leaf, "own", document.Allow, false)
	rules, trace := Merge([]*document.Document{root, leaf}, nil)
	var got []string
	for _, r := range rules {
		got = append(got, r.Name+" "+string(r.Action)+" "+r.Doc.Path)
	}
	require.Equal(t, []string{"kept deny governance.yaml", "replaced audit a/governance.yaml", "own allow a/governance.yaml"}, got)
	require.Equal(t, []string{
		"rule 'kept' of a/governance.yaml is dropped: a parent's deny cannot be overridden",
		"rule 'replaced' of a/governance.yaml replaces that of governance.yaml",
	}, trace)
}
