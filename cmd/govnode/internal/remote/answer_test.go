package remote

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A list has as many items as it may, whatever the sizes of the pages, and says
// if there are more.
func TestList(t *testing.T) {
	const there = 2500 // more than two pages
	pools := Lister[*govnodev1.ListPoolsRequest, *govnodev1.ListPoolsResponse, *govnodev1.Pool]{
		Request: func(size int32, token string) *govnodev1.ListPoolsRequest {
			return &govnodev1.ListPoolsRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListPoolsResponse) *[]*govnodev1.Pool { return &p.Pools },
	}
	for limit, want := range map[int]struct {
		got  int
		more bool
	}{
		0: {there, false}, 1: {1, true}, 1000: {1000, true}, 1001: {1001, true}, 2500: {2500, false}, 3000: {2500, false},
	} {
		t.Run(strconv.Itoa(limit), func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := &cobra.Command{}
			cmd.SetErr(&stderr)
			cmd.SetContext(t.Context())
			l := pools
			l.Method = func(_ Node, _ context.Context, req *govnodev1.ListPoolsRequest) (*govnodev1.ListPoolsResponse, error) {
				from, _ := strconv.Atoi(req.PageToken)
				size := req.PageSize
				p := &govnodev1.ListPoolsResponse{}
				for i := from; i < min(from+int(size)-int(size)/3, there); i++ { // a page may be smaller than asked for
					p.Pools = append(p.Pools, &govnodev1.Pool{Pool: fmt.Sprint(i)})
				}
				if next := from + len(p.Pools); next < there {
					p.NextPageToken = strconv.Itoa(next)
				}
				return p, nil
			}
			answer, err := l.list(cmd, &config.Config{Addr: "127.0.0.1:1", Timeout: time.Minute}, limit)
			require.NoError(t, err)
			require.Len(t, answer.Pools, want.got)
			for i, p := range answer.Pools {
				require.Equal(t, strconv.Itoa(i), p.Pool)
			}
			require.Equal(t, want.more, answer.NextPageToken != "")
			require.Equal(t, want.more, stderr.String() != "")
		})
	}
	_, err := pools.list(&cobra.Command{}, &config.Config{}, -1)
	require.ErrorContains(t, err, "limit: -1 (flag --limit)")
}
