package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
)

// A JWT with a key that is not known makes the node ask for the keys, and anybody can
// send one: it asks once a second at most. An issuer that does not answer is given up.
func TestIssuersAreAskedNowAndThen(t *testing.T) {
	var asked atomic.Int32
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"jwks_uri":"https://issuer.example/keys"}`))
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

// anIssuer answers who asks where its keys are, and for these, as the pages say.
func anIssuer(t *testing.T, discovery, keys func(w http.ResponseWriter, answer []byte)) (ids *Identities, token func(forged bool) string, on *issuer) {
	t.Helper()
	folder := t.TempDir()
	s := newSigner(t, folder)
	set, err := os.ReadFile(filepath.Join(folder, "keys.json"))
	require.NoError(t, err)
	var page *httptest.Server
	page = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/keys" {
			keys(w, set)
			return
		}
		discovery(w, []byte(`{"issuer": "`+page.URL+`", "jwks_uri": "`+page.URL+`/keys"}`))
	}))
	t.Cleanup(page.Close)
	on = &issuer{Issuer: page.URL, Audience: "govnode", Subjects: []grant{{Match: "*", Namespace: "team", Roles: []string{"agent"}}}}
	require.NoError(t, on.Subjects[0].check())
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	token = func(forged bool) string {
		key := s.key
		if forged {
			key = other
		}
		return s.sign(jose.ES256, key, map[string]any{"iss": page.URL, "aud": "govnode", "sub": "amy", "exp": time.Now().Add(time.Hour).Unix()})
	}
	return &Identities{issuers: map[string]*issuer{page.URL: on}}, token, on
}

func say(w http.ResponseWriter, answer []byte) { _, _ = w.Write(answer) }

// An issuer that does not say where its keys are holds up nobody for longer than he likes,
// and is asked once for all.
func TestIssuersThatHang(t *testing.T) {
	var asked atomic.Int32
	goOn := make(chan struct{})
	ids, token, _ := anIssuer(t, func(w http.ResponseWriter, answer []byte) {
		asked.Add(1)
		<-goOn
		say(w, answer)
	}, say)
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release) // before the server closes
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	for range 3 {
		_, err := ids.OfJWT(gone, token(false))
		require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason, "%v", err)
	}
	require.Less(t, time.Since(began), issuerIn)
	told := make(chan error)
	for range 3 {
		go func() {
			_, err := ids.OfJWT(t.Context(), token(false))
			told <- err
		}()
	}
	release()
	for range 3 {
		require.NoError(t, <-told)
	}
	require.EqualValues(t, 1, asked.Load())
}

// An issuer that did not answer is left alone from the end of the question on.
func TestIssuersThatFailAreLeftAlone(t *testing.T) {
	var asked atomic.Int32
	ids, token, on := anIssuer(t, func(w http.ResponseWriter, _ []byte) {
		asked.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}, say)
	for range 3 {
		_, err := ids.OfJWT(t.Context(), token(false))
		require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason, "%v", err)
	}
	require.EqualValues(t, 1, asked.Load())
	on.keys.ended = time.Now().Add(-discoverEvery - 1)
	_, err := ids.OfJWT(t.Context(), token(false))
	require.Equal(t, fault.ReasonNotApplied, fault.Of(err).Reason, "%v", err)
	require.EqualValues(t, 2, asked.Load())
}

// That there are no keys to verify a JWT with says nothing of the JWT.
func TestKeysThatAreNotThere(t *testing.T) {
	var broken, hangs atomic.Bool
	goOn := make(chan struct{})
	ids, token, on := anIssuer(t, say, func(w http.ResponseWriter, answer []byte) {
		switch {
		case hangs.Load():
			<-goOn
		case broken.Load():
			w.WriteHeader(http.StatusInternalServerError)
		}
		say(w, answer)
	})
	defer close(goOn)
	reason := func(ctx context.Context, forged bool) string {
		if _, err := ids.OfJWT(ctx, token(forged)); err != nil {
			return fault.Of(err).Reason
		}
		return ""
	}
	broken.Store(true)
	for range 3 { // it is asked once
		require.Equal(t, fault.ReasonNotApplied, reason(t.Context(), false))
	}
	broken.Store(false)
	on.keys = nil // as after a while
	require.Empty(t, reason(t.Context(), false))
	for range 3 { // no more than its keys of now are known, and none is this one
		require.Equal(t, fault.ReasonUnauthenticated, reason(t.Context(), true))
	}
	hangs.Store(true)
	on.keys = nil
	ctx, cancel := context.WithTimeout(t.Context(), issuerIn/100)
	defer cancel()
	require.Equal(t, fault.ReasonNotApplied, reason(ctx, false))
}

// An issuer that answers without a key has not said what its keys are. Those that are known
// stay, and who has a JWT of another one is told to come again.
func TestIssuersThatAnswerWithoutAKey(t *testing.T) {
	for _, answer := range []string{`{"keys":[]}`, `{"error":"busy"}`} {
		var broken atomic.Bool
		ids, token, _ := anIssuer(t, say, func(w http.ResponseWriter, keys []byte) {
			if broken.Load() {
				keys = []byte(answer)
			}
			say(w, keys)
		})
		_, err := ids.OfJWT(t.Context(), token(false))
		require.NoError(t, err)
		broken.Store(true)
		require.Eventually(t, func() bool { // once the issuer may be asked again
			_, err := ids.OfJWT(t.Context(), token(true))
			return fault.Of(err) != nil && fault.Of(err).Reason == fault.ReasonNotApplied
		}, time.Minute, 50*time.Millisecond, answer)
		_, err = ids.OfJWT(t.Context(), token(false))
		require.NoError(t, err, "the keys that were known are gone behind %s", answer)
	}
}
