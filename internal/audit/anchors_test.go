package audit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
	"example.com/govnode/session"
)

var day = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// certificate makes one that an authority vouches for.
func certificate(t *testing.T, ca *pki.Pair, role pki.Role, name string) *tls.Certificate {
	t.Helper()
	hosts := map[pki.Role][]string{pki.Node: {"localhost"}}
	pair, err := pki.Issue(ca, role, name, hosts[role], day.Add(-time.Hour), 24*time.Hour)
	require.NoError(t, err)
	key, err := pair.KeyPEM()
	require.NoError(t, err)
	c, err := tls.X509KeyPair(pair.CertPEM(), key)
	require.NoError(t, err)
	return &c
}

func authority(t *testing.T) (*pki.Pair, *x509.CertPool) {
	t.Helper()
	ca, err := pki.NewCA("tests", day.Add(-time.Hour))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca.CertPEM()))
	return ca, roots
}

const stamp = `,"timestamp":"2026-05-01T12:00:00Z"`

// anchored is a log of one node: two lines, an anchor, and one more line.
func anchored(t *testing.T, node string, a Anchor, by *tls.Certificate) (log, anchor string) {
	t.Helper()
	tail := &Tail{Node: node}
	text := sealedLines(tail, `{"x":1`, `{"x":2`)
	sealed, err := tail.SealAnchor([]byte(`{"event_type":"anchor"`+stamp), 0, a, by)
	require.NoError(t, err)
	anchor = string(sealed) + "\n"
	return text + anchor + sealedLines(tail, `{"x":3`), anchor
}

func verified(t *testing.T, against Against, files ...string) (problems, notes []string) {
	t.Helper()
	var in []File
	for i, f := range files {
		in = append(in, File{string(rune('a' + i)), strings.NewReader(f)})
	}
	r, err := Verify(in, against)
	require.NoError(t, err)
	for i := range r.Problems {
		problems = append(problems, r.Problems[i].String())
	}
	return problems, r.Notes
}

func TestSignaturesOfAnchors(t *testing.T) {
	ca, roots := authority(t)
	_, others := authority(t)
	log, anchor := anchored(t, "n1", Anchor{}, certificate(t, ca, pki.Node, "n1"))
	problems, notes := verified(t, Against{Roots: roots}, log)
	require.Empty(t, problems)
	require.Empty(t, notes)

	problems, _ = verified(t, Against{Roots: others}, log)
	require.Len(t, problems, 1)
	require.Contains(t, problems[0], "a:3: the certificate of the anchor is of no authority that was given; if that was replaced since, give a file with the old one too")

	for _, c := range []*tls.Certificate{certificate(t, ca, pki.Node, "n2"), certificate(t, ca, pki.Client, "n1")} {
		by, _ := anchored(t, "n1", Anchor{}, c)
		problems, _ = verified(t, Against{Roots: roots}, by)
		require.Equal(t, []string{"a:3: the anchor is signed by another than node n1"}, problems)
	}

	// A log that was written anew has no signature, and who asks for one is told. Anchors
	// of before the node had a certificate need none where one follows that is signed.
	bare, _ := anchored(t, "n1", Anchor{}, nil)
	problems, _ = verified(t, Against{Roots: roots}, bare)
	require.Equal(t, []string{"a:3: no anchor of node n1 is signed, and so its lines may have been written anew; if it has no certificate, verify without an authority (--tls-ca)"}, problems)
	problems, _ = verified(t, Against{}, bare)
	require.Empty(t, problems)
	early := &Tail{Node: "n1"}
	line, err := early.SealAnchor([]byte(`{"event_type":"anchor"`+stamp), 0, Anchor{}, nil)
	require.NoError(t, err)
	later, err := early.SealAnchor([]byte(`{"event_type":"anchor"`+stamp), 0, Anchor{}, certificate(t, ca, pki.Node, "n1"))
	require.NoError(t, err)
	problems, notes = verified(t, Against{Roots: roots}, string(line)+"\n"+string(later)+"\n")
	require.Empty(t, problems)
	require.Equal(t, []string{"1 anchors are not signed: their nodes had no certificate"}, notes)

	// Whoever may write the file seals it anew, and cannot sign it.
	at := strings.Index(anchor, `,"signature":"`)
	end := strings.Index(anchor, `","sha256"`)
	signature := anchor[at+len(`,"signature":"`) : end]
	raw, err := base64.StdEncoding.DecodeString(signature)
	require.NoError(t, err)
	require.NotEmpty(t, raw)
	tail := &Tail{Node: "n1"}
	forged := []byte(sealedLines(tail, `{"x":1`, `{"x":"changed"`))
	from := len(forged)
	body := anchor[:strings.Index(anchor, `,"anchor":`)] + anchor[strings.Index(anchor, `,"anchor":`):end+1]
	was := body[strings.Index(body, `"was":"`)+7:][:64]
	now := tail.Hash
	forged = append(forged, strings.Replace(body, was, hexOf(now), 1)...)
	tail.Seq++
	forged = append(tail.end(forged, from), '\n')
	problems, _ = verified(t, Against{}, string(forged))
	require.Empty(t, problems, "without the authority nobody can tell")
	problems, _ = verified(t, Against{Roots: roots}, string(forged))
	require.Equal(t, []string{"a:3: the signature of the anchor is not over this line"}, problems)
}

// A certificate that had ended is one of the authority that was given, and is told as what
// it is.
func TestSignaturesByACertificateThatHadEnded(t *testing.T) {
	ca, roots := authority(t)
	pair, err := pki.Issue(ca, pki.Node, "n1", []string{"localhost"}, day.Add(-72*time.Hour), 24*time.Hour)
	require.NoError(t, err)
	log, _ := anchored(t, "n1", Anchor{}, &tls.Certificate{Certificate: [][]byte{pair.Certificate.Raw}, PrivateKey: pair.Key})
	problems, _ := verified(t, Against{Roots: roots}, log)
	require.Equal(t, []string{`a:3: the anchor is of 2026-05-01T12:00:00Z, and the certificate of "n1" is valid from 2026-04-28T11:00:00Z to 2026-04-29T12:00:00Z`}, problems)
}

// A node's certificate may come from an authority between it and the one that is given. So
// may the signatures of its anchors, which whoever verifies them has nothing else of.
func TestSignaturesByCertificatesBetween(t *testing.T) {
	root, _ := authority(t)
	_, others := authority(t)
	above := *root.Certificate
	above.MaxPathLen, above.MaxPathLenZero = -1, false // it may vouch for who vouches
	text, err := x509.CreateCertificate(rand.Reader, &above, &above, root.Key.Public(), root.Key)
	require.NoError(t, err)
	self, err := x509.ParseCertificate(text)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(self)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "between"}, URIs: self.URIs, NotBefore: self.NotBefore, NotAfter: self.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, self, key.Public(), root.Key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	by := certificate(t, &pki.Pair{Certificate: cert, Key: key}, pki.Node, "n1")
	by.Certificate = append(by.Certificate, raw)
	log, _ := anchored(t, "n1", Anchor{}, by)
	problems, notes := verified(t, Against{Roots: roots}, log)
	require.Empty(t, problems)
	require.Empty(t, notes)
	problems, _ = verified(t, Against{Roots: others}, log)
	require.Len(t, problems, 1)
	require.Contains(t, problems[0], "is of no authority that was given")
}

// A node may have had no certificate at first. What was kept of that time is what stands
// in its files, and was written before those that it has signed since.
func TestAnchorsThatWereKeptFromBeforeTheCertificate(t *testing.T) {
	ca, roots := authority(t)
	tail := &Tail{Node: "n1"}
	var lines []string
	for _, by := range []*tls.Certificate{nil, nil, certificate(t, ca, pki.Node, "n1"), nil} {
		sealed, err := tail.SealAnchor([]byte(`{"event_type":"anchor"`+stamp), 0, Anchor{}, by)
		require.NoError(t, err)
		lines = append(lines, string(sealed)+"\n")
	}
	for _, test := range []struct {
		kept, file int // which was kept, and from which on the file has them
		wrong      string
		notes      int
	}{
		{kept: 0, notes: 1},
		{kept: 1, notes: 1},
		{kept: 2, notes: 1},
		{kept: 1, file: 2, notes: 2},
		{kept: 3, wrong: "kept:1: the anchor is not signed, and others of node n1 before it are"},
	} {
		a := Against{Roots: roots}
		require.NoError(t, a.ReadAnchors("kept", strings.NewReader(lines[test.kept])))
		problems, notes := verified(t, a, strings.Join(lines[test.file:3], ""))
		problems = slices.DeleteFunc(problems, func(p string) bool { return strings.Contains(p, " missing ") })
		if test.wrong != "" {
			require.Equal(t, []string{test.wrong}, problems)
			continue
		}
		require.Empty(t, problems)
		require.Len(t, notes, test.notes)
		require.NotContains(t, notes, "3 anchors are not signed: their nodes had no certificate")
	}
}

// Where a log was begun anew, which is told, both have a line of that number.
func TestAnchorsThatWereKeptOfALogBegunAnew(t *testing.T) {
	older, first := anchored(t, "n1", Anchor{Index: 7, State: "aa"}, nil)
	tail := &Tail{Node: "n1"}
	begin := `{"timestamp":"2026-05-02T12:00:00Z","x":`
	newer := sealedLines(tail, begin+"1", begin+"2")
	sealed, err := tail.SealAnchor([]byte(`{"event_type":"anchor"`+stamp), 0, Anchor{Index: 9, State: "bb"}, nil)
	require.NoError(t, err)
	second := string(sealed) + "\n"
	for _, kept := range []string{first, second} {
		a := Against{}
		require.NoError(t, a.ReadAnchors("kept", strings.NewReader(kept)))
		problems, _ := verified(t, a, older, newer+second)
		require.Len(t, problems, 1)
		require.Contains(t, problems[0], "was begun anew here")
	}
}

func TestAnchorsThatWereKept(t *testing.T) {
	ca, roots := authority(t)
	log, anchor := anchored(t, "n1", Anchor{Index: 7, State: "aa"}, certificate(t, ca, pki.Node, "n1"))
	against := func(kept ...string) Against {
		a := Against{Roots: roots}
		for _, k := range kept {
			require.NoError(t, a.ReadAnchors("kept", strings.NewReader(k)))
		}
		return a
	}
	lines := strings.SplitAfter(log, "\n")
	problems, notes := verified(t, against(anchor), log)
	require.Empty(t, problems)
	require.Empty(t, notes)

	problems, _ = verified(t, against(anchor), lines[0]+lines[1])
	require.Equal(t, []string{"a:2: line 3 of node n1 is missing at the end, as the anchor at kept:1 of 2026-05-01T12:00:00Z says"}, problems)
	problems, _ = verified(t, against(anchor), lines[0])
	require.Equal(t, []string{"a:1: lines 2 to 3 of node n1 are missing at the end, as the anchor at kept:1 of 2026-05-01T12:00:00Z says"}, problems)

	// A log that was written anew as a whole is seamless.
	other, _ := anchored(t, "n1", Anchor{Index: 7, State: "aa", Was: ""}, nil)
	problems, _ = verified(t, Against{}, other)
	require.Empty(t, problems)
	problems, _ = verified(t, against(anchor), other)
	require.Len(t, problems, 2)
	require.Contains(t, problems[0], "a:3: no anchor of node n1 is signed")
	require.Equal(t, "a:3: line 3 of node n1 is not the anchor that was kept at kept:1", problems[1])

	problems, notes = verified(t, against(anchor), lines[3])
	require.Contains(t, problems[0], "lines 1 to 3 of node n1 are missing")
	require.Contains(t, strings.Join(notes, "\n"), "in no file that was given")
	_, notes = verified(t, against(anchor))
	require.Contains(t, strings.Join(notes, "\n"), "no file of that node was given")

	var a Against
	require.ErrorContains(t, a.ReadAnchors("kept", strings.NewReader(strings.Replace(anchor, `"aa"`, `"ab"`, 1))), "kept:1: the anchor is not what was written")
	require.ErrorContains(t, a.ReadAnchors("kept", strings.NewReader(anchor+"rubbish\n")), "kept:2")
	require.NoError(t, a.ReadAnchors("kept", strings.NewReader(lines[0])), "other lines are passed over")
}

// An anchor that was kept elsewhere is held to what one in a file is held to: whoever can
// write there must not be able to make one up that says that lines are missing, or none.
func TestAnchorsThatWereKeptAreLookedAt(t *testing.T) {
	ca, roots := authority(t)
	another, _ := authority(t)
	log, anchor := anchored(t, "n1", Anchor{Index: 7, State: "aa"}, certificate(t, ca, pki.Node, "n1"))
	of := func(node, state string, by *tls.Certificate) string {
		_, anchor := anchored(t, node, Anchor{Index: 7, State: state}, by)
		return anchor
	}
	for _, c := range []struct {
		name, kept string
		unsigned   int
		want       []string // problems, in part
	}{
		{name: "its own", kept: anchor},
		{name: "of another authority", kept: of("n1", "aa", certificate(t, another, pki.Node, "n1")), want: []string{
			"kept:1: the certificate of the anchor is of no authority", "is not the anchor that was kept at kept:1",
		}},
		{name: "by another node", kept: of("n2", "aa", certificate(t, ca, pki.Node, "n3")), want: []string{"kept:1: the anchor is signed by another than node n2"}},
		{name: "by a client", kept: of("n2", "aa", certificate(t, ca, pki.Client, "n2")), want: []string{"kept:1: the anchor is signed by another than node n2"}},
		{name: "not signed, of a node that signs", kept: of("n1", "aa", nil), want: []string{
			"kept:1: the anchor is not signed, and others of node n1 before it are", "is not the anchor that was kept at kept:1",
		}},
		{name: "not signed, of a node that has no certificate", kept: of("n2", "aa", nil), unsigned: 1},
		{name: "of another state", kept: of("n2", "bb", certificate(t, ca, pki.Node, "n2")), want: []string{
			"kept:1: node n2 had another state at index 7 than node n1, as a:3 says",
		}},
	} {
		against := Against{Roots: roots}
		require.NoError(t, against.ReadAnchors("kept", strings.NewReader(c.kept)), c.name)
		problems, notes := verified(t, against, log)
		require.Len(t, problems, len(c.want), "%s: %q", c.name, problems)
		for i, want := range c.want {
			require.Contains(t, problems[i], want, c.name)
		}
		if c.unsigned > 0 {
			require.Contains(t, notes, fmt.Sprintf("%d anchors are not signed: their nodes had no certificate", c.unsigned), c.name)
		}
	}
}

// Members that have another state at one index are found, and so is a cluster that went
// through the same index twice.
func TestAnchorsOfOtherStates(t *testing.T) {
	one, _ := anchored(t, "n1", Anchor{Index: 7, State: "aa"}, nil)
	same, _ := anchored(t, "n2", Anchor{Index: 7, State: "aa"}, nil)
	other, _ := anchored(t, "n3", Anchor{Index: 7, State: "bb"}, nil)
	later, _ := anchored(t, "n4", Anchor{Index: 8, State: "cc"}, nil)
	problems, _ := verified(t, Against{}, one, same, later)
	require.Empty(t, problems)
	problems, _ = verified(t, Against{}, one, same, later, other)
	require.Len(t, problems, 1)
	require.Contains(t, problems[0], "d:3: node n3 had another state at index 7 than node n1, as a:3 says")
}

// A cluster that was built anew has a log of its own, which comes to the same index with
// another state. One that was rolled back does so under its own name.
func TestAnchorsOfAnotherCluster(t *testing.T) {
	of := func(node, cluster, state string) string {
		log, _ := anchored(t, node, Anchor{Cluster: cluster, Index: 7, State: state}, nil)
		return log
	}
	for name, test := range map[string]struct {
		logs  []string
		wrong string
		notes []string
	}{
		"one cluster": {logs: []string{of("n1", "c", "aa"), of("n2", "c", "aa")}},
		"it was built anew": {
			logs:  []string{of("n1", "c", "aa"), of("n2", "c", "aa"), of("n3", "d", "bb"), of("n4", "d", "bb")},
			notes: []string{"the anchors are of 2 clusters, which have a log each: states of one tell nothing of those of another"},
		},
		"it was rolled back": {logs: []string{of("n1", "c", "aa"), of("n2", "c", "bb")}, wrong: "b:3: node n2 had another state at index 7 than node n1, as a:3 says"},
		"it was rolled back behind another": {logs: []string{of("n1", "c", "aa"), of("n2", "d", "bb"), of("n3", "c", "cc")}, wrong: "c:3: node n3 had another state at index 7 than node n1, as a:3 says",
			notes: []string{"the anchors are of 2 clusters, which have a log each: states of one tell nothing of those of another"}},
	} {
		t.Run(name, func(t *testing.T) {
			problems, notes := verified(t, Against{}, test.logs...)
			require.Equal(t, test.notes, notes)
			if test.wrong == "" {
				require.Empty(t, problems)
				return
			}
			require.Len(t, problems, 1)
			require.Contains(t, problems[0], test.wrong)
		})
	}
}

// The chain goes on behind an anchor after a restart.
func TestTailOfAnAnchor(t *testing.T) {
	ca, _ := authority(t)
	tail := Tail{Node: "n1"}
	sealed, err := tail.SealAnchor([]byte(`{"event_type":"anchor"`), 0, Anchor{}, certificate(t, ca, pki.Node, "n1"))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, append(sealed, '\n'), 0o600))
	found, err := TailOf(path, "n1")
	require.NoError(t, err)
	require.Equal(t, tail, found)
}

func hexOf(h session.Digest) string { return hex.EncodeToString(h[:]) }
