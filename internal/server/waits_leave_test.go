package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A member is the store of a node that can be removed from its cluster, of
// which the store that it wraps is the whole state.
type member struct {
	storage.Store
	gone atomic.Bool
}

func (m *member) Removed() bool { return m.gone.Load() }

// Apply orders nothing at a node that was removed.
func (m *member) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if m.gone.Load() {
		return (&stuck{answer: storage.Refused(errors.New("no member"))}).Apply(ctx, cmds...)
	}
	return m.Store.Apply(ctx, cmds...)
}

// Whoever waits at a node that is removed is told so while its place is kept,
// and goes on with it at another node.
func TestARemovedNodeHandsWaitersOver(t *testing.T) {
	for _, chain := range []*audit.Tail{nil, {Node: "n1"}} {
		withServer(t, func(t *testing.T, other *Server) { removedNodeHandsOver(t, other, chain) })
	}
}

func removedNodeHandsOver(t *testing.T, other *Server, chain *audit.Tail) {
	var log bytes.Buffer
	m := &member{Store: other.changes}
	s, err := New(Config{Store: m, Logger: slog.New(slog.NewTextHandler(&log, nil)), Audit: io.Discard, AuditChain: chain})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = other.try(t, "held", 0, time.Hour)
	require.NoError(t, err)
	var removed time.Time
	time.AfterFunc(20*time.Second, func() { removed = time.Now(); m.gone.Store(true) })
	_, err = s.ask(t.Context())
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err))
	require.Equal(t, fault.ReasonOutcomeUnknown, fault.InfoOf(err).GetReason())
	require.ErrorContains(t, err, "removed from the cluster")
	require.LessOrEqual(t, time.Since(removed), 500*time.Millisecond, "the next look")
	require.NotContains(t, log.String(), "claim")

	later := make(chan *v1.BeginCallResponse)
	go func() {
		res, err := other.try(t, "later", time.Minute, time.Minute)
		if err != nil {
			t.Error(err)
		}
		later <- res
	}()
	synctest.Wait()
	time.AfterFunc(15*time.Second, func() { other.finish(t, "held") })
	res, err := other.ask(t.Context())
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	other.finish(t, "c")
	require.Greater(t, (<-later).Grants[0].Token, res.Grants[0].Token, "who came later is later")
}

// The same with a real cluster, where the leader has the waiter and is removed.
func TestARemovedLeaderHandsWaitersOver(t *testing.T) {
	servers, urls := raftServers(t, 3)
	slots := make([]govnodev1connect.SlotServiceClient, len(urls))
	for i, url := range urls {
		slots[i] = govnodev1connect.NewSlotServiceClient(http.DefaultClient, url)
	}
	_, err := slots[1].PutPool(t.Context(), &v1.PutPoolRequest{Pool: "q", Slots: 1})
	require.NoError(t, err)
	acquire := func(node int, slot string) (*v1.AcquireSlotResponse, error) {
		return slots[node].AcquireSlot(t.Context(), &v1.AcquireSlotRequest{Pool: "q", SlotId: slot, Client: "k", Wait: durationpb.New(25 * time.Second)})
	}
	waiters := func(n int) func() bool {
		return func() bool {
			res, err := slots[1].ListSlots(t.Context(), &v1.ListSlotsRequest{Pool: "q"})
			return err == nil && len(res.Waiters) == n
		}
	}
	held, err := acquire(1, "holds")
	require.NoError(t, err)
	lost := make(chan error)
	go func() {
		_, err := acquire(0, "waits")
		lost <- err
	}()
	require.Eventually(t, waiters(1), 10*time.Second, 5*time.Millisecond)

	remove, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, servers[0].cfg.Cluster.RemoveNode(remove, "n0", false))
	err = <-lost
	require.Equal(t, fault.ReasonOutcomeUnknown, fault.InfoOf(err).GetReason(), "%v", err)
	require.ErrorContains(t, err, "removed from the cluster")
	require.True(t, waiters(1)(), "its place is kept")

	answers := make(chan *v1.AcquireSlotResponse, 2)
	for i, slot := range []string{"later", "waits"} {
		go func() {
			res, err := acquire(2, slot)
			if err != nil {
				t.Error(err)
			}
			answers <- res
		}()
		if i == 0 {
			require.Eventually(t, waiters(2), 10*time.Second, 5*time.Millisecond)
		}
	}
	_, err = slots[1].ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "holds", Client: "k", Token: held.Token})
	require.NoError(t, err)
	first := <-answers
	_, err = slots[1].ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "waits", Client: "k", Token: first.Token})
	require.NoError(t, err, "the first to be admitted is the one that came first")
	<-answers
}

// A claim that finds no leader is made again until there is one or its caller
// goes, and logged once.
func TestAClaimWithoutAnAnswerIsLoggedOnce(t *testing.T) {
	withServer(t, func(t *testing.T, other *Server) {
		var log bytes.Buffer
		m := &member{Store: other.changes}
		s, err := New(Config{Store: isolated{m}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		_, err = other.try(t, "held", 0, time.Hour)
		require.NoError(t, err)
		time.AfterFunc(5*time.Second, func() { m.gone.Store(true) })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // longer than its wait of one
		defer cancel()
		_, err = s.ask(ctx)
		require.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(err))
		require.Equal(t, 1, strings.Count(log.String(), "a claim was not answered"), "%s", &log)
	})
}

// isolated is a member that cannot know what became of its cluster.
type isolated struct{ storage.Store }

// A call that has run out is in the audit log, whoever finds it: nobody else is
// told.
func TestWhatLapsesIsInTheAuditLog(t *testing.T) {
	for name, finds := range map[string]func(*testing.T, *Server){
		"the store by itself": func(*testing.T, *Server) { time.Sleep(time.Minute + time.Second) },
		"a command": func(t *testing.T, s *Server) {
			_, err := slotService{s, s.limits}.ForceRelease(t.Context(), &v1.ForceReleaseRequest{SessionId: "s", SlotId: "held", RequestId: "r"})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			withServer(t, func(t *testing.T, other *Server) {
				var audit bytes.Buffer
				s, err := New(Config{Store: other.changes, Audit: &audit})
				require.NoError(t, err)
				_, err = s.try(t, "held", 0, time.Minute)
				require.NoError(t, err)
				finds(t, s)
				require.NoError(t, s.Close())
				require.Equal(t, 1, strings.Count(audit.String(), `"call_lapsed"`), "%s", audit.String())
				require.Contains(t, audit.String(), `"namespace":"default"`)
			})
		})
	}
}

// A call that has run out is in the audit log soon: the next request that has a
// line of its own may be long in coming.
func TestALapsedCallIsWrittenThoughNothingFollows(t *testing.T) {
	withServer(t, func(t *testing.T, other *Server) {
		var audit bytes.Buffer
		s, err := New(Config{Audit: &audit, Store: other.changes})
		require.NoError(t, err)
		_, err = s.try(t, "held", 0, time.Second)
		require.NoError(t, err)
		time.Sleep(time.Minute) // of the bubble's clock
		synctest.Wait()
		written := audit.String()
		require.NoError(t, s.Close())
		require.Equal(t, 1, strings.Count(written, `"call_lapsed"`), "%s", written)
		require.Equal(t, written, audit.String(), "nothing is left for the end")
	})
}
