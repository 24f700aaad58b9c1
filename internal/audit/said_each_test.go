package audit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

var everyCommand = []session.Command{
	new(session.Open), new(session.Begin), new(session.End), new(session.Cancel), new(session.Close), new(session.Acquire),
	new(session.Renew), new(session.Release), new(session.ForceRelease), new(session.PutPool), new(session.DeletePool), new(session.PutPolicy),
	new(session.DeletePolicy), new(session.Set), new(session.Delete), new(session.Increment), new(session.Tick), new(session.Restore),
	new(session.PutHash), new(session.Repair), new(session.Signal), new(session.Swept), new(session.Ask), new(session.Decide),
	new(session.CancelApproval), new(session.PutStanding), new(session.DeleteStanding), new(session.PutRate), new(session.DeleteRate), new(session.TakeRate),
	new(session.PutBudget), new(session.AdjustBudget), new(session.DeleteBudget), new(session.Append), new(session.DeleteList), new(session.PutToken),
	new(session.RevokeToken), new(session.Deny), new(session.Allow), new(session.PutQuotas), new(session.KeepKey), new(session.UseToken),
}

// What is said of each command with all of its fields set is what the file has: what is
// left out of it, or stands in another place, can be changed in a log without anybody
// seeing it. GOVNODE_GOLDEN=write writes the file; look at the difference, since logs that
// were written before say it the old way.
func TestWhatIsSaidOfEachCommand(t *testing.T) {
	var all strings.Builder
	known := map[string]bool{}
	for _, c := range everyCommand {
		setAll(t, reflect.ValueOf(c).Elem(), "", 0)
		name := reflect.TypeOf(c).Elem().Name()
		known[name] = true
		for _, by := range []*session.Authority{{}, {Behalf: true, Principal: session.PrincipalOf("team", "token:x")}} {
			said := SayOf(c, by)
			all.Write(said.Text())
			all.WriteByte('\n')
		}
		// And with none of them: no field has a word where nothing is said.
		empty := SayOf(reflect.New(reflect.TypeOf(c).Elem()).Interface().(session.Command), &session.Authority{})
		all.Write(empty.Text())
		all.WriteByte('\n')
	}
	const path = "testdata/said.txt"
	if os.Getenv("GOVNODE_GOLDEN") == "write" {
		require.NoError(t, os.WriteFile(path, []byte(all.String()), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), all.String())

	files, err := filepath.Glob("../../session/*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == "Kind" && d.Recv != nil && len(d.Recv.List[0].Names) == 0 {
				found++
				name := d.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name
				require.True(t, known[name], "the command %s is not in the test", name)
			}
		}
	}
	require.Len(t, everyCommand, found)
}

// setAll sets every field to something of its own: a text to its path, a number to its place.
func setAll(t *testing.T, v reflect.Value, path string, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n))
	case reflect.Float64:
		v.SetFloat(float64(n))
	case reflect.Array:
		for i := range v.Len() {
			setAll(t, v.Index(i), path, n+i)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			setAll(t, v.Index(i), fmt.Sprint(path, i), n+i)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setAll(t, key, path+" key", n)
		setAll(t, value, path, n)
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setAll(t, v.Elem(), path, n)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type != reflect.TypeFor[session.Authority]() {
				setAll(t, v.Field(i), strings.TrimPrefix(path+"."+f.Name, "."), 10+i)
			}
		}
	case reflect.Interface: // nothing is said of what is in it
	default:
		t.Fatalf("%v is of a kind that the test does not know", v.Type())
	}
}
