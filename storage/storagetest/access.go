package storagetest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What a change of who may do what promises on every store.

func putToken(in, id string) *session.PutToken {
	return &session.PutToken{NS: in, By: by("put-" + id), Token: session.Token{ID: id, Hash: session.Digest{1}, Roles: 2}}
}

func (r rig) epoch(in string) uint64 {
	r.Helper()
	return session.EpochOf(r.get(session.AccessKey(in), storage.Latest).Record)
}

// revoked sends calls from many callers, all judged by one epoch, while a token is
// revoked: none that was judged by it is admitted behind the answer, and all are that
// are judged by the next.
func revoked(t *testing.T, r rig) {
	const callers = 32
	r.openSession("s", 4000, 1_000_000)
	require.Equal(t, session.Done, r.must(putToken(ns, "t")).Code)
	judged := func(c *session.Begin, epoch uint64) *session.Begin {
		c.Authorize(&session.Authority{Principal: session.Principal{1}, Epoch: epoch})
		return c
	}
	epoch := r.epoch(ns)
	var admitted atomic.Int64
	var over atomic.Bool
	underWay := make(chan struct{})
	atOnce(callers+1, func(caller int) {
		if caller == callers {
			<-underWay
			if _, err := r.try(&session.RevokeToken{NS: ns, By: by("revoke"), ID: "t"}); err != nil {
				t.Error(err)
			}
			over.Store(true)
			return
		}
		for n, last := 0, false; !last; n++ {
			last = over.Load()
			res, err := r.try(judged(begin("s", fmt.Sprint("c", caller, "-", n)), epoch))
			switch {
			case err != nil, res.Code != session.Admitted && res.Code != session.StaleAccess, res.Code == session.Admitted && last:
				t.Errorf("%v, after the answer to the revocation: %v: %v", res.Code, last, err)
				return
			case res.Code == session.Admitted && admitted.Add(1) == callers:
				close(underWay)
			}
		}
	})
	require.EqualValues(t, admitted.Load(), r.session("s").Attempts, "what is stale is not counted")
	require.Equal(t, epoch+1, r.epoch(ns))
	require.Equal(t, session.StaleAccess, r.must(judged(begin("s", "after"), epoch)).Code)
	require.Equal(t, session.Admitted, r.must(judged(begin("s", "after"), epoch+1)).Code)
}

// accessRestored restores a snapshot of before: what was revoked since stays revoked,
// what was made since stays, and no epoch comes back.
func accessRestored(t *testing.T, r rig) {
	spaces := []string{ns, session.ClusterNamespace}
	for _, in := range spaces {
		require.Equal(t, session.Done, r.must(putToken(in, "old")).Code)
		require.Equal(t, session.Done, r.must(putToken(in, "kept")).Code)
	}
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	before := map[string]uint64{}
	for _, in := range spaces {
		require.EqualValues(t, 1, r.must(&session.RevokeToken{NS: in, By: by("revoke"), ID: "old"}).Value)
		require.Equal(t, session.Done, r.must(putToken(in, "new")).Code)
		before[in] = r.epoch(in)
	}
	r.restore(snapshot.Bytes())
	for _, in := range spaces {
		x := r.get(session.AccessKey(in), storage.Latest).Record.(*session.Access)
		require.Nil(t, x.FindToken("old"))
		require.NotNil(t, x.FindToken("kept"))
		require.NotNil(t, x.FindToken("new"))
		require.Greater(t, x.Epoch, before[in])
	}
}
