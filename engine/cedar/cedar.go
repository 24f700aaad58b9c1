// Package cedar lets a policy tree decide with Cedar policies (policy engine
// spec 14.4, adapter contract 3.11), evaluated in the process by cedar-go.
//
// It maps a call to a Cedar request and the answer back; the language itself is
// the library's. There is no schema validation, and policy templates are not
// supported.
package cedar

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"example.com/govnode/engine"
)

// Caps on the policies of one tree. The library parses and evaluates expressions
// recursively; without them a hostile file could exhaust the stack.
const (
	maxText  = 256 << 10 // bytes of all .cedar files together
	maxDepth = 64        // open brackets
)

// backend is the policies and entities of one tree. It never changes.
type backend struct {
	policies policies
	entities types.EntityMap
}

var _ engine.BackendLoader = Load

// Load compiles *.cedar and entities.json files: all policies are one set, in
// the order of their paths and lines, and all entities one graph. A policy is
// known by its @id annotation, or else by path#n, with n from 0.
func Load(files []engine.File) (engine.Backend, []engine.Problem) {
	b := &backend{entities: types.EntityMap{}}
	var problems []engine.Problem
	files = slices.Clone(files)
	slices.SortFunc(files, func(x, y engine.File) int { return strings.Compare(x.Path, y.Path) })
	size := 0
	for _, f := range files {
		var p *engine.Problem
		if strings.HasSuffix(f.Path, ".cedar") {
			if size += len(f.Content); size > maxText {
				return nil, []engine.Problem{{Path: f.Path, Message: fmt.Sprintf("the policies up to here have more than %d bytes together; split the tree", maxText)}}
			}
			p = b.addPolicies(f)
		} else {
			p = b.addEntities(f)
		}
		if p != nil {
			p.Path = f.Path
			problems = append(problems, *p)
		}
	}
	if len(problems) == 0 && len(b.policies) == 0 {
		problems = append(problems, engine.Problem{Path: files[0].Path, Message: "the tree's Cedar files hold no policy, so that every call would be denied; add one or remove them"})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return b, nil
}

func (b *backend) addPolicies(f engine.File) *engine.Problem {
	if line := tooDeep(f.Content); line > 0 {
		return &engine.Problem{Line: line, Message: fmt.Sprintf("brackets are nested deeper than %d", maxDepth)}
	}
	list, err := parse(f)
	if err != nil {
		line, reason := parserLine(err)
		return &engine.Problem{Line: line, Message: reason}
	}
	for i, p := range list {
		id, ok := p.Annotations()["id"]
		if !ok || id == "" {
			id = types.String(f.Path + "#" + strconv.Itoa(i))
		}
		if slices.ContainsFunc(b.policies, func(q policy) bool { return q.id == types.PolicyID(id) }) {
			return &engine.Problem{Line: p.Position().Line, Field: "@id", Message: fmt.Sprintf("a second policy has the id %q; ids are unique in a tree", string(id))}
		}
		b.policies = append(b.policies, policy{types.PolicyID(id), p})
	}
	return nil
}

// parse turns a panic of the parser into an error: its input is not trusted.
func parse(f engine.File) (list cedar.PolicyList, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the Cedar parser panicked: %v", r)
		}
	}()
	return cedar.NewPolicyListFromBytes(f.Path, f.Content)
}

var position = regexp.MustCompile(`^parse error at <input>:(\d+):(\d+)`)

// parserLine takes the place out of an error of the parser, which has it only
// in its text.
func parserLine(err error) (line int, reason string) {
	reason = strings.TrimPrefix(err.Error(), "parser error: ")
	if m := position.FindStringSubmatch(reason); m != nil {
		line, _ = strconv.Atoi(m[1])
		reason = "syntax error at column " + m[2] + ", " + strings.TrimSpace(strings.TrimPrefix(reason, m[0]))
	}
	return line, reason
}

// policies are named policies in a fixed order, so that an audit record of the
// same call is the same text each time.
type policies []policy

type policy struct {
	id types.PolicyID
	*cedar.Policy
}

// All implements cedar.PolicyIterator.
func (ps policies) All() iter.Seq2[types.PolicyID, *cedar.Policy] {
	return func(yield func(types.PolicyID, *cedar.Policy) bool) {
		for _, p := range ps {
			if !yield(p.id, p.Policy) {
				return
			}
		}
	}
}

// Name implements engine.Backend.
func (*backend) Name() string { return "cedar" }

// Evaluate implements engine.Backend. A policy that cannot be evaluated on this
// call, for instance because it reads an attribute that is not there, makes the
// whole answer an error: the library alone would skip it, a forbid as well.
func (b *backend) Evaluate(ctx context.Context, in engine.BackendInput) (d engine.BackendDecision, err error) {
	defer func() {
		if r := recover(); r != nil {
			d, err = engine.BackendDecision{}, fmt.Errorf("the Cedar evaluator panicked: %v", r)
		}
	}()
	request, err := requestOf(in)
	if err != nil {
		return engine.BackendDecision{}, err
	}
	if err := ctx.Err(); err != nil {
		return engine.BackendDecision{}, err
	}
	decision, diagnostic := cedar.Authorize(b.policies, b.entities, request)
	if err := ctx.Err(); err != nil {
		return engine.BackendDecision{}, err
	}
	if len(diagnostic.Errors) > 0 {
		return engine.BackendDecision{}, diagnosticError(diagnostic.Errors)
	}
	d.Allowed = bool(decision)
	for _, reason := range diagnostic.Reasons {
		d.Trace = append(d.Trace, string(reason.PolicyID))
	}
	d.Reason = reasonOf(d)
	return d, nil
}

func reasonOf(d engine.BackendDecision) string {
	switch {
	case d.Allowed:
		return "permitted by Cedar policy " + strings.Join(d.Trace, ", ")
	case len(d.Trace) > 0:
		return "forbidden by Cedar policy " + strings.Join(d.Trace, ", ")
	default:
		return "no Cedar policy permits it"
	}
}

func diagnosticError(list []types.DiagnosticError) error {
	var errs []error
	for _, e := range list {
		errs = append(errs, fmt.Errorf("%s:%d: policy %s: %s", e.Position.Filename, e.Position.Line, e.PolicyID, e.Message))
	}
	return errors.Join(errs...)
}

// tooDeep returns the line where brackets are nested deeper than maxDepth, or
// 0. Brackets in strings and comments do not count.
func tooDeep(text []byte) int {
	line, depth := 1, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\n':
			line++
		case '(', '[', '{':
			if depth++; depth > maxDepth {
				return line
			}
		case ')', ']', '}':
			depth--
		case '"':
			for i++; i < len(text) && text[i] != '"' && text[i] != '\n'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '/':
			if i+1 < len(text) && text[i+1] == '/' {
				for i+1 < len(text) && text[i+1] != '\n' {
					i++
				}
			}
		}
	}
	return 0
}
