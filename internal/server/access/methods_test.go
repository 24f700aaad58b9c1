package access

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Every method of the API says who may call it.
func TestEveryMethodNamesItsScope(t *testing.T) {
	methods, err := ReadMethods()
	require.NoError(t, err)
	n := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("govnode.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			n += f.Services().Get(i).Methods().Len()
		}
		return true
	})
	require.Len(t, methods, n)
}

// What is no method of the API is nobody's.
func TestUnknownMethodsAreNobodys(t *testing.T) {
	methods, err := ReadMethods()
	require.NoError(t, err)
	all := Principal{Name: "token:x", Namespace: "team", Roles: ^session.Roles(0)}.judgedBy(nil)
	require.Equal(t, fault.ReasonForbidden, fault.Of(methods.Admit(all, "/govnode.v1.SessionService/Frob")).Reason)
	require.NoError(t, methods.Admit(nil, "/govnode.v1.SessionService/Frob"), "nobody is asked")
}

// rows are the table of docs/security.md: methods by who may call them.
func rows(methods Methods) []string {
	by := map[string][]string{}
	for procedure, m := range methods {
		who := roleNames(m.Roles)
		switch m.Scope {
		case v1.Scope_SCOPE_SELF:
			who = "whoever is known"
		case v1.Scope_SCOPE_ITEMS:
			who = "whoever is known; each operation as its own method"
		case v1.Scope_SCOPE_CLUSTER:
			who += " of `$cluster`"
		case v1.Scope_SCOPE_TOKENS:
			who += ", of the namespace or of `$cluster`"
		}
		_, name, _ := strings.Cut(procedure, "govnode.v1.")
		by[who] = append(by[who], "`"+strings.ReplaceAll(strings.Replace(name, "Service/", ".", 1), "/", ".")+"`")
	}
	var lines []string
	for who, names := range by {
		slices.Sort(names)
		lines = append(lines, fmt.Sprintf("| %s | %s |", who, strings.Join(names, " ")))
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a, b) })
	return lines
}

// The table of the documents is that of the API.
func TestRolesInTheDocuments(t *testing.T) {
	methods, err := ReadMethods()
	require.NoError(t, err)
	docs, err := os.ReadFile("../../../docs/security.md")
	require.NoError(t, err)
	table := strings.Join(rows(methods), "\n")
	require.True(t, strings.Contains(string(docs), table), "docs/security.md is not up to date; its table of methods is\n%s", table)
}
