package client

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who uses this package needs the messages of the API for nothing that does not
// say so.
func TestWhatIsExportedNamesNoMessagesOfTheAPI(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	set := token.NewFileSet()
	hatches := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || !d.Name.IsExported() || d.Recv != nil && !exported(d.Recv.List[0].Type) {
				continue
			}
			var signature strings.Builder
			require.NoError(t, printer.Fprint(&signature, set, d.Type))
			if strings.Contains(signature.String(), "govnodev1.") {
				hatches++
				require.Contains(t, d.Doc.Text(), "govnode/v1", "%s: %s", path, d.Name.Name)
			}
		}
	}
	require.Equal(t, 28, hatches, "the test must find them")
	example, err := os.ReadFile("../examples/fleet/main.go")
	require.NoError(t, err)
	require.NotContains(t, string(example), "proto/govnode")
}

func exported(receiver ast.Expr) bool {
	if p, ok := receiver.(*ast.StarExpr); ok {
		receiver = p.X
	}
	id, ok := receiver.(*ast.Ident)
	return ok && id.IsExported()
}
