// Package tidy checks the code base itself: who may import whom, and what the
// pure packages may not do.
package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "example.com/govnode/"

// mayImport lists, for each package of the product, the packages of this module
// that its code (not its tests) may import. A folder that is not named may
// import nothing of the module.
var mayImport = map[string][]string{
	"proto/grpc/health/v1":                 {},
	"proto/grpc/health/v1/healthv1connect": {"proto/grpc/health/v1"},
	"limiter":                              {"internal/seeded"},
	"session":                              {"limiter", "session/approval", "session/budget", "session/ids", "session/wire", "internal/seeded", "internal/toolname"},
	"session/ids":                          {"session/wire"},
	"session/approval":                     {},
	"session/budget":                       {},
	"session/wire":                         {},
	"session/sessiontest":                  {"session", "session/approval", "limiter"},
	"engine":                               {"engine/value", "engine/pattern", "engine/difflib", "internal/nearest", "engine/source", "engine/redact", "engine/governance", "engine/document", "engine/call", "engine/external", "engine/matching", "engine/composition", "engine/authoring", "engine/edictum", "engine/edictum/workflow", "internal/seeded"},
	"engine/edictum":                       {"engine/edictum/sandbox", "engine/pattern", "engine/source", "engine/value"},
	"engine/edictum/sandbox":               {"engine/pattern", "engine/value"},
	"engine/edictum/workflow":              {"engine/edictum", "engine/edictum/sandbox", "engine/pattern", "engine/source", "engine/value"},
	"engine/authoring":                     {"engine/composition", "engine/matching", "engine/external", "engine/call", "engine/document", "engine/governance", "engine/pattern", "engine/source", "engine/value", "internal/nearest"},
	"engine/composition":                   {"engine/matching", "engine/document", "engine/governance", "engine/pattern", "engine/source", "engine/value"},
	"engine/matching":                      {"engine/call", "engine/document", "engine/pattern", "engine/source", "engine/value"},
	"engine/external":                      {"engine/document", "engine/governance", "engine/redact", "engine/source", "engine/value"},
	"engine/call":                          {"engine/value"},
	"engine/document":                      {"engine/governance", "engine/source", "engine/pattern", "engine/value", "internal/nearest"},
	"engine/governance":                    {"engine/source", "engine/pattern", "engine/value", "internal/nearest", "internal/toolname"},
	"engine/redact":                        {"engine/value"},
	"engine/source":                        {"engine/value"},
	"engine/enginetest":                    {"engine/external", "engine/document", "engine/source", "engine/value"},
	"engine/value":                         {},
	"engine/internal/oracle":               {},
	"engine/difflib":                       {},
	"engine/pattern":                       {"engine/value"},
	"engine/cedar":                         {"engine", "engine/value"},
	"engine/opa":                           {"engine", "engine/value"},
	"storage":                              {"session", "session/ids", "limiter"},
	"storage/storagetest":                  {"storage", "session", "session/approval", "session/ids", "session/sessiontest"},
	"cluster":                              {"storage", "session", "limiter", "proto/govnode/node/v1", "proto/govnode/node/v1/nodev1connect", "cluster/durable", "cluster/transport", "internal/pki", "internal/window", "internal/seeded"},
	"cluster/durable":                      {"internal/seeded"},
	"cluster/transport":                    {"internal/pki", "proto/govnode/node/v1/nodev1connect"},
	"client":                               {"proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "internal/pki", "internal/window", "client/internal/arguments", "client/internal/ids", "client/internal/wire", "internal/seeded"},
	"internal/audit":                       {"engine", "session", "internal/pki"},
	"internal/server":                      {"internal/audit", "internal/pki", "internal/server/quota", "internal/server/access", "internal/server/tokens", "session/budget", "internal/server/flows", "internal/server/record", "internal/server/approvals", "internal/server/health", "internal/server/limits", "internal/server/values", "internal/server/policies", "internal/server/order", "internal/server/words", "internal/server/gate", "internal/server/members", "internal/server/sweep", "internal/server/waiting", "internal/server/input", "internal/server/fault", "proto/grpc/health/v1/healthv1connect", "storage", "session", "engine", "engine/value", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "internal/window", "internal/seeded"},
	"internal/edictum":                     {"client", "internal/lobby", "engine/value", "proto/govnode/v1"},
	"internal/lobby":                       {},
	"internal/server/access":               {"internal/lobby", "internal/server/fault", "internal/server/input", "session", "storage", "proto/govnode/v1"},
	"internal/server/tokens":               {"internal/server/quota", "internal/server/access", "internal/server/fault", "internal/server/input", "internal/server/order", "internal/server/record", "session", "storage", "proto/govnode/v1"},
	"internal/server/quota":                {"internal/lobby", "internal/server/fault", "session", "storage"},
	"internal/server/fault":                {"session", "storage", "proto/govnode/v1"},
	"internal/server/input":                {"internal/server/fault", "internal/toolname", "session", "session/approval", "session/budget", "session/ids", "engine", "engine/value"},
	"internal/server/order":                {"internal/server/quota", "internal/server/access", "internal/server/fault", "internal/server/input", "session", "storage", "proto/govnode/v1"},
	"internal/server/approvals":            {"internal/server/access", "internal/server/fault", "internal/server/input", "internal/server/order", "internal/server/record", "internal/server/waiting", "internal/server/words", "session", "session/approval", "storage", "engine", "engine/value", "proto/govnode/v1"},
	"internal/server/limits":               {"internal/server/access", "internal/server/fault", "internal/server/input", "internal/server/order", "internal/server/record", "internal/server/words", "session", "session/budget", "storage", "proto/govnode/v1"},
	"internal/server/values":               {"internal/server/access", "internal/server/fault", "internal/server/flows", "internal/server/input", "internal/server/order", "engine", "session", "storage", "proto/govnode/v1"},
	"internal/server/policies":             {"internal/server/access", "internal/server/fault", "internal/server/input", "internal/server/order", "session", "storage", "engine", "proto/govnode/v1"},
	"internal/server/health":               {"proto/govnode/v1", "proto/grpc/health/v1"},
	"internal/server/sweep":                {"session", "storage", "internal/seeded"},
	"internal/server/waiting":              {"internal/server/fault", "session", "storage"},
	"internal/server/gate":                 {"internal/server/fault", "proto/govnode/v1", "engine"},
	"internal/server/members":              {"internal/server/fault", "session", "storage"},
	"internal/server/flows":                {"internal/server/fault", "internal/server/input", "internal/server/order", "session", "session/approval", "storage", "engine", "engine/value", "proto/govnode/v1"},
	"internal/server/words":                {"internal/server/input", "session", "session/approval", "engine", "engine/value", "proto/govnode/v1"},
	"internal/server/record":               {"internal/server/access", "internal/server/fault", "internal/server/input", "internal/server/members", "internal/server/words", "session", "engine", "engine/value", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect"},
	"internal/nearest":                     {},
	"internal/toolname":                    {},
	"internal/pki":                         {},
	"storage/redis":                        {"storage", "storage/redis/internal/wire", "session", "session/ids"},
	"storage/redis/internal/wire":          {"session"},
	"client/internal/arguments":            {},
	"client/internal/ids":                  {},
	"client/internal/wire":                 {"proto/govnode/v1"},
	"internal/seeded":                      {},
	"internal/tidy":                        {},
	"internal/window":                      {},
	"test/edictum/go":                      {"engine/edictum", "engine/value"}, // a module of its own
	"cmd/govnode":                          {"*"},
	"cmd/govnode/internal/terminal":        {"internal/nearest"},
	"cmd/govnode/internal/address":         {},
	"cmd/govnode/internal/version":         append(rooms("terminal"), "session"),
	"cmd/govnode/internal/process":         rooms("terminal"),
	"cmd/govnode/internal/config":          append(rooms("terminal", "address"), "internal/nearest", "internal/pki"),
	"cmd/govnode/internal/remote":          append(rooms("terminal", "address", "config"), "internal/pki", "proto/govnode/v1/govnodev1connect"),
	"cmd/govnode/internal/complete":        append(rooms("terminal", "config", "remote"), "proto/govnode/v1"),
	"cmd/govnode/internal/operate":         append(rooms("terminal", "address", "config", "remote", "process"), "internal/audit", "proto/govnode/v1", "session"),
	"cmd/govnode/internal/policy":          append(rooms("terminal", "config", "remote"), "proto/govnode/v1", "engine", "engine/value", "engine/cedar", "engine/opa"),
	"cmd/govnode/internal/edictum":         append(rooms("terminal", "config", "remote"), "internal/edictum", "engine/edictum", "engine/edictum/workflow", "engine/source", "engine/value", "proto/govnode/v1"),
	"cmd/govnode/internal/certify":         append(rooms("terminal"), "internal/pki"),
	"cmd/govnode/internal/serve":           append(rooms("terminal", "address", "version", "process", "config", "policy", "remote"), "internal/audit", "internal/edictum", "internal/lobby", "internal/pki", "internal/server", "cluster", "session", "storage", "storage/redis", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect"),
	"cmd/govnode/internal/dev":             append(rooms("terminal", "address", "process", "config", "serve"), "internal/edictum", "cluster", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect"),
	"cmd/govnode/internal/demo":            append(rooms("terminal", "process", "config", "remote", "dev"), "client", "cluster", "proto/govnode/v1"),
	"cmd/govnode/internal/bench":           append(rooms("terminal", "address", "process", "config", "dev"), "client", "bench", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect"),
	"bench":                                {"*"},
	"bench/etcd":                           {"bench"}, // a module of its own
	"bench/policy":                         {"*"},
	"proto/govnode/v1":                     {},
	"proto/govnode/log/v1":                 {},
	"examples/fleet":                       {"client"},
	"test/docs":                            {},
	"test/examples":                        {},
	"test/model":                           {"session", "session/approval", "session/budget", "session/ids", "session/wire", "limiter", "test/report"},
	"test/outside":                         {},
	"test/alone":                           {"client", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "proto/grpc/health/v1", "proto/grpc/health/v1/healthv1connect"},
	"test/check":                           {},
	"test/report":                          {},
	"test/processes/disks":                 {},
	"test/processes/skew":                  {},
	"test/chaos/trail":                     {"test/check", "test/processes"},
	"test/chaos/power":                     {"proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "test/chaos/trail", "test/check", "test/processes", "test/processes/disks", "test/report"},
	"test/mutate":                          {},
	"test/processes":                       {"proto/govnode/v1", "proto/govnode/v1/govnodev1connect"},
	"test/chaos":                           {"cluster/durable", "test/chaos/power", "test/processes/skew", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "test/alone", "test/chaos/trail", "test/check", "test/processes", "test/report", "test/sim"},
	"test/seeded":                          {"test/report", "test/sim", "test/chaos/power", "test/processes/disks"},
	"test/prove":                           {"test/report"},
	"test/attack":                          {},
	"test/attack/vectors":                  {"proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "session", "test/processes"},
	"test/attack/load":                     {"test/processes"},
	"test/sim":                             {"cluster", "cluster/durable", "engine", "engine/cedar", "engine/opa", "internal/server", "client", "session", "storage", "proto/govnode/v1", "proto/govnode/v1/govnodev1connect", "test/alone", "test/check", "test/report"},
	"proto/govnode/v1/govnodev1connect":    {"proto/govnode/v1"},
	"proto/govnode/node/v1":                {},
	"proto/govnode/node/v1/nodev1connect":  {"proto/govnode/node/v1"},
}

// rooms are packages of cmd/govnode.
func rooms(names ...string) (paths []string) {
	for _, name := range names {
		paths = append(paths, "cmd/govnode/internal/"+name)
	}
	return paths
}

// pure packages are functions of their input.
var pure = []string{"limiter", "session", "session/approval", "session/budget", "session/ids", "session/wire"}

var forbiddenImports = []string{"math/rand", "math/rand/v2", "crypto/rand", "sync", "sync/atomic", "context", "os", "log", "log/slog", "net", "net/http"}
var forbiddenTime = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	eachFile(t, func(dir, path string, f *ast.File, _ *token.FileSet) {
		allowed, known := mayImport[dir]
		require.True(t, known, "%s: folder %q is not in the import table", path, dir)
		seen[dir] = true
		for _, imp := range f.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			sub, ours := strings.CutPrefix(name, module)
			if !ours || slices.Contains(allowed, "*") {
				continue
			}
			require.Contains(t, allowed, sub, "%s may not import %s", path, sub)
		}
	})
	require.True(t, seen["session"] && seen["limiter"], "the checker found no code")
}

func TestPurePackages(t *testing.T) {
	eachFile(t, func(dir, path string, f *ast.File, set *token.FileSet) {
		if !slices.Contains(pure, dir) {
			return
		}
		for _, imp := range f.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			require.NotContains(t, forbiddenImports, name, "%s: a pure package", path)
		}
		lines := source(t, path)
		for _, problem := range impurities(f, set, lines) {
			t.Errorf("%s: %s", path, problem)
		}
	})
}

// impurities finds forbidden statements and calls, and ranges over maps without
// a reason.
func impurities(f *ast.File, set *token.FileSet, lines []string) (problems []string) {
	at := func(n ast.Node) string { return strconv.Itoa(set.Position(n.Pos()).Line) }
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			problems = append(problems, "line "+at(n)+": starts a goroutine")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(forbiddenTime, n.Sel.Name) {
				problems = append(problems, "line "+at(n)+": reads a clock")
			}
		case *ast.Ident:
			if n.Name == "float64" || n.Name == "float32" {
				problems = append(problems, "line "+at(n)+": uses floating point")
			}
		case *ast.RangeStmt:
			if mapLike(n.X) && !strings.Contains(lines[set.Position(n.Pos()).Line-1], "order-free:") {
				problems = append(problems, "line "+at(n)+": ranges over a map and does not say why the order is free")
			}
		}
		return true
	})
	return problems
}

// mapLike recognises the maps of the pure packages by the names of the fields
// and variables that hold them; types are not resolved here.
func mapLike(x ast.Expr) bool {
	name := ""
	switch x := x.(type) {
	case *ast.SelectorExpr:
		name = x.Sel.Name
	case *ast.Ident:
		name = x.Name
	case *ast.CallExpr:
		if s, ok := x.Fun.(*ast.SelectorExpr); ok {
			if p, ok := s.X.(*ast.Ident); ok && p.Name == "maps" {
				return true
			}
		}
	}
	return slices.Contains([]string{"records", "set", "byKey", "interned"}, name)
}

// The checker itself is checked: each thing it forbids, it finds.
func TestCheckerFinds(t *testing.T) {
	src := `package p
import "time"
func f(records map[int]int) {
	go f(nil)
	_ = time.Now()
	var x float64
	_ = x
	for range records {
	}
	for range records { // order-free: nothing is done
	}
}
`
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "p.go", src, parser.ParseComments)
	require.NoError(t, err)
	require.Len(t, impurities(f, set, strings.Split(src, "\n")), 4)
}

// The pins that build together stay: go-metrics 0.7 drops what raft-boltdb imports.
func TestPins(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	for _, pin := range []string{"github.com/hashicorp/raft v1.7.3", "github.com/hashicorp/raft-boltdb/v2 v2.3.1", "github.com/hashicorp/go-metrics v0.5.4",
		"github.com/hashicorp/raft-wal v0.4.2"} {
		require.Contains(t, string(mod), pin)
	}
}

func eachFile(t *testing.T, f func(dir, path string, file *ast.File, set *token.FileSet)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 || d.Name() == "testdata" || d.Name() == "tools") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel("../..", filepath.Dir(path))
		f(filepath.ToSlash(rel), path, file, set)
		return nil
	})
	require.NoError(t, err)
}

func source(t *testing.T, path string) []string {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.Split(string(b), "\n")
}
