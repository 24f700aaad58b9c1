package access

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A store that does not answer holds up neither the look at those of other namespaces nor
// the end of the watch.
func TestALookAtAllTakesNoLongerThanOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{Store: deaf{}, Now: time.Now})
		require.NoError(t, err)
		for i := range 20 {
			_, stop := a.Guard(With(t.Context(), &Principal{Namespace: fmt.Sprint("n", i)}))
			defer stop()
		}
		denied, stop := a.Guard(With(t.Context(), &Principal{Namespace: "answers", denials: []string{"x"}}))
		defer stop()
		began := time.Now()
		<-denied.Done()
		require.True(t, fault.Unauthenticated(context.Cause(denied)))
		require.Equal(t, lookEvery, time.Since(began), "with the first look")
		synctest.Wait()
		a.Close()
		require.LessOrEqual(t, time.Since(began), 2*lookEvery, "the look that is under way")
	})
}

// deaf is a store that answers for one namespace alone.
type deaf struct{}

func (deaf) Get(ctx context.Context, k session.Key, _ storage.Read) (storage.Found, error) {
	if k.Namespace() == "answers" {
		return storage.Found{Record: &session.Access{Epoch: 1, Denied: []session.DeniedSubject{{Subject: "x"}}}}, nil
	}
	<-ctx.Done()
	return storage.Found{}, ctx.Err()
}
