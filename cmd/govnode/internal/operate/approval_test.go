package operate

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A vote is that of whom the node knows, by whatever that is, and of the user's name where
// it knows nobody, also if there is a token.
func TestWhoseVoteItIs(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // nobody is logged in
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, tt := range []struct {
		name, principal, token, user, approver string
		args                                   []string
		fails                                  string
	}{
		{name: "a token", principal: "token:abcd", token: "gn_default.abcd.x", user: "amy"},
		{name: "a certificate", principal: "cert:laptop", user: "amy"},
		{name: "a certificate and no user", principal: "cert:laptop"},
		{name: "nobody is asked", principal: anonymous, user: "amy", approver: "amy"},
		{name: "a token that nobody asks for", principal: anonymous, token: "gn_default.abcd.x", user: "amy", approver: "amy"},
		{name: "nobody", principal: anonymous, fails: "say who decides with --approver"},
		{name: "as it is said", principal: anonymous, user: "amy", args: []string{"--approver", "bob"}, approver: "bob"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("USER", tt.user)
			t.Setenv("GOVNODE_TOKEN", tt.token)
			var got *govnodev1.ApprovalServiceDecideRequest
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var answer proto.Message = &govnodev1.WhoAmIResponse{Principal: tt.principal}
				if path.Base(r.URL.Path) == "Decide" {
					b, _ := io.ReadAll(r.Body)
					got = &govnodev1.ApprovalServiceDecideRequest{}
					_ = proto.Unmarshal(b, got) // what is missing is seen below
					answer = &govnodev1.ApprovalServiceDecideResponse{}
				}
				b, _ := proto.Marshal(answer)
				w.Header().Set("Content-Type", "application/proto")
				_, _ = w.Write(b) // the command says if it got nothing
			}))
			defer node.Close()
			var out bytes.Buffer
			cmd := Approval()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs(append([]string{"approve", "x", "--addr", node.Listener.Addr().String()}, tt.args...))
			if err := cmd.Execute(); tt.fails != "" {
				require.ErrorContains(t, err, tt.fails)
				require.Nil(t, got)
				return
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, tt.approver, got.GetApprover())
		})
	}
}
