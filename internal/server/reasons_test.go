package server

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// reasonsInSource are the reasons that errors.go names.
func reasonsInSource(t *testing.T) (all []string) {
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "reason") {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			all = append(all, text)
		}
		return true
	})
	require.Greater(t, len(all), 20)
	return all
}

// failingCalls answers with the error that a test says.
type failingCalls struct {
	govnodev1connect.UnimplementedCallServiceHandler
	err error
}

func (f *failingCalls) BeginCall(context.Context, *v1.BeginCallRequest) (*v1.BeginCallResponse, error) {
	return nil, f.err
}

func (f *failingCalls) BatchCalls(context.Context, *v1.BatchCallsRequest) (*v1.BatchCallsResponse, error) {
	return nil, f.err
}

// Whatever the reason of an error is, it stands in the header of the answer to a
// request and to a batch as a whole, beside the details and as they have it; and
// it is in the documents.
func TestEveryReasonIsInTheHeader(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := New(Config{Store: store})
	require.NoError(t, err)
	defer func() { _, _ = s.Close(), store.Close() }()
	docs, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	calls := &failingCalls{}
	path, handler := govnodev1connect.NewCallServiceHandler(calls, connect.WithInterceptors(&boundary{s}))
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	for _, reason := range reasonsInSource(t) {
		require.Contains(t, string(docs), "`"+reason+"`")
		wrong := invalid("f", "is wrong")
		wrong.reason = reason
		for i, err := range []error{
			newError(connect.CodeUnavailable, reason, "as the test wants it").with("a", "b").later(time.Second),
			newError(connect.CodeResourceExhausted, reason, "as the test wants it").connect(), // as another node says it
			errors.Join(errors.New("around it"), wrong),
		} {
			calls.err = err
			for _, method := range []string{"BeginCall", "BatchCalls"} {
				req := httptest.NewRequest(http.MethodPost, path+method, strings.NewReader(`{}`))
				req.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, req)
				require.Equal(t, []string{reason}, w.Result().Header.Values(ReasonHeader), "%s %d", method, i)
				var body struct {
					Details []struct{ Debug struct{ Reason string } }
				}
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body), "%s", w.Body)
				require.Equal(t, reason, body.Details[0].Debug.Reason)
			}
		}
	}
}

// An error that says that nothing was applied loses that, and nothing else, where
// something was.
func TestWhatIsSaidOfAChange(t *testing.T) {
	why := errors.New("why")
	changed := &trace{changed: true}
	for _, c := range []struct {
		err    error
		reason string
		text   string
	}{
		{changeError(storage.Fail(storage.NotApplied, why)), reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{readError(storage.Unread(why)), reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{storage.Fail(storage.NotApplied, why), reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{why, reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{newError(connect.CodeResourceExhausted, reasonOverloaded, "there is no room"), reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: the node could not see it through"},
		{errDraining(), reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: the node could not see it through"},
		{notApplied("why").connect(), reasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: the node could not see it through"},
		{invalid("f", "is wrong"), reasonInvalidField, "f: is wrong"},
		{failure(&session.Result{Code: session.IDReused}, "id"), reasonIDReused, "id: the id was used before with other content; take a new id for a new request"},
	} {
		require.Equal(t, c.err, (&trace{}).said(c.err), "nothing was changed")
		f := faultOf(changed.said(c.err))
		require.Equal(t, c.reason, f.reason, "%v", c.err)
		require.Equal(t, c.text, f.connect().Message(), "%v", c.err)
	}
	require.NoError(t, changed.said(nil))
}
