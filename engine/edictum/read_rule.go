package edictum

import (
	"fmt"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Rules, as files have them.

var types = []choice[Type]{{"pre", Pre}, {"post", Post}, {"session", Session}, {"sandbox", Sandbox}}

func (r *reader) rule(n *source.Node, field string) error {
	r.at = ""
	if n.Kind != source.Map {
		return r.wrong(n, field, "must be a mapping, got %s", n.Repr())
	}
	id, err := r.need(n, field, "id")
	if err != nil {
		return err
	}
	rule := Rule{Enabled: true, Source: r.doc.source, Timeout: 300}
	if rule.ID, err = r.text(id, source.Join(field, "id"), 0, idForm); err != nil {
		return err
	}
	r.at = rule.ID
	kind, err := r.need(n, field, "type")
	if err != nil {
		return err
	}
	if rule.Type, err = word(r, kind, source.Join(field, "type"), types); err != nil {
		return err
	}
	known := map[Type][]string{
		Pre:     {"id", "type", "enabled", "mode", "tool", "when", "then"},
		Post:    {"id", "type", "enabled", "mode", "tool", "when", "then"},
		Session: {"id", "type", "enabled", "mode", "limits", "then"},
		Sandbox: {"id", "type", "enabled", "mode", "tool", "tools", "within", "not_within", "allows", "not_allows", "outside", "message", "timeout", "timeout_action", "timeout_effect"},
	}[rule.Type]
	if err := r.only(n, field, known...); err != nil {
		return err
	}
	if e, ok := n.Get("enabled"); ok {
		if rule.Enabled, err = r.boolean(e, source.Join(field, "enabled")); err != nil {
			return err
		}
	}
	if m, ok := n.Get("mode"); ok {
		if rule.Mode, err = word(r, m, source.Join(field, "mode"), modes); err != nil {
			return err
		}
		rule.OwnMode = true
	}
	switch rule.Type {
	case Sandbox:
		err = r.sandbox(n, field, &rule)
	case Session:
		if err = r.limits(n, field, &rule); err == nil {
			err = r.then(n, field, &rule)
		}
	default:
		if err = r.conditional(n, field, &rule); err == nil {
			err = r.then(n, field, &rule)
		}
	}
	r.doc.Rules = append(r.doc.Rules, rule)
	return err
}

func (r *reader) conditional(n *source.Node, field string, rule *Rule) error {
	tool, err := r.need(n, field, "tool")
	if err != nil {
		return err
	}
	name, err := r.text(tool, source.Join(field, "tool"), 0, nil)
	if err != nil {
		return err
	}
	rule.Tools = []string{name}
	when, err := r.need(n, field, "when")
	if err != nil {
		return err
	}
	rule.When, err = r.condition(when, source.Join(field, "when"), 0)
	return err
}

// maxNesting bounds how deep a when may go.
const maxNesting = 50

func (r *reader) condition(n *source.Node, field string, depth int) (*Condition, error) {
	if n.Kind != source.Map || len(n.Keys) != 1 || n.Keys[0].Text == "" {
		return nil, r.wrong(n, field, "must have exactly one of all, any, not, or a selector, got %s", n.Repr())
	}
	if depth > maxNesting {
		return nil, r.wrong(n, field, "goes deeper than %d", maxNesting)
	}
	name, item := n.Keys[0].Text, &n.Items[0]
	inner := source.Join(field, name)
	switch name {
	case "all", "any":
		if item.Kind != source.List || len(item.Items) == 0 {
			return nil, r.wrong(item, inner, "must be a list of one or more conditions, got %s", item.Repr())
		}
		var parts []*Condition
		for i := range item.Items {
			c, err := r.condition(&item.Items[i], fmt.Sprintf("%s[%d]", inner, i), depth+1)
			if err != nil {
				return nil, err
			}
			parts = append(parts, c)
		}
		if name == "all" {
			return &Condition{All: parts}, nil
		}
		return &Condition{Any: parts}, nil
	case "not":
		c, err := r.condition(item, inner, depth+1)
		return &Condition{Not: c}, err
	}
	if item.Kind != source.Map || len(item.Keys) != 1 {
		return nil, r.wrong(item, inner, "must have exactly one operator, got %s", item.Repr())
	}
	c := &Condition{Selector: name, Operator: item.Keys[0].Text}
	at, operand := source.Join(inner, c.Operator), &item.Items[0]
	if bad := ambiguous(operand); bad != nil {
		return nil, r.wrong(bad, at, "%s means different things to YAML 1.1 and 1.2; put it in quotes, or write true, false or a plain decimal number", bad.Text)
	}
	v, err := operand.Value()
	if err != nil {
		return nil, r.wrong(operand, at, "%v", err)
	}
	c.Operand = v
	return c, r.operand(operand, at, c)
}

func ambiguous(n *source.Node) *source.Node {
	if n.Ambiguous() {
		return n
	}
	for i := range n.Items {
		if bad := ambiguous(&n.Items[i]); bad != nil {
			return bad
		}
	}
	return nil
}

// operand checks what an operator compares with. What is no operator is said later,
// when all of the schema holds.
func (r *reader) operand(n *source.Node, field string, c *Condition) error {
	switch operators[c.Operator].form {
	case aBool:
		if n.Kind != source.Bool {
			return r.wrong(n, field, "must be true or false, got %s", n.Repr())
		}
	case aText:
		if n.Kind != source.String {
			return r.wrong(n, field, "must be a text, got %s", n.Repr())
		}
	case aNumber:
		if n.Kind != source.Int && n.Kind != source.Float {
			return r.wrong(n, field, "must be a number, got %s", n.Repr())
		}
	case aList:
		if n.Kind != source.List || len(n.Items) == 0 {
			return r.wrong(n, field, "must be a list of one or more values, got %s", n.Repr())
		}
	case someTexts:
		if n.Kind != source.List || len(n.Items) == 0 {
			return r.wrong(n, field, "must be a list of one or more texts, got %s", n.Repr())
		}
		for i := range n.Items {
			if n.Items[i].Kind != source.String {
				return r.wrong(&n.Items[i], fmt.Sprintf("%s[%d]", field, i), "must be a text, got %s", n.Items[i].Repr())
			}
		}
	}
	return nil
}

// actions are the words that a then may have, by the type of its rule and the
// vocabulary.
var actions = map[Type][2][]choice[Action]{
	Pre:     {{{"block", Block}, {"ask", Ask}}, {{"deny", Block}, {"approve", Ask}}},
	Post:    {{{"warn", Warn}, {"redact", Redacts}, {"block", Block}}, {{"warn", Warn}, {"redact", Redacts}, {"deny", Block}}},
	Session: {{{"block", Block}}, {{"deny", Block}}},
}

func (r *reader) then(n *source.Node, field string, rule *Rule) error {
	then, err := r.need(n, field, "then")
	if err != nil {
		return err
	}
	field = source.Join(field, "then")
	verb, old := "action", 0
	if r.old {
		verb, old = "effect", 1
	}
	known := []string{verb, "message", "tags", "metadata"}
	if rule.Type == Pre {
		known = append(known, "timeout", "timeout_action", "timeout_effect")
	}
	if err := r.only(then, field, known...); err != nil {
		return err
	}
	action, err := r.need(then, field, verb)
	if err != nil {
		return err
	}
	if rule.Action, err = word(r, action, source.Join(field, verb), actions[rule.Type][old]); err != nil {
		return err
	}
	message, err := r.need(then, field, "message")
	if err != nil {
		return err
	}
	if rule.Message, err = r.text(message, source.Join(field, "message"), mostMessage, nil); err != nil {
		return err
	}
	if tags, ok := then.Get("tags"); ok {
		if tags.Kind != source.List {
			return r.wrong(tags, source.Join(field, "tags"), "must be a list of texts, got %s", tags.Repr())
		}
		for i := range tags.Items {
			tag, err := r.text(&tags.Items[i], fmt.Sprintf("%s.tags[%d]", field, i), 0, nil)
			if err != nil {
				return err
			}
			rule.Tags = append(rule.Tags, tag)
		}
	}
	if m, ok := then.Get("metadata"); ok {
		if m.Kind != source.Map {
			return r.wrong(m, source.Join(field, "metadata"), "must be a mapping, got %s", m.Repr())
		}
		if err := r.certain(m, source.Join(field, "metadata")); err != nil {
			return err
		}
		if rule.Metadata, err = m.Value(); err != nil {
			return r.wrong(m, source.Join(field, "metadata"), "%v", err)
		}
	} else {
		rule.Metadata = value.OfMap()
	}
	return r.timeout(then, field, rule)
}

// onTimeout are the words of both vocabularies: published rulesets mix them. True
// allows.
var onTimeout = []choice[bool]{{"block", false}, {"allow", true}, {"deny", false}}

func (r *reader) timeout(n *source.Node, field string, rule *Rule) (err error) {
	if t, ok := n.Get("timeout"); ok {
		if rule.Timeout, err = r.count(t, source.Join(field, "timeout")); err != nil {
			return err
		}
	}
	given := ""
	for _, name := range []string{"timeout_action", "timeout_effect"} {
		t, ok := n.Get(name)
		if !ok {
			continue
		}
		if given != "" {
			return r.wrong(t, source.Join(field, name), "stands beside %s; give one of them", given)
		}
		given = name
		if rule.AllowOnTimeout, err = word(r, t, source.Join(field, name), onTimeout); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) limits(n *source.Node, field string, rule *Rule) error {
	limits, err := r.need(n, field, "limits")
	if err != nil {
		return err
	}
	field = source.Join(field, "limits")
	if err := r.only(limits, field, "max_tool_calls", "max_attempts", "max_calls_per_tool"); err != nil {
		return err
	}
	if len(limits.Keys) == 0 {
		return r.wrong(limits, field, "must have one or more of max_tool_calls, max_attempts, max_calls_per_tool")
	}
	for i := range limits.Keys {
		name, item := limits.Keys[i].Text, &limits.Items[i]
		at := source.Join(field, name)
		switch name {
		case "max_tool_calls":
			rule.Limits.ToolCalls, err = r.count(item, at)
		case "max_attempts":
			rule.Limits.Attempts, err = r.count(item, at)
		default:
			err = r.perTool(item, at, rule)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) perTool(n *source.Node, field string, rule *Rule) (err error) {
	if n.Kind != source.Map || len(n.Keys) == 0 {
		return r.wrong(n, field, "must be a mapping of one or more names, got %s", n.Repr())
	}
	rule.Limits.PerTool = map[string]int64{}
	if err := r.certainNames(n, field); err != nil {
		return err
	}
	for i := range n.Keys {
		if rule.Limits.PerTool[n.Keys[i].Text], err = r.count(&n.Items[i], source.Join(field, n.Keys[i].Text)); err != nil {
			return err
		}
	}
	return nil
}

// outsides are the words of both vocabularies.
var outsides = [2][]choice[Action]{
	{{"block", Block}, {"ask", Ask}, {"approve", Ask}},
	{{"deny", Block}, {"approve", Ask}},
}

func (r *reader) sandbox(n *source.Node, field string, rule *Rule) error {
	message, err := r.need(n, field, "message")
	if err != nil {
		return err
	}
	if rule.Message, err = r.text(message, source.Join(field, "message"), mostMessage, nil); err != nil {
		return err
	}
	tool, one := n.Get("tool")
	tools, some := n.Get("tools")
	switch {
	case one == some:
		return r.wrong(n, source.Join(field, "tool"), "give exactly one of tool and tools")
	case one:
		name, err := r.text(tool, source.Join(field, "tool"), 0, nil)
		if err != nil {
			return err
		}
		rule.Tools = []string{name}
	default:
		if rule.Tools, err = r.texts(tools, source.Join(field, "tools")); err != nil {
			return err
		}
	}
	rule.Action, rule.Metadata = Block, value.OfMap()
	if o, ok := n.Get("outside"); ok {
		old := 0
		if r.old {
			old = 1
		}
		if rule.Action, err = word(r, o, source.Join(field, "outside"), outsides[old]); err != nil {
			return err
		}
	}
	for name, list := range map[string]*[]string{"within": &rule.Box.Within, "not_within": &rule.Box.NotWithin} {
		if f, ok := n.Get(name); ok {
			if *list, err = r.texts(f, source.Join(field, name)); err != nil {
				return err
			}
		}
	}
	if err := r.allows(n, field, "allows", &rule.Box.Commands, &rule.Box.Domains); err != nil {
		return err
	}
	if err := r.allows(n, field, "not_allows", nil, &rule.Box.NotDomains); err != nil {
		return err
	}
	_, within := n.Get("within")
	_, allows := n.Get("allows")
	_, notWithin := n.Get("not_within")
	_, notAllows := n.Get("not_allows")
	if !within && !allows && !notWithin && !notAllows {
		return r.wrong(n, source.Join(field, "within"), "give within or allows")
	}
	return r.timeout(n, field, rule)
}

func (r *reader) allows(n *source.Node, field, name string, commands, domains *[]string) (err error) {
	a, ok := n.Get(name)
	if !ok {
		return nil
	}
	field = source.Join(field, name)
	known := map[string]*[]string{"domains": domains}
	names := []string{"domains"}
	if commands != nil {
		known["commands"], names = commands, []string{"commands", "domains"}
	}
	if err := r.only(a, field, names...); err != nil {
		return err
	}
	if len(a.Keys) == 0 {
		return r.wrong(a, field, "must not be empty")
	}
	for i := range a.Keys {
		if *known[a.Keys[i].Text], err = r.texts(&a.Items[i], source.Join(field, a.Keys[i].Text)); err != nil {
			return err
		}
	}
	return nil
}
