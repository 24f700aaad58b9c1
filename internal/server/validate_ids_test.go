package server

import (
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

// An id of the future is refused with both times, however far apart they are.
func TestIDsOfTheFarFuture(t *testing.T) {
	b := newBench(t)
	b.now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b.s.cfg.Now = func() time.Time { return b.now }
	for _, tt := range []struct {
		of   time.Time
		says string
	}{
		{b.now.Add(3 * time.Hour), "2026-01-02T06:04:05.000000Z, and"},
		{time.Date(2400, 5, 6, 7, 8, 9, 0, time.UTC), "2400-05-06T07:08:09.000000Z, and"},
		{time.Date(2527, 1, 1, 0, 0, 0, 0, time.UTC), "2527-01-01T00:00:00.000000Z, and"},
		{time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC), "2527-06-23T06:20:44.415000Z or later, and"},
	} {
		var id ulid.ULID
		require.NoError(t, id.SetTime(ulid.Timestamp(tt.of)))
		err := b.begin(func(r *v1.BeginCallRequest) { r.CallId = id.String() })
		require.ErrorContains(t, err, "carries the time "+tt.says+" the clock of this node says 2026-01-02T03:04:05.000000Z;")
	}
}
