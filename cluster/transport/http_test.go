package transport

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// An http.RoundTripper may not change the request that it is given.
func TestTheClusterIsNamedInEveryRequest(t *testing.T) {
	var named string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { named = r.Header.Get(clusterHeader) }))
	defer s.Close()
	inner := &http.Transport{}
	defer inner.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	require.NoError(t, err)
	res, err := clusterTransport{inner, func() string { return "mine" }}.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, "mine", named)
	require.Empty(t, r.Header)
}
