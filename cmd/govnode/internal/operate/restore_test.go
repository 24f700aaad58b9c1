package operate

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
)

// A restorer is a node that notes how often a whole snapshot came, and says of it what it
// is told to; without an error it has restored it.
type restorer struct {
	govnodev1connect.UnimplementedClusterServiceHandler
	govnodev1connect.UnimplementedAccessServiceHandler
	says  error
	asked atomic.Int32
}

func (r *restorer) Restore(_ context.Context, stream *connect.ClientStream[govnodev1.RestoreRequest]) (*govnodev1.RestoreResponse, error) {
	for stream.Receive() {
	}
	r.asked.Add(1)
	if errors.Is(r.says, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	return &govnodev1.RestoreResponse{Index: 7}, r.says
}

func (r *restorer) ListChains(context.Context, *govnodev1.ListChainsRequest) (*govnodev1.ListChainsResponse, error) {
	return &govnodev1.ListChainsResponse{Generation: 41}, nil
}

func (r *restorer) start(t *testing.T) string {
	mux := http.NewServeMux()
	mux.Handle(govnodev1connect.NewClusterServiceHandler(r))
	mux.Handle(govnodev1connect.NewAccessServiceHandler(r))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func because(code connect.Code, reason, text string) error {
	err := connect.NewError(code, errors.New(text))
	if d, failed := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: reason}); failed == nil {
		err.AddDetail(d)
	}
	return err
}

// A snapshot is restored once: where a node may have done it no other one is asked, and
// the error says what to look at.
func TestASnapshotIsRestoredOnce(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // nobody is logged in
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "state.snap")
	var text bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&text, session.New().Snapshot()))
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	for _, tt := range []struct {
		name    string
		says    error // the first node; the second one restores
		goes    bool  // it is passed on to the second
		unknown bool
	}{
		{"done", nil, false, false},
		{"the answer is lost", http.ErrAbortHandler, false, true},
		{"nobody knows", because(connect.CodeUnavailable, "OUTCOME_UNKNOWN", "it is not known whether this was applied; send it again with the same id: lost the leader"), false, true},
		{"the deadline passed", because(connect.CodeDeadlineExceeded, "OUTCOME_UNKNOWN", "the deadline passed first; send it again with the same id"), false, true},
		{"unavailable", connect.NewError(connect.CodeUnavailable, errors.New("a proxy says so")), false, true},
		{"not applied", because(connect.CodeUnavailable, "NOT_APPLIED", "nothing was applied; send it again with the same id, here or at another node: no leader"), true, false},
		{"refused", because(connect.CodeInvalidArgument, "BAD_SNAPSHOT", "the snapshot cannot be restored"), false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first, second := &restorer{says: tt.says}, &restorer{}
			var out bytes.Buffer
			cmd := Snapshot()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs([]string{"restore", file, "--addr", first.start(t) + "," + second.start(t)})
			err := cmd.Execute()
			require.Equal(t, int32(1), first.asked.Load())
			require.Equal(t, tt.goes, second.asked.Load() == 1)
			require.Equal(t, tt.says == nil || tt.goes, err == nil, "%v", err)
			if !tt.unknown {
				if err != nil {
					require.NotContains(t, err.Error(), "not known")
				}
				return
			}
			require.ErrorContains(t, err, "it is not known whether a change was made: look before you restore again")
			require.ErrorContains(t, err, "`govnode audit heads` prints the generation of the state, which each restore raises; it was 41")
			require.NotContains(t, err.Error(), "ask again")
			require.NotContains(t, err.Error(), "send it again")
		})
	}
}
