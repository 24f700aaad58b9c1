package access

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A JWT with a key that is not known makes the node ask for the keys, and anybody can
// send one: it asks once a second at most. An issuer that does not answer is given up.
func TestIssuersAreAskedNowAndThen(t *testing.T) {
	var asked atomic.Int32
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"keys":[]}`))
	}))
	defer page.Close()
	c := new(issuer).client()
	require.Equal(t, issuerIn, c.Timeout)
	began, refused := time.Now(), 0
	for range 50 {
		res, err := c.Get(page.URL)
		if err != nil {
			refused++
			continue
		}
		require.NoError(t, res.Body.Close())
	}
	most := 1 + int32(time.Since(began)/keysEvery)
	require.LessOrEqual(t, asked.Load(), most)
	require.EqualValues(t, 50, int(asked.Load())+refused)
	res, err := c.Get(page.URL + "/other")
	require.NoError(t, err, "another page is another question")
	require.NoError(t, res.Body.Close())
}
