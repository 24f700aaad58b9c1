package operate

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What adds up is asked for again under the id that it was asked for before, and the
// error that leaves the outcome open tells it.
func TestWhatAddsUpIsAskedForAgainUnderItsID(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // nobody is logged in
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	type changing interface {
		proto.Message
		GetRequestId() string
	}
	for _, tt := range []struct {
		command  func() *cobra.Command
		args     []string
		request  changing
		response proto.Message
	}{
		{Budget, []string{"adjust", "b", "--by", "1"}, &govnodev1.AdjustBudgetRequest{}, &govnodev1.AdjustBudgetResponse{}},
		{State, []string{"append", "k", "x", "--ttl", "1h"}, &govnodev1.AppendRequest{}, &govnodev1.AppendResponse{}},
		{Rate, []string{"take", "r"}, &govnodev1.TakeRateRequest{}, &govnodev1.TakeRateResponse{Outcome: govnodev1.Outcome_OUTCOME_ADMITTED}},
		{Approval, []string{"stand", "t", "--agent", "a", "--for", "1h"}, &govnodev1.PutStandingRequest{}, &govnodev1.PutStandingResponse{Standing: &govnodev1.Standing{}}},
	} {
		t.Run(tt.command().Name()+" "+tt.args[0], func(t *testing.T) {
			var mu sync.Mutex
			var ids []string
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				if err := proto.Unmarshal(body, tt.request); err != nil {
					ids = append(ids, path.Base(r.URL.Path)+": "+err.Error())
				}
				if ids = append(ids, tt.request.GetRequestId()); len(ids) == 1 {
					panic(http.ErrAbortHandler) // its answer is lost
				}
				b, _ := proto.Marshal(tt.response)
				w.Header().Set("Content-Type", "application/proto")
				_, _ = w.Write(b) // the command says if it got nothing
			}))
			defer node.Close()
			run := func(more ...string) error {
				cmd := tt.command()
				cmd.SilenceErrors, cmd.SilenceUsage = true, true
				cmd.SetOut(&bytes.Buffer{})
				cmd.SetErr(&bytes.Buffer{})
				cmd.SetArgs(append(append(tt.args, "--addr", node.Listener.Addr().String()), more...))
				return cmd.Execute()
			}
			err := run()
			require.Error(t, err)
			told := regexp.MustCompile(`ask again with --id (\S+),`).FindStringSubmatch(err.Error())
			require.NotNil(t, told, err.Error())
			require.NoError(t, run("--id", told[1]))
			require.Equal(t, []string{told[1], told[1]}, ids)
		})
	}
}
