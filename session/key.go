package session

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// A Key names a record: one letter for its kind, the namespace, a slash and the
// name. A namespace has no slash in it, so a key has one reading.
type Key string

// The kinds of records, each with the letter that begins its keys.
const (
	KindSession   = 's'
	KindPool      = 'p'
	KindClient    = 'c'
	KindPolicy    = 'y' // a tree, by its digest in hexadecimal
	KindName      = 'm' // what the name of a policy points to
	KindPins      = 'i' // how many sessions pin a digest, in 16 parts
	KindCounter   = 'k'
	KindNamespace = 'n'
	KindBaseline  = 'b' // the first output of a session, for drift
	KindHash      = 'h' // the registered content hash of a tool
	KindBudget    = 'u'
	KindApproval  = 'a'
	KindStanding  = 'f' // a standing approval, by a hash of what it is for
	KindList      = 'l' // the head of a list, and its items
	KindSignals   = 'g' // the STOPs and KILLs that stand in a namespace
	KindAccess    = 'w' // who may do what in a namespace
)

// letters has the letter of each record at its number in log.proto.
const letters = "spcymiknbhgafullw"

func key(kind byte, ns, name string) Key {
	var b strings.Builder
	b.Grow(len(ns) + len(name) + 2)
	b.WriteByte(kind)
	b.WriteString(ns)
	b.WriteByte('/')
	b.WriteString(name)
	return Key(b.String())
}

func SessionKey(ns, id string) Key       { return key(KindSession, ns, id) }
func PoolKey(ns, pool string) Key        { return key(KindPool, ns, pool) }
func ClientKey(ns, client string) Key    { return key(KindClient, ns, client) }
func PolicyKey(ns string, d Digest) Key  { return key(KindPolicy, ns, hex.EncodeToString(d[:])) }
func NameKey(ns, name string) Key        { return key(KindName, ns, name) }
func CounterKey(ns, name string) Key     { return key(KindCounter, ns, name) }
func NamespaceKey(ns string) Key         { return key(KindNamespace, ns, "") }
func BaselineKey(ns, session string) Key { return key(KindBaseline, ns, session) }
func SignalsKey(ns string) Key           { return key(KindSignals, ns, "") }
func AccessKey(ns string) Key            { return key(KindAccess, ns, "") }
func HashKey(ns, tool string) Key        { return key(KindHash, ns, tool) }
func ApprovalKey(ns, id string) Key      { return key(KindApproval, ns, id) }
func StandingKey(ns, id string) Key      { return key(KindStanding, ns, id) }
func BudgetKey(ns, budget string) Key    { return key(KindBudget, ns, budget) }
func PinsKey(ns string, d Digest, session string) Key {
	return pinsKey(ns, d, int(sha256.Sum256([]byte(session))[0])%PinParts)
}

// PinParts is into how many records the pins of a digest are spread, so that
// sessions that begin at once do not all write one record.
const PinParts = 16

func pinsKey(ns string, d Digest, part int) Key {
	return key(KindPins, ns, hex.EncodeToString(d[:])+"/"+string("0123456789abcdef"[part]))
}

// PinsKeys returns the records in which the pins of a digest are counted.
func PinsKeys(ns string, d Digest) []Key {
	keys := make([]Key, PinParts)
	for i := range keys {
		keys[i] = pinsKey(ns, d, i)
	}
	return keys
}

// Kind returns the letter of the key's kind.
func (k Key) Kind() byte { return k[0] }

// Namespace returns the namespace of the key.
func (k Key) Namespace() string {
	if i := strings.IndexByte(string(k), '/'); i > 0 {
		return string(k[1:i])
	}
	return ""
}

// Name returns what the key names within its kind and namespace.
func (k Key) Name() string { return string(k[strings.IndexByte(string(k), '/')+1:]) }

// Prefix returns what all keys of a kind in a namespace begin with.
func Prefix(kind byte, ns string) Key { return key(kind, ns, "") }

// A Digest names a policy tree by its content (SHA-256).
type Digest [32]byte

// String returns "sha256:" and the digest in hexadecimal.
func (d Digest) String() string { return "sha256:" + hex.EncodeToString(d[:]) }

// A Fingerprint is of the content of a request: the same id with another
// fingerprint is refused.
type Fingerprint [8]byte

// A ref names a record like its Key, without putting the text together.
type ref struct {
	kind     byte
	ns, name string
}

func refOf(k Key) ref {
	if len(k) < 2 {
		return ref{}
	}
	return ref{k.Kind(), k.Namespace(), k.Name()}
}

func (r ref) append(b []byte) []byte {
	b = append(append(b, r.kind), r.ns...)
	return append(append(b, '/'), r.name...)
}
