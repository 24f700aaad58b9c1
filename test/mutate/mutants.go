package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A mutant is a file in which one stretch of text is another.
type mutant struct {
	root     string // the folder that was named
	file     string
	line     int
	column   int
	from, to int // bytes of the file
	// The function around it; zero if there is none.
	begin, end place
	text       []byte
	with       string
}

func (m *mutant) String() string {
	was := strings.Join(strings.Fields(string(m.text[m.from:m.to])), " ")
	if len(was) > 60 {
		was = was[:60] + "…"
	}
	with := m.with
	if with == "" {
		with = "nothing"
	}
	return fmt.Sprintf("%s:%d: %s -> %s", m.file, m.line, was, with)
}

func (m *mutant) source() []byte {
	return slices.Concat(m.text[:m.from], []byte(m.with), m.text[m.to:])
}

// swaps are the operators that are mistaken for each other.
var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
	token.OR: token.AND, token.AND: token.OR, token.SHL: token.SHR, token.SHR: token.SHL,
}

// talk is what tells people or gauges something, which no promise is about.
var talk = []string{"Debug", "Info", "Warn", "Error", "Inc", "Observe", "Add", "Set", "Printf", "Println"}

// mutants returns those of all files below folders that are built with the tags, tests
// and generated code apart.
func mutants(folders []string, tags string) (all []*mutant, err error) {
	built := build.Default
	built.BuildTags = strings.Split(tags, ",")
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			if strings.HasSuffix(filepath.Dir(path), "test") || d.Name() == "seeded.go" {
				return nil // what tests share, and what bugs on purpose need
			}
			if ok, err := built.MatchFile(filepath.Dir(path), d.Name()); err != nil || !ok {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files := token.NewFileSet()
			f, err := parser.ParseFile(files, path, text, parser.ParseComments)
			if err != nil || ast.IsGenerated(f) {
				return err
			}
			source := func(n ast.Node) string {
				return string(text[files.Position(n.Pos()).Offset:files.Position(n.End()).Offset])
			}
			collect(f, source, func(from, to token.Pos, with string) {
				at := files.Position(from)
				m := &mutant{root: filepath.Clean(folder), file: path, line: at.Line, column: at.Column, from: at.Offset, to: files.Position(to).Offset, text: text, with: with}
				for _, d := range f.Decls {
					if _, ok := d.(*ast.FuncDecl); ok && d.Pos() <= from && from < d.End() {
						begin, end := files.Position(d.Pos()), files.Position(d.End())
						m.begin, m.end = place{begin.Line, begin.Column}, place{end.Line, end.Column}
					}
				}
				all = append(all, m)
			})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// collect finds the places of a file that can be changed. source is the text of
// a node.
func collect(f *ast.File, source func(ast.Node) string, change func(from, to token.Pos, with string)) {
	operator := func(at token.Pos, op token.Token) {
		if other, ok := swaps[op]; ok {
			change(at, at+token.Pos(len(op.String())), other.String())
		}
	}
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.IMPORT && n.Tok != token.TYPE
		case *ast.BinaryExpr:
			operator(n.OpPos, n.Op)
		case *ast.IncDecStmt:
			operator(n.TokPos, n.Tok)
		case *ast.AssignStmt:
			operator(n.TokPos, n.Tok)
			if n.Tok == token.ASSIGN && !blank(n) {
				change(n.Pos(), n.End(), "")
			}
		case *ast.IfStmt:
			change(n.Cond.Pos(), n.Cond.End(), "!("+source(n.Cond)+")")
			if seeded(n.Cond) {
				ast.Inspect(n.Cond, visit)
				if n.Else != nil {
					ast.Inspect(n.Else, visit)
				}
				return false
			}
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && !talks(call) {
				change(n.Pos(), n.End(), "")
			} else if ok {
				return false
			}
		case *ast.DeferStmt:
			change(n.Pos(), n.End(), "")
		case *ast.BranchStmt:
			if n.Label == nil && n.Tok == token.CONTINUE {
				change(n.Pos(), n.End(), "break")
			}
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				change(n.Pos(), n.End(), strconv.FormatBool(n.Name == "false"))
			}
		case *ast.BasicLit:
			if v, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
				change(n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
			}
		}
		return true
	}
	ast.Inspect(f, visit)
}

// seeded reports whether a condition holds only where a bug is put in on purpose: what
// follows is in no program.
func seeded(cond ast.Expr) bool {
	switch x := cond.(type) {
	case *ast.BinaryExpr:
		return x.Op == token.LAND && (seeded(x.X) || seeded(x.Y))
	case *ast.CallExpr:
		on, ok := x.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		of, ok := on.X.(*ast.Ident)
		return ok && of.Name == "seeded" && on.Sel.Name == "On"
	}
	return false
}

// blank reports whether an assignment only says that nobody uses the value.
func blank(n *ast.AssignStmt) bool {
	return !slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

func talks(call *ast.CallExpr) bool {
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains(talk, s.Sel.Name)
}
