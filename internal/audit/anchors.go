package audit

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"example.com/govnode/internal/pki"
	"example.com/govnode/session"
)

// An Anchor says where a node's chain of lines stood, and the state beside it. Kept
// elsewhere it holds every line before it, though all nodes should be rolled back
// together: it says the hash of the line before, and is signed.
type Anchor struct {
	Cluster string `json:"cluster,omitempty"` // id of that which has the log
	Index   uint64 `json:"index,omitempty"`   // of the log of commands, where there is one
	State   string `json:"state,omitempty"`   // digest of the whole state at that index
	Was     string `json:"was"`               // hash of the line before; all zeros if there is none
	// Certificate is that of the node, in DER; empty where it has none, and the
	// anchor no signature.
	Certificate []byte `json:"certificate,omitempty"`
	// Between are those that lead from it to an authority, as the node shows them.
	Between [][]byte `json:"between,omitempty"`
}

// AnchorEvent is the type of the lines that are anchors.
const AnchorEvent = "anchor"

// signatureField begins the field before the seal.
var signatureField = []byte(`,"signature":"`)

// SealAnchor ends a line as Seal does, with an anchor signed by the node's
// certificate if there is one. Where that fails the line is an anchor without a
// signature, and the error says why.
func (t *Tail) SealAnchor(lines []byte, from int, a Anchor, by *tls.Certificate) ([]byte, error) {
	a.Was = hex.EncodeToString(t.Hash[:])
	if by != nil {
		a.Certificate, a.Between = by.Certificate[0], by.Certificate[1:]
	}
	text, _ := json.Marshal(a)
	lines = t.place(append(append(lines, `,"anchor":`...), text...))
	var err error
	if by != nil {
		var signature []byte
		if signature, err = sign(by.PrivateKey, t.signed(lines[from:])); err == nil {
			lines = base64.StdEncoding.AppendEncode(append(lines, signatureField...), signature)
			lines = append(lines, '"')
		}
	}
	return t.end(lines, from), err
}

func (t *Tail) signed(line []byte) []byte { return signedText(t.Hash, line) }

// signedText is what the signature of an anchor is over.
func signedText(was session.Digest, line []byte) []byte {
	return append(append([]byte("govnode.anchor.1\x00"), was[:]...), line...)
}

func sign(key crypto.PrivateKey, text []byte) ([]byte, error) {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("audit: a key of type %T does not sign", key)
	}
	hash := crypto.SHA256
	if _, ok := signer.Public().(ed25519.PublicKey); ok {
		hash = 0
	}
	return crypto.SignMessage(signer, rand.Reader, text, hash)
}

var errUnsigned = errors.New("the anchor is not signed")

// checkAnchor looks at the signature of a line with an anchor: it is by the node that
// the line names, as an authority says of its certificate.
func checkAnchor(l *placed, roots *x509.CertPool) error {
	a := l.Anchor
	at := bytes.LastIndex(l.body, signatureField)
	if len(a.Certificate) == 0 || at < 0 {
		return errUnsigned
	}
	signature, err := base64.StdEncoding.DecodeString(string(bytes.TrimSuffix(l.body[at+len(signatureField):], []byte{'"'})))
	if err != nil {
		return fmt.Errorf("the signature of the anchor cannot be read: %w", err)
	}
	cert, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return fmt.Errorf("the certificate of the anchor cannot be read: %w", err)
	}
	when, err := time.Parse(time.RFC3339Nano, l.At)
	if err != nil {
		return fmt.Errorf("the time of the anchor cannot be read: %w", err)
	}
	between := x509.NewCertPool()
	for _, text := range a.Between {
		if c, err := x509.ParseCertificate(text); err == nil { // one that cannot be read leads nowhere
			between.AddCert(c)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: when, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
			return errors.New("the certificate of the anchor is of no authority that was given; if that was replaced since, give a file with the old one too")
		}
		if bad := (x509.CertificateInvalidError{}); errors.As(err, &bad) && bad.Reason == x509.Expired { // it, or one above it
			return fmt.Errorf("the anchor is of %s, and the certificate of %q is valid from %s to %s", when.UTC().Format(time.RFC3339),
				bad.Cert.Subject.CommonName, bad.Cert.NotBefore.UTC().Format(time.RFC3339), bad.Cert.NotAfter.UTC().Format(time.RFC3339))
		}
		return fmt.Errorf("the certificate of the anchor is of no authority that was given: %w", err)
	}
	if who, ok := pki.IdentityOf(cert); !ok || who.Role != pki.Node || who.Name != l.Node {
		return fmt.Errorf("the anchor is signed by another than node %s", l.Node)
	}
	was, err := hash(a.Was)
	if err != nil {
		return err
	}
	if cert.CheckSignature(algorithmOf(cert), signedText(was, l.body[:at]), signature) != nil {
		return errors.New("the signature of the anchor is not over this line")
	}
	return nil
}

func algorithmOf(cert *x509.Certificate) x509.SignatureAlgorithm {
	switch cert.PublicKeyAlgorithm {
	case x509.Ed25519:
		return x509.PureEd25519
	case x509.RSA:
		return x509.SHA256WithRSA
	}
	return x509.ECDSAWithSHA256
}

func hash(text string) (h session.Digest, err error) {
	if n, err := hex.Decode(h[:], []byte(text[:min(len(text), 2*len(h))])); err != nil || n != len(h) || len(text) != 2*len(h) {
		return h, fmt.Errorf("%q is no SHA-256", text[:min(len(text), 80)])
	}
	return h, nil
}

// ReadAnchors reads the anchors that were kept elsewhere: lines of logs, of which those
// of another type are passed over.
func (k *Against) ReadAnchors(name string, text io.Reader) error {
	v := &verifier{nodes: map[string][]*placed{}, links: map[session.Key][]*link{}, unknown: map[session.Key][]*asked{}, folded: map[session.Key][]*folded{}}
	if err := v.read(File{name, text}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(v.Problems) > 0 {
		return errors.New(v.Problems[0].String())
	}
	for _, node := range v.order {
		for _, l := range v.nodes[node] {
			if l.Anchor == nil {
				continue
			}
			if was, err := hash(l.Anchor.Was); err != nil || next(was, l.body) != l.hash {
				return fmt.Errorf("%s:%d: the anchor is not what was written", name, l.line)
			}
			k.anchors = append(k.anchors, l)
		}
	}
	return nil
}

// anchors holds the lines of the files to the anchors in them and to those kept
// elsewhere.
func (v *verifier) anchors() {
	type place struct {
		cluster string
		index   uint64
	}
	states := map[place]*placed{}
	clusters := map[string]bool{}
	unsigned := 0
	bare := map[string][]*placed{} // those in the files of each node that are not signed
	signed := map[string]uint64{}  // the first line of each node that is a signed one
	look := func(l *placed, kept bool) {
		first, is := signed[l.Node]
		if v.against.Roots != nil {
			switch err := checkAnchor(l, v.against.Roots); {
			case errors.Is(err, errUnsigned) && is && (!kept || l.Seq >= first):
				v.wrong(l, "the anchor is not signed, and others of node %s before it are", l.Node)
			case errors.Is(err, errUnsigned):
				if unsigned++; !kept {
					bare[l.Node] = append(bare[l.Node], l)
				}
			case err != nil:
				v.wrong(l, "%v", err)
			case !is || l.Seq < first:
				signed[l.Node] = l.Seq
			}
		}
		if l.Anchor.State == "" {
			return
		}
		if c := l.Anchor.Cluster; c != "" {
			clusters[c] = true
		}
		at := place{l.Anchor.Cluster, l.Anchor.Index}
		if other := states[at]; other == nil {
			states[at] = l
		} else if other.Anchor.State != l.Anchor.State {
			v.wrong(l, "node %s had another state at index %d than node %s, as %s:%d says: the cluster was rolled back, or one of them is damaged", l.Node, l.Anchor.Index, other.Node, other.file, other.line)
		}
	}
	for _, node := range v.order {
		for _, l := range v.nodes[node] {
			if l.Anchor != nil {
				look(l, false)
			}
		}
		// A signed one holds those before it, which are of before its node had a certificate.
		// Without any, whoever can write the file may have written all of it anew.
		if _, is := signed[node]; !is && len(bare[node]) > 0 {
			v.wrong(bare[node][0], "no anchor of node %s is signed, and so its lines may have been written anew; if it has no certificate, verify without an authority (--tls-ca)", node)
		}
	}
	for _, l := range v.against.anchors {
		if slices.ContainsFunc(v.nodes[l.Node], func(is *placed) bool { return is.Seq == l.Seq && is.hash == l.hash && bytes.Equal(is.body, l.body) }) {
			continue // it is one of the lines
		}
		look(l, true)
		v.hold(l)
	}
	if v.against.Roots != nil {
		for _, node := range v.order {
			v.unanchored(node)
		}
	}
	if len(clusters) > 1 {
		v.Notes = append(v.Notes, fmt.Sprintf("the anchors are of %d clusters, which have a log each: states of one tell nothing of those of another", len(clusters)))
	}
	if unsigned > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d anchors are not signed: their nodes had no certificate", unsigned))
	}
}

// A node that writes has an anchor a minute. It may have been paused, and then its first
// lines stand shortly before the next one.
const maxUnanchored, anchorSoon = 5 * time.Minute, time.Minute

// unanchored looks for lines of a node whose anchors were removed.
func (v *verifier) unanchored(node string) {
	var since, at time.Time
	var late *placed
	for _, l := range v.nodes[node] {
		now, err := time.Parse(time.RFC3339Nano, l.At)
		switch {
		case err != nil:
			continue
		case l.Anchor != nil && (late == nil || now.Sub(at) <= anchorSoon):
			since, late = now, nil
		case since.IsZero():
			since = now
		case late == nil && now.Sub(since) > maxUnanchored:
			late, at = l, now
		case late != nil && now.Sub(at) > anchorSoon:
			v.wrong(late, "node %s has no anchor for %v before this line: they were removed", node, at.Sub(since).Round(time.Second))
			return
		}
	}
	if late != nil {
		v.wrong(late, "node %s has no anchor for %v before this line: they were removed", node, at.Sub(since).Round(time.Second))
	}
}

// hold says why an anchor that was kept elsewhere is none of the lines of its node.
func (v *verifier) hold(kept *placed) {
	all := v.nodes[kept.Node]
	if len(all) == 0 && v.bare > 0 {
		v.wrong(nil, "%s:%d is an anchor of node %s, and no file has a line of that node, while %d have no sealed line at all", kept.file, kept.line, kept.Node, v.bare)
		return
	}
	if len(all) == 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%s:%d is an anchor of node %s, and no file of that node was given", kept.file, kept.line, kept.Node))
		return
	}
	first, last := all[0], all[0]
	for _, l := range all {
		if l.Seq == kept.Seq {
			v.wrong(l, "line %d of node %s is not the anchor that was kept at %s:%d", l.Seq, l.Node, kept.file, kept.line)
			return
		}
		if l.Seq < first.Seq {
			first = l
		}
		if l.Seq > last.Seq {
			last = l
		}
	}
	switch {
	case kept.Seq > last.Seq:
		v.wrong(last, "%s missing at the end, as the anchor at %s:%d of %s says", span(last.Seq+1, kept.Seq, kept.Node), kept.file, kept.line, kept.At)
	case kept.Seq < first.Seq:
		v.Notes = append(v.Notes, fmt.Sprintf("%s:%d is an anchor of lines of node %s that are in no file that was given", kept.file, kept.line, kept.Node))
	}
}
