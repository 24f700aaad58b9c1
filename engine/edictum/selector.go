package edictum

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"example.com/govnode/engine/edictum/sandbox"
	"example.com/govnode/engine/value"
)

// What rules look at.

// A Call is one that is to be judged. It is not changed.
type Call struct {
	Tool        string
	Args        value.Value // a mapping
	CallID      string
	Environment string      // production if empty
	Principal   value.Value // on whose behalf: a mapping of user_id, service_id, org_id, role, ticket_ref and claims, or null
	Metadata    value.Value // a mapping or null
	// Env is what env.NAME selects; nil selects nothing. Texts come as [Coerce] reads
	// them.
	Env func(name string) (value.Value, bool)
	// Explain has records made of rules that did not apply, too.
	Explain bool
}

// An Output is what a call has returned.
type Output struct {
	Value value.Value // null for none
	Error string      // the text of an exception; what post rules see then
}

// text is what output.text selects.
func (o *Output) text() (string, bool) {
	switch {
	case o.Error != "":
		return o.Error, true
	case o.Value.Kind() == value.Null:
		return "", false
	}
	if s, ok := o.Value.AsString(); ok {
		return s, true
	}
	return o.Value.Repr(), true
}

// Succeeded tells whether an output is that of a success.
func (o *Output) Succeeded() bool {
	if o.Error != "" {
		return false
	}
	if v, ok := o.Value.Get("is_error"); ok && o.Value.Kind() == value.Map {
		if b, isBool := v.AsBool(); isBool && b {
			return false
		}
	}
	if s, ok := o.Value.AsString(); ok {
		start := strings.ToLower(s[:min(len(s), 6)])
		return !strings.HasPrefix(start, "error:") && !strings.HasPrefix(start, "fatal:")
	}
	return true
}

// A SideEffect says what a call may change.
type SideEffect = sandbox.SideEffect

// The side effects. Irreversible is the zero value.
const (
	Irreversible = sandbox.Irreversible
	Write        = sandbox.Write
	Read         = sandbox.Read
	Pure         = sandbox.Pure
)

// A source is what the first word of a selector names.
type selected uint8

const (
	unknown selected = iota
	ofEnvironment
	ofTool
	ofArgs
	ofPrincipal
	ofMetadata
	ofOutput
	ofEnv
)

// A selector is one that is read.
type selector struct {
	from selected
	path []string // in what it names; of ofOutput empty for output.text
}

var principalFields = map[string]bool{"user_id": true, "service_id": true, "org_id": true, "role": true, "ticket_ref": true}

func selectorOf(text string) selector {
	switch text {
	case "environment":
		return selector{from: ofEnvironment}
	case "tool.name":
		return selector{from: ofTool}
	case "output.text":
		return selector{from: ofOutput}
	}
	first, rest, _ := strings.Cut(text, ".")
	if rest == "" {
		return selector{}
	}
	parts := strings.Split(rest, ".")
	switch first {
	case "args":
		return selector{ofArgs, parts}
	case "metadata":
		return selector{ofMetadata, parts}
	case "result":
		return selector{ofOutput, parts}
	case "env":
		return selector{ofEnv, []string{rest}}
	case "principal":
		if principalFields[rest] || parts[0] == "claims" && len(parts) > 1 {
			return selector{ofPrincipal, parts}
		}
	}
	return selector{}
}

// A scene is what a rule is judged on.
type scene struct {
	call   *Call
	output *Output // nil before the call
	seen   [remembered]struct {
		done, there bool
		v           value.Value
	}
}

// remembered is how many selectors of a ruleset are looked up once for a call: many
// rules look at the same.
const remembered = 8

// look is find for a selector with a number.
func (s *scene) look(t *test) (value.Value, bool) {
	if t.number < 0 {
		return s.find(t.selector)
	}
	c := &s.seen[t.number]
	if !c.done {
		c.v, c.there = s.find(t.selector)
		c.done = true
	}
	return c.v, c.there
}

// find returns what a selector selects. Null is missing.
func (s *scene) find(of selector) (value.Value, bool) {
	var v value.Value
	switch of.from {
	case ofEnvironment:
		return value.OfString(s.environment()), true
	case ofTool:
		return value.OfString(s.call.Tool), true
	case ofArgs:
		v = s.call.Args
	case ofMetadata:
		v = s.call.Metadata
	case ofPrincipal:
		v = s.call.Principal
	case ofEnv:
		if s.call.Env == nil {
			return value.Value{}, false
		}
		return s.call.Env(of.path[0])
	case ofOutput:
		if s.output == nil {
			return value.Value{}, false
		}
		if len(of.path) == 0 {
			text, ok := s.output.text()
			return value.OfString(text), ok
		}
		v = s.output.Value
	default:
		return value.Value{}, false
	}
	return walk(v, of.path)
}

func walk(v value.Value, path []string) (value.Value, bool) {
	for _, name := range path {
		if v.Kind() != value.Map {
			return value.Value{}, false
		}
		var ok bool
		if v, ok = v.Get(name); !ok {
			return value.Value{}, false
		}
	}
	return v, v.Kind() != value.Null
}

func (s *scene) environment() string {
	if s.call.Environment == "" {
		return "production"
	}
	return s.call.Environment
}

var (
	integerForm = regexp.MustCompile(`^[+-]?[0-9]+$`)
	floatForm   = regexp.MustCompile(`^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$`)
)

// Coerce reads the text of a variable of the environment: true and false, integers and
// floats are what they look like, everything else is a text.
func Coerce(text string) value.Value {
	switch strings.ToLower(text) {
	case "true":
		return value.OfBool(true)
	case "false":
		return value.OfBool(false)
	}
	if integerForm.MatchString(text) {
		digits := strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(text, "+"), "-"), "0")
		if digits == "" {
			digits = "0"
		}
		if strings.HasPrefix(text, "-") && digits != "0" {
			digits = "-" + digits
		}
		if v, err := value.OfNumber(digits); err == nil {
			return v
		}
	}
	if floatForm.MatchString(text) {
		if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(f, 0) {
			return value.OfFloat(f)
		}
	}
	return value.OfString(text)
}
