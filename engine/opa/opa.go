//go:build !noopa

package opa

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"

	"example.com/govnode/engine"
)

// How a tree with Rego is compiled, and asked about a call.

const (
	query = "data.agentos.allow"

	// maxText bounds the modules of a tree together, in bytes. The compiler takes
	// time quadratic in some of what they may hold: at this size 3 s at worst.
	maxText = 64 << 10

	// maxDepth bounds how deeply the nodes of a module's syntax tree are nested;
	// an operator makes two levels. The compiler takes time quadratic in it.
	maxDepth = 400
)

// forbidden are the built-in functions that reach out of the evaluation: to the
// network, and to the environment of the process.
var forbidden = []string{"http.send", "net.lookup_ip_addr", "opa.runtime"}

// backend is the prepared query of one tree. It never changes.
type backend struct{ query rego.PreparedEvalQuery }

var _ engine.BackendLoader = Load

// Load compiles *.rego and data.json files: all modules are one set, and a
// data.json in a folder lies below that folder's path in data.
func Load(files []engine.File) (engine.Backend, []engine.Problem) {
	l := loader{modules: make(map[string]*ast.Module), data: make(map[string]any)}
	files = slices.Clone(files)
	slices.SortFunc(files, func(x, y engine.File) int { return strings.Compare(x.Path, y.Path) })
	size := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Path, ".rego") {
			l.addData(f)
			continue
		}
		if size += len(f.Content); size > maxText {
			l.problem(f.Path, 0, fmt.Sprintf("the modules up to here have more than %d bytes together; split the tree, or move lists into data.json", maxText))
			break
		}
		l.addModule(f)
	}
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	b := l.compile(files[0].Path)
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	return b, nil
}

// loader gathers the files of a tree.
type loader struct {
	modules  map[string]*ast.Module
	data     map[string]any
	problems []engine.Problem
}

func (l *loader) problem(path string, line int, message string) {
	l.problems = append(l.problems, engine.Problem{Path: path, Line: line, Message: message})
}

// addModule parses a module as v1, the syntax of today, and if it is none as
// v0, in which most policies for the reference are written.
func (l *loader) addModule(f engine.File) {
	module, err := parse(f, ast.RegoV1)
	if err != nil {
		var errV0 error
		if module, errV0 = parse(f, ast.RegoV0); errV0 == nil {
			err = nil
		}
	}
	if err != nil {
		l.refuse(f.Path, err)
		return
	}
	if line := tooDeep(module); line > 0 {
		l.problem(f.Path, line, fmt.Sprintf("expressions are nested deeper than %d levels", maxDepth))
		return
	}
	l.modules[f.Path] = module
}

// tooDeep returns the line of a term below maxDepth, or 0.
func tooDeep(module *ast.Module) (line int) {
	depth := 0
	ast.NewBeforeAfterVisitor(func(x any) bool {
		depth++
		if term, ok := x.(*ast.Term); ok && depth > maxDepth && line == 0 {
			line = 1
			if term.Location != nil {
				line = term.Location.Row
			}
		}
		return line > 0
	}, func(any) { depth-- }).Walk(module)
	return line
}

func parse(f engine.File, version ast.RegoVersion) (module *ast.Module, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the Rego parser panicked: %v", r)
		}
	}()
	module, err = ast.ParseModuleWithOpts(f.Path, string(f.Content), ast.ParserOptions{RegoVersion: version})
	if err == nil && module == nil {
		err = errors.New("the file holds no module")
	}
	return module, err
}

// refuse reports an error of the library, which may be many.
func (l *loader) refuse(path string, err error) {
	var list ast.Errors
	if !errors.As(err, &list) {
		l.problem(path, 0, err.Error())
		return
	}
	for _, e := range list {
		if e.Location == nil {
			l.problem(path, 0, e.Message)
			continue
		}
		l.problem(e.Location.File, e.Location.Row, e.Message)
	}
}

func (l *loader) compile(path string) (b *backend) {
	defer func() {
		if r := recover(); r != nil {
			l.problem(path, 0, fmt.Sprintf("the Rego compiler panicked: %v", r))
		}
	}()
	ctx := context.Background()
	store := inmem.NewFromObject(l.data)
	conflicts := func(path []string) (exists bool, err error) {
		err = storage.Txn(ctx, store, storage.TransactionParams{}, func(txn storage.Transaction) error {
			exists, err = storage.NonEmpty(ctx, store, txn)(path)
			return err
		})
		return exists, err
	}
	compiler := ast.NewCompiler().WithCapabilities(capabilities()).WithPathConflictsCheck(conflicts).SetErrorLimit(20)
	if compiler.Compile(l.modules); compiler.Failed() {
		l.refuse(path, compiler.Errors)
		return nil
	}
	if len(compiler.GetRulesExact(ast.MustParseRef(query))) == 0 {
		l.problem(path, 0, "no module defines allow in package agentos, so that every call would be denied; add that rule")
		return nil
	}
	prepared, err := rego.New(
		rego.Query(query), rego.Compiler(compiler), rego.Store(store), rego.StrictBuiltinErrors(true),
	).PrepareForEval(ctx)
	if err != nil {
		l.refuse(path, err)
		return nil
	}
	return &backend{prepared}
}

// capabilities are the library's without what reaches out of an evaluation.
func capabilities() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool { return slices.Contains(forbidden, b.Name) })
	c.AllowNet = []string{} // no schema may be fetched either
	return c
}

// Name implements engine.Backend.
func (*backend) Name() string { return "opa" }

// Evaluate implements engine.Backend. Only true allows; false and undefined
// deny; any other value, a conflict between rules and the error of a built-in
// function are errors, of rules that are looked at: OPA may end at one that is true.
func (b *backend) Evaluate(ctx context.Context, in engine.BackendInput) (d engine.BackendDecision, err error) {
	defer func() {
		if r := recover(); r != nil {
			d, err = engine.BackendDecision{}, fmt.Errorf("the Rego evaluator panicked: %v", r)
		}
	}()
	input, err := inputOf(in.Context)
	if err != nil {
		return engine.BackendDecision{}, err
	}
	results, err := b.query.Eval(ctx, rego.EvalParsedInput(input))
	if err != nil {
		return engine.BackendDecision{}, err
	}
	if err := ctx.Err(); err != nil {
		return engine.BackendDecision{}, err
	}
	if len(results) == 0 {
		return engine.BackendDecision{Reason: query + " is undefined"}, nil
	}
	if len(results) > 1 || len(results[0].Expressions) != 1 {
		return engine.BackendDecision{}, fmt.Errorf("%s has %d answers", query, len(results))
	}
	allowed, ok := results[0].Expressions[0].Value.(bool)
	if !ok {
		return engine.BackendDecision{}, fmt.Errorf("%s is neither true nor false but %.80v", query, results[0].Expressions[0].Value)
	}
	return engine.BackendDecision{Allowed: allowed, Reason: fmt.Sprintf("%s is %t", query, allowed)}, nil
}
