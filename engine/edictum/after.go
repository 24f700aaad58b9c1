package edictum

import (
	"slices"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// Behind a call: what of its output is shown. Nothing here refuses the call, which has
// run.

// A Finding is a rule that found something in an output.
type Finding struct {
	Type     string // pii_detected, secret_detected, limit_exceeded or policy_violation
	Rule     string
	Field    string
	Message  string
	Metadata value.Value
}

// A Result is what a ruleset says of an output.
type Result struct {
	Output     value.Value // to be shown
	Changed    bool        // it is not what was returned
	Suppressed bool
	Warnings   []string // for the agent
	Findings   []Finding
	Passed     bool // all rules that are enforced
	Records    []Record
	// PolicyError: the output could not be judged, or not by all rules.
	PolicyError bool

	asText []*pattern.Searcher // what is taken out of the text form of a structure
}

const sign = "⚠️ "

// After judges the output of a call by all post rules, in the order of the document.
// Each sees the output as it was returned; what they do to it adds up.
func (rs *Ruleset) After(c *Call, out Output) Result {
	res := Result{Output: out.Value, Passed: true}
	if out.Error != "" {
		res.Output = value.OfString(out.Error)
	}
	s := &scene{call: c, output: &out}
	changes := rs.SideEffect(c)
	done := changes == Write || changes == Irreversible
	for _, r := range rs.of(c.Tool).post {
		result := r.before(s)
		if result == no && !c.Explain {
			continue
		}
		record := r.record(result, s)
		res.Records = append(res.Records, record)
		if record.Passed {
			continue
		}
		res.PolicyError = res.PolicyError || record.PolicyError
		text := record.Message
		res.Findings = append(res.Findings, findingOf(r, text))
		if r.observes {
			res.Warnings = append(res.Warnings, sign+"[observe] "+text)
			continue
		}
		res.Passed = false
		res.apply(r, text, done)
	}
	res.finish()
	return res
}

// Told reports whether there is something to tell of an output.
func (res *Result) Told() bool { return len(res.Findings) > 0 || res.PolicyError }

// Reviews tells whether a rule looks at what a tool returns.
func (rs *Ruleset) Reviews(tool string) bool { return len(rs.of(tool).post) > 0 }

// ReviewsAny tells whether there is a rule that looks at what some tool returns.
func (rs *Ruleset) ReviewsAny() bool {
	return slices.ContainsFunc(rs.rules, func(r rule) bool { return r.Type == Post })
}

// Unjudged is the result for an output that cannot be judged: nothing of it is shown.
func Unjudged(why string) Result {
	return Result{
		Output: value.OfString("[OUTPUT SUPPRESSED] " + why), Changed: true, Suppressed: true, PolicyError: true,
		Warnings: []string{sign + "Output suppressed: " + why},
	}
}

// finish makes a structure its Python form, and takes out what was found in that. It
// is done behind all rules: of a text no field can be redacted.
func (res *Result) finish() {
	if !res.Suppressed && len(res.asText) > 0 {
		res.Output = value.OfString(replaced(res.Output.Repr(), res.asText))
	}
}

// apply does what a rule says.
func (res *Result) apply(r *rule, text string, done bool) {
	executed := sign + text + " Tool already executed — assess before proceeding."
	switch r.Action {
	case Warn:
		if done {
			res.Warnings = append(res.Warnings, executed)
		} else {
			res.Warnings = append(res.Warnings, sign+text+" Consider retrying.")
		}
		return
	case Redacts:
		res.redact(r)
		res.Warnings = append(res.Warnings, sign+"Content redacted by "+r.ID+".")
	case Block:
		res.Output, res.Changed, res.Suppressed = value.OfString("[OUTPUT SUPPRESSED] "+text), true, true
		res.Warnings = append(res.Warnings, sign+"Output suppressed by "+r.ID+".")
	}
	if done {
		res.Warnings = append(res.Warnings, executed)
	}
}

// redact takes out of the output what the rule's expressions find, or, where it has
// none, what looks like a secret.
func (res *Result) redact(r *rule) {
	if res.Suppressed {
		return
	}
	res.Changed = true
	if len(r.redacts) == 0 {
		res.Output = eachText(res.Output, redactOutput)
		return
	}
	for _, found := range r.redacts {
		replace := func(text string) string { return replaced(text, found.searches) }
		text, isText := res.Output.AsString()
		switch {
		case len(found.path) > 0:
			res.Output = inField(res.Output, found.path, replace)
		case isText:
			res.Output = value.OfString(replace(text))
		default:
			res.asText = append(res.asText, found.searches...)
		}
	}
}

func replaced(text string, searches []*pattern.Searcher) string {
	for _, s := range searches {
		text = s.Replace(text, redacted)
	}
	return text
}

// inField changes the text of one field of a structure. What is no text cannot be
// searched, and goes as a whole.
func inField(v value.Value, path []string, change func(string) string) value.Value {
	if len(path) == 0 {
		text, isText := v.AsString()
		switch {
		case isText:
			return value.OfString(change(text))
		case v.Kind() == value.Null:
			return v
		}
		return value.OfString(redacted)
	}
	if v.Kind() != value.Map {
		return v
	}
	inner, ok := v.Get(path[0])
	if !ok {
		return v
	}
	return v.With(path[0], inField(inner, path[1:], change))
}

// eachText changes all texts of a value, names among them.
func eachText(v value.Value, change func(string) string) value.Value {
	switch v.Kind() {
	case value.String:
		s, _ := v.AsString()
		return value.OfString(change(s))
	case value.List:
		var items []value.Value
		for item := range v.Items() {
			items = append(items, eachText(item, change))
		}
		return value.OfList(items...)
	case value.Map:
		var pairs []value.Pair
		for k, item := range v.All() {
			pairs = append(pairs, value.Pair{Key: change(k), Value: eachText(item, change)})
		}
		return value.OfMap(pairs...)
	}
	return v
}

// findingTypes are tried in this order.
var findingTypes = []struct {
	name  string
	parts []string
}{
	{"pii_detected", []string{"pii", "ssn", "patient", "name", "dob"}},
	{"secret_detected", []string{"secret", "token", "key", "credential", "password"}},
	{"limit_exceeded", []string{"session", "limit", "max_calls", "budget"}},
}

func findingOf(r *rule, text string) Finding {
	f := Finding{Type: "policy_violation", Rule: r.ID, Field: "output", Message: text, Metadata: r.Metadata}
	if field := r.Metadata.TextAt("field"); field != "" {
		f.Field = field
	}
	in := strings.ToLower(r.ID + " " + text)
	for _, t := range findingTypes {
		for _, p := range t.parts {
			if strings.Contains(in, p) {
				f.Type = t.name
				return f
			}
		}
	}
	return f
}
