package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"example.com/govnode/cmd/govnode/internal/dev"
	"example.com/govnode/cmd/govnode/internal/remote"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A node that is filled until it refuses more goes on serving what it has, takes
// a snapshot, starts again with as much, and takes new work again when there is
// room. Its memory stays below the limit all the time.
func TestANodeShedsLoadNearItsMemoryLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", strconv.Itoa(memoryLimit))
	listen, err := dev.FreePorts("127.0.0.1:0", 1)
	require.NoError(t, err)
	args := []string{"serve", "--bootstrap", "--data", t.TempDir(), "--listen", listen, "--log-store", "wal"}
	node := start(t, args...)
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r := remote.NewNode(http.DefaultClient, api)
	awaitStatus(t, api, func(s clusterStatus) bool { return s.Health == "ok" })
	_, err = r.PutPolicy(ctx, &govnodev1.PutPolicyRequest{Yaml: "name: p\nmax_concurrent: 5\n"})
	require.NoError(t, err)
	_, err = r.CreateSession(ctx, sessionOf("before"))
	require.NoError(t, err)

	counters := countersOf(api)
	filled := fill(ctx, t, "fill-", counters)
	t.Logf("refused after %d MiB of values; resident %d MiB, limit %d MiB", filled*fillBytes>>20, resident(t, node)>>20, memoryLimit>>20)
	require.Greater(t, filled*fillBytes, memoryLimit/8, "there was room for more")

	// It serves what it has for as long as others try to put more into it.
	pushing, stopPushing := context.WithCancel(ctx)
	var pushers sync.WaitGroup
	var refused atomic.Int64
	for i := range 8 {
		pushers.Go(func() {
			for n := 0; pushing.Err() == nil; n++ {
				_, err := counters.Set(pushing, &govnodev1.SetRequest{Key: fmt.Sprint("pushed-", i, "-", n), Value: fillText})
				if connect.CodeOf(err) == connect.CodeResourceExhausted {
					refused.Add(1)
				}
			}
		})
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		_, err := r.GetSession(ctx, &govnodev1.GetSessionRequest{SessionId: "before"})
		require.NoError(t, err)
		withinLimit(t, node)
	}
	stopPushing()
	pushers.Wait()
	require.Positive(t, refused.Load())
	_, err = r.CreateSession(ctx, sessionOf("during"))
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%v", err)
	require.Equal(t, 1, strings.Count(node.printed(), "near the memory limit: new sessions"), "it is logged once")

	// Started again, it has as much, and room for what it has not read back yet.
	require.NoError(t, node.stop())
	node = start(t, args...)
	api = node.mustAwait(t, nodeLine, 1)[0][2]
	r, counters = remote.NewNode(http.DefaultClient, api), countersOf(api)
	awaitStatus(t, api, func(s clusterStatus) bool { return s.Health == "ok" })
	withinLimit(t, node)
	more := fill(ctx, t, "more-", counters)
	t.Logf("refused after %d MiB more; resident %d MiB", more*fillBytes>>20, resident(t, node)>>20)

	var deleters errgroup.Group
	deleters.SetLimit(16)
	for i := range filled {
		deleters.Go(func() error {
			_, err := counters.Delete(ctx, &govnodev1.DeleteRequest{Key: fmt.Sprint("fill-", i)})
			return err
		})
	}
	require.NoError(t, deleters.Wait())
	require.Eventually(t, func() bool {
		_, err := r.CreateSession(ctx, sessionOf("after"))
		return err == nil
	}, longEnough, 50*time.Millisecond, "it takes new work by itself when there is room")
	require.Contains(t, node.printed(), "no longer near the memory limit")
	require.NoError(t, node.stop())
}

func withinLimit(t *testing.T, node *process) {
	t.Helper()
	if !raceDetector {
		require.Less(t, resident(t, node), int64(memoryLimit))
	}
}

const (
	memoryLimit = 128 << 20
	fillBytes   = 60 << 10
)

var fillText = strings.Repeat("x", fillBytes)

func countersOf(api string) govnodev1connect.CounterServiceClient {
	return govnodev1connect.NewCounterServiceClient(http.DefaultClient, "http://"+api)
}

func sessionOf(id string) *govnodev1.CreateSessionRequest {
	return &govnodev1.CreateSessionRequest{SessionId: id, AgentId: "a", Policy: &govnodev1.PolicyRef{Ref: &govnodev1.PolicyRef_Name{Name: "p"}}}
}

// fill sets values until no more are taken, and returns how many there are.
func fill(ctx context.Context, t *testing.T, prefix string, counters govnodev1connect.CounterServiceClient) int {
	t.Helper()
	var next atomic.Int64
	var workers sync.WaitGroup
	var other atomic.Pointer[error]
	for range 8 {
		workers.Go(func() {
			for {
				i := next.Add(1) - 1
				_, err := counters.Set(ctx, &govnodev1.SetRequest{Key: fmt.Sprint(prefix, i), Value: fillText})
				if err == nil && i*fillBytes > 2*memoryLimit {
					err = errors.New("more was taken than there can be room for")
				}
				if err == nil {
					continue
				}
				if connect.CodeOf(err) != connect.CodeResourceExhausted {
					other.Store(&err)
				}
				return
			}
		})
	}
	workers.Wait()
	if err := other.Load(); err != nil {
		require.NoError(t, *err)
	}
	return int(next.Load())
}

// resident is the memory that a process has for itself, in bytes; 0 where the
// system does not tell.
func resident(t *testing.T, p *process) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	require.NoError(t, err)
	found := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found)
	kib, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	return kib << 10
}
