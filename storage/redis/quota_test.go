package redis

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/session"
)

// A namespace is full, and a client that has asked for something before is refused what
// adds to it, and not what it repeats: also at a node that has read none of its ids.
func TestRedisQuotaOfAClientThatIsKnown(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	one(t, s.open("one"), &session.PutQuotas{NS: testNS, By: session.Maker{Client: "op"}, Quotas: session.Quotas{Keys: 1}})
	put := func(request, key string) session.Command {
		return &session.Set{NS: testNS, By: session.Maker{Client: "c", Request: request}, Key: key, Value: session.Value{Text: "v"}}
	}
	gone := put("1", "gone")
	for _, cmd := range []session.Command{
		gone, &session.Delete{NS: testNS, By: session.Maker{Client: "c", Request: "d"}, Key: "gone"}, put("2", "there"),
	} {
		one(t, s.open("one"), cmd)
	}
	r := s.open("two")
	q := quota.New(r, r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"quota"}), nil, 0)
	require.Equal(t, fault.ReasonQuotaExceeded, fault.Of(q.Admit(t.Context(), put("3", "more"))).Reason)
	require.NoError(t, q.Admit(t.Context(), put("2", "there")), "it is there")
	require.NoError(t, q.Admit(t.Context(), gone), "it was done")
}
