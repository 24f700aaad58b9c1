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

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// reasonsInSource are the reasons that package fault names.
func reasonsInSource(t *testing.T) (all []string) {
	file, err := parser.ParseFile(token.NewFileSet(), "fault/fault.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Reason") {
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
		wrong := fault.Invalid("f", "is wrong")
		wrong.Reason = reason
		for i, err := range []error{
			fault.New(connect.CodeUnavailable, reason, "as the test wants it").With("a", "b").Later(time.Second),
			fault.New(connect.CodeResourceExhausted, reason, "as the test wants it").Connect(), // as another node says it
			errors.Join(errors.New("around it"), wrong),
		} {
			calls.err = err
			for _, method := range []string{"BeginCall", "BatchCalls"} {
				req := httptest.NewRequest(http.MethodPost, path+method, strings.NewReader(`{}`))
				req.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, req)
				require.Equal(t, []string{reason}, w.Result().Header.Values(fault.ReasonHeader), "%s %d", method, i)
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
	changed := &order.Trace{Changed: true}
	for _, c := range []struct {
		err    error
		reason string
		text   string
	}{
		{fault.OfChange(storage.Fail(storage.NotApplied, why)), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{fault.OfRead(storage.Unread(why)), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{storage.Fail(storage.NotApplied, why), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{why, fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: why"},
		{fault.New(connect.CodeResourceExhausted, fault.ReasonOverloaded, "there is no room"), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: the node could not see it through"},
		{fault.New(connect.CodeResourceExhausted, fault.ReasonQuotaExceeded, "nothing was applied"), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: a quota of the namespace keeps the rest of it out"},
		{errDraining(), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: the node could not see it through"},
		{fault.NotApplied("why").Connect(), fault.ReasonOutcomeUnknown, "it is not known whether this was applied; send it again with the same id: the node could not see it through"},
		{fault.Invalid("f", "is wrong"), fault.ReasonInvalidField, "f: is wrong"},
		{fault.OfResult(&session.Result{Code: session.IDReused}, "id"), fault.ReasonIDReused, "id: the id was used before with other content; take a new id for a new request"},
	} {
		require.Equal(t, c.err, (&order.Trace{}).Said(c.err), "nothing was changed")
		f := fault.Of(changed.Said(c.err))
		require.Equal(t, c.reason, f.Reason, "%v", c.err)
		require.Equal(t, c.text, f.Connect().Message(), "%v", c.err)
	}
	require.NoError(t, changed.Said(nil))
}
