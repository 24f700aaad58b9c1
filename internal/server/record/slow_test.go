package record

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
)

func journaled(records, bytes int) *Teller {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "e"}, []string{"type"})
	return &Teller{
		Node: "n1", Now: time.Now, Log: slog.New(slog.DiscardHandler), Journal: NewJournal(records, bytes, events),
		Enter: func(context.Context, string) (func(), error) { return func() {}, nil },
		Cut:   prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}),
	}
}

func allowed(id string, size int) *Record {
	return &Record{ID: id, NS: "default", Decision: engine.Decision{Allowed: true}, Size: size}
}

// A follower that takes nothing in holds up nobody, and is cut when what it
// should hear next is gone.
func TestSlowFollower(t *testing.T) {
	s := journaled(8, DefaultJournalBytes)
	fl := s.newFollower(t.Context(), &v1.FollowRequest{}, s.Journal.enter("default", maxFollowers), cursor{})
	taken, goOn := make(chan *v1.FollowResponse), make(chan struct{})
	result := make(chan error, 1)
	go func() {
		result <- fl.run(t.Context(), func(m *v1.FollowResponse) error {
			taken <- m
			<-goOn
			return nil
		})
	}()
	<-taken // the first cursor
	goOn <- struct{}{}
	s.Journal.Add(allowed("d0", 1))
	require.Equal(t, "d0", (<-taken).Event.DecisionId)
	for i := 1; i <= 100; i++ { // while it is stuck in the first
		s.Journal.Add(allowed(fmt.Sprintf("d%d", i), 1))
	}
	close(goOn)
	err := <-result
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	require.Equal(t, fault.ReasonTooSlow, fault.InfoOf(err).GetReason())
	require.ErrorContains(t, err, "92 events are gone")
}

// What is kept is bounded by records and by bytes, and what is dropped cannot be
// found any more.
func TestJournalIsBounded(t *testing.T) {
	s := journaled(10, 1000)
	j := s.Journal
	for i := range 50 {
		j.Add(allowed(fmt.Sprintf("d%d", i), 1))
	}
	require.Nil(t, j.find("default", "d39"))
	require.NotNil(t, j.find("default", "d40"))
	require.Nil(t, j.find("other", "d40"))
	j.Add(allowed("large", 995))
	n, bytes, _ := j.State()
	require.Equal(t, []int{6, 1000}, []int{n, bytes})
	require.Nil(t, j.find("default", "d44"))
	j.Add(allowed("too large", 5000))
	n, _, _ = j.State()
	require.Equal(t, 1, n, "the latest is kept, however large it is")
	own := j.partitions["default"]
	oldest, next := j.bounds(own)
	require.EqualValues(t, []uint64{52, 53}, []uint64{oldest, next})
	require.Len(t, j.byID, 1)

	// A repeat takes no place, and a failure is replaced by what came of it.
	j.Add(allowed("too large", 1))
	_, next = j.bounds(own)
	require.EqualValues(t, 53, next)
	failed := allowed("f", 1)
	failed.Failure = "unavailable"
	j.Add(failed)
	j.Add(allowed("f", 1))
	require.Empty(t, j.find("default", "f").Failure)
}

func TestFollowersAreBounded(t *testing.T) {
	s := journaled(DefaultJournalRecords, DefaultJournalBytes)
	var p *partition
	for range maxFollowers {
		p = s.Journal.enter("default", maxFollowers)
		require.NotNil(t, p)
	}
	err := s.Follow(t.Context(), &v1.FollowRequest{}, nil)
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	require.Equal(t, fault.ReasonTooManyFollowers, fault.InfoOf(err).GetReason())
	s.Journal.leave(p)
	require.NotNil(t, s.Journal.enter("default", maxFollowers))
}
