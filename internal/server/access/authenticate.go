package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/lobby"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Store is where records of namespaces are read.
type Store interface {
	Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error)
}

// Config is what an Authenticator is made of.
type Config struct {
	Store Store
	// Required asks everybody who they are. Else a request without credentials is
	// nobody's in particular and may do everything; one with credentials is held
	// to them all the same.
	Required bool
	// Identities map certificates and JWTs to principals; nil where there are none.
	Identities *Identities
	Now        func() time.Time
	// Refused counts who was not let in, by the reason.
	Refused *prometheus.CounterVec
	// LateReads says that a read of this node's own state may be older than what a
	// linearizable read has just answered from: over Redis.
	LateReads bool
	// Turned is told who was not let in, and to what: a method, or a path of its own. p is
	// nil where nobody knows him. Nil where nobody wants to know.
	Turned func(to string, p *Principal, err error)
}

// An Authenticator finds out who calls. It is safe for concurrent use.
type Authenticator struct {
	Config
	Methods Methods

	mu    sync.Mutex
	known map[[32]byte]*Principal // by the SHA-256 of the token's text
	young map[string]*late        // by namespaces that were looked up anew for a token that was not there
	watch map[*guarded]struct{}
	stop  chan struct{}
	once  sync.Once
	beat  sync.WaitGroup
}

// New makes an Authenticator. Close ends its work.
func New(cfg Config) (*Authenticator, error) {
	methods, err := ReadMethods()
	if err != nil {
		return nil, err
	}
	a := &Authenticator{
		Config: cfg, Methods: methods, known: map[[32]byte]*Principal{}, young: map[string]*late{},
		watch: map[*guarded]struct{}{}, stop: make(chan struct{}),
	}
	a.beat.Go(a.look)
	return a, nil
}

// Close ends the watch over those who are let in for long.
func (a *Authenticator) Close() {
	a.once.Do(func() { close(a.stop) })
	a.beat.Wait()
}

// Gate lets a request in before its body is read, with its principal and namespace,
// or says why not.
func (a *Authenticator) Gate(ctx context.Context, spec connect.Spec, _ connect.Peer, header http.Header) (context.Context, error) {
	p, err := a.identify(ctx, header)
	if err == nil {
		err = a.Methods.Admit(p, spec.Procedure)
	}
	if err != nil {
		a.turn(spec.Procedure, p, err)
		if fault.Unauthenticated(err) {
			lobby.Wrong(ctx)
		}
		return nil, err
	}
	lobby.Welcome(ctx)
	if p == nil {
		return input.NamespaceGate(ctx, header)
	}
	switch named := header.Values(input.NamespaceHeader); {
	case len(named) == 0 || len(named) == 1 && (named[0] == p.Namespace || named[0] == ""):
	default:
		err := Denied("%s names another namespace than the token; leave the header out, or use a token of that namespace", input.NamespaceHeader)
		a.turn(spec.Procedure, p, err)
		return nil, err
	}
	ctx = context.WithValue(With(ctx, p), input.NamespaceKey{}, p.Namespace)
	return context.WithValue(ctx, shownKey{}, header.Get(AuthorizationHeader)), nil
}

// turn counts who is not let in to something, and tells of him.
func (a *Authenticator) turn(to string, p *Principal, err error) {
	a.Refused.WithLabelValues(fault.Of(err).Reason).Inc()
	if a.Turned != nil {
		a.Turned(to, p, err)
	}
}

type shownKey struct{}

// Shown is what a caller has shown, for another node that answers a part of the request.
func Shown(ctx context.Context) string {
	text, _ := ctx.Value(shownKey{}).(string)
	return text
}

// AuthorizationHeader brings a token, or a JWT, behind Bearer.
const AuthorizationHeader = "Authorization"

// identify returns who sends a request; nil where nobody is asked.
func (a *Authenticator) identify(ctx context.Context, header http.Header) (*Principal, error) {
	shown := header.Values(AuthorizationHeader)
	switch {
	case len(shown) == 0:
		if p := channelOf(ctx); p != nil && p.Namespace == "" { // another node
			return a.ofNode(ctx, *p, header)
		} else if p != nil {
			return a.channel(ctx, p)
		}
		if a.Required {
			return nil, unknown("this node asks who calls; send a token in the header " + AuthorizationHeader + ": Bearer")
		}
		return nil, nil
	case len(shown) > 1:
		return nil, unknown(AuthorizationHeader + " is given more than once; send one")
	}
	scheme, text, _ := strings.Cut(shown[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || text == "" {
		return nil, unknown(AuthorizationHeader + " is none of this service; send Bearer and a token behind it")
	}
	return a.token(ctx, text)
}

// ErrUnknown is the same for all that is wrong with a token, so that nobody learns
// what of it was right.
func ErrUnknown() error {
	return unknown("the token is not known, or it has expired or was revoked; ask an operator for another")
}

func unknown(text string) error {
	return fault.New(connect.CodeUnauthenticated, fault.ReasonUnauthenticated, text)
}

// token finds the principal of a token's text.
func (a *Authenticator) token(ctx context.Context, text string) (*Principal, error) {
	if len(text) > maxJWT || len(text) > maxToken && strings.HasPrefix(text, TokenPrefix) {
		return nil, ErrUnknown()
	}
	sum := sha256.Sum256([]byte(text))
	a.mu.Lock()
	p := a.known[sum]
	a.mu.Unlock()
	if p != nil {
		found, err := a.Store.Get(ctx, session.AccessKey(p.Namespace), storage.Nearby)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		if same(found.Record, p.record) && !p.Expired(a.Now()) {
			return p, nil
		}
	}
	if !strings.HasPrefix(text, TokenPrefix) {
		return a.jwt(ctx, text, sum)
	}
	ns, id, secret, ok := splitToken(text)
	if !ok || ns != session.ClusterNamespace && input.NamespaceProblem(ns) != "" {
		return nil, ErrUnknown()
	}
	hash := session.Digest(sha256.Sum256([]byte(secret)))
	p, err := a.lookUp(ctx, ns, id, hash)
	if err != nil {
		return nil, err
	}
	a.keep(sum, p)
	return p, nil
}

// keep remembers a token that was verified.
func (a *Authenticator) keep(sum [32]byte, p *Principal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxKnown {
		clear(a.known)
	}
	a.known[sum] = p
}

// maxKnown bounds what is remembered of tokens that were verified.
const maxKnown = 1 << 14

func same(a, b session.Record) bool { return session.EpochOf(a) == session.EpochOf(b) }

// lookUp finds the token of an id by its namespace's record: as this node has it,
// and as it stands now where that has no such token, since it may be younger. A known
// id with a wrong secret goes the same way as an id that is not known: else the time of
// the answer would tell which ids there are.
func (a *Authenticator) lookUp(ctx context.Context, ns, id string, hash session.Digest) (*Principal, error) {
	found, err := a.Store.Get(ctx, session.AccessKey(ns), storage.Nearby)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	x, _ := found.Record.(*session.Access)
	p, wrong := a.fromToken(ns, id, hash, x)
	if wrong == nil {
		return p, nil
	}
	if found, err = a.later(ctx, ns); err != nil {
		return nil, fault.OfRead(err)
	}
	x, _ = found.Record.(*session.Access)
	return a.fromToken(ns, id, hash, x)
}

// fromToken makes the principal of a token. The time it takes does not tell an id that
// is there from one that is not.
func (a *Authenticator) fromToken(ns, id string, hash session.Digest, x *session.Access) (*Principal, error) {
	var of session.Digest
	t := x.FindToken(id)
	if t != nil {
		of = t.Hash
	}
	if subtle.ConstantTimeCompare(of[:], hash[:]) != 1 || t == nil {
		return nil, ErrUnknown()
	}
	p := Principal{
		Name: "token:" + id, Namespace: ns, Roles: t.Roles, Agents: t.Agents, Policies: t.Policies, Environment: t.Environment, Node: t.Node, token: id, hash: hash,
	}
	if t.Expires > 0 {
		p.Expires = time.UnixMilli(t.Expires)
	}
	if p.Expired(a.Now()) {
		return nil, ErrUnknown()
	}
	return p.judgedBy(record(x)), nil
}

// record is a record that may be absent, without a type in a nil.
func record(x *session.Access) session.Record {
	if x == nil {
		return nil
	}
	return x
}

// late reads a namespace's record as it stands now, for all who ask at that time: no two
// reads are under way at once, and each begins behind whoever it answers has come, so that
// nobody misses what was there before.
type late struct {
	mu   sync.Mutex
	next *lateRead // that has not begun
	busy bool      // somebody reads, or pauses
}

type lateRead struct {
	done  chan struct{} // closed behind found and err
	found storage.Found
	err   error
}

const (
	// laterPause is how long a late read begins behind the one before it: so who guesses
	// costs the cluster ten reads a second and no more.
	laterPause = 100 * time.Millisecond
	// laterFor bounds one, whose length is that of no request: nobody is told the error of
	// another's deadline.
	laterFor = 10 * time.Second
	// maxYoung bounds the namespaces of which somebody has shown a token that was not
	// there: names that are none are guessed as well.
	maxYoung = 1024
)

func (a *Authenticator) later(ctx context.Context, ns string) (storage.Found, error) {
	a.mu.Lock()
	l := a.young[ns]
	if l == nil {
		if len(a.young) >= maxYoung {
			clear(a.young)
		}
		l = &late{}
		a.young[ns] = l
	}
	a.mu.Unlock()
	l.mu.Lock()
	r := l.next
	if r == nil {
		r = &lateRead{done: make(chan struct{})}
		l.next = r
	}
	if !l.busy {
		l.busy = true
		go a.readLate(context.WithoutCancel(ctx), l, ns)
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.found, r.err
	case <-ctx.Done():
		return storage.Found{}, storage.Unread(context.Cause(ctx))
	}
}

// readLate reads for as long as somebody asks.
func (a *Authenticator) readLate(ctx context.Context, l *late, ns string) {
	for {
		l.mu.Lock()
		r := l.next
		l.next, l.busy = nil, r != nil
		l.mu.Unlock()
		if r == nil {
			return
		}
		pause := time.After(laterPause)
		bound, cancel := context.WithTimeout(ctx, laterFor)
		r.found, r.err = a.Store.Get(bound, session.AccessKey(ns), storage.Latest)
		cancel()
		close(r.done)
		select {
		case <-pause:
		case <-a.stop: // what is asked for still is answered by a store that closes
		}
	}
}

// Again finds a principal anew by what holds now: after an answer that what he was
// judged by has changed, which a read of this node's own state may not show yet.
func (a *Authenticator) Again(ctx context.Context, p *Principal) (*Principal, error) {
	if p == nil {
		return nil, nil
	}
	found, err := a.Store.Get(ctx, session.AccessKey(p.Namespace), storage.Nearby)
	if err == nil && same(found.Record, p.record) {
		found, err = a.Store.Get(ctx, session.AccessKey(p.Namespace), storage.Latest)
	}
	if err != nil {
		return nil, fault.OfRead(err)
	}
	return a.under(p, found.Record)
}

// AsOfNow is Again for what is not judged where it is put in order: by what stands now.
func (a *Authenticator) AsOfNow(ctx context.Context, p *Principal) (*Principal, error) {
	return a.asOf(ctx, p, storage.Latest)
}

// asOf finds a principal anew by what a read finds. Whom no record keeps out is not kept
// out by one that cannot be read: over Redis none can while it has to be restored, which
// the local socket is for. What he changes then is ordered by a premise that does not hold.
func (a *Authenticator) asOf(ctx context.Context, p *Principal, read storage.Read) (*Principal, error) {
	found, err := a.Store.Get(ctx, session.AccessKey(p.Namespace), read)
	if err != nil && !p.always() {
		return nil, fault.OfRead(err)
	}
	return a.under(p, found.Record)
}

// Nearby finds a principal anew where this node's own state says that something has
// changed.
func (a *Authenticator) Nearby(ctx context.Context, p *Principal) (*Principal, error) {
	if p == nil {
		return nil, nil
	}
	found, err := a.Store.Get(ctx, session.AccessKey(p.Namespace), storage.Nearby)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	if same(found.Record, p.record) && !p.Expired(a.Now()) {
		return p, nil
	}
	return a.under(p, found.Record)
}

// AfterRead holds the answer of a linearizable read to who may have it: what was
// revoked before the read is found out behind it.
func (a *Authenticator) AfterRead(ctx context.Context, p *Principal) error {
	if p == nil {
		return nil
	}
	read := storage.Nearby // the read has brought this node up to date
	if a.LateReads {
		read = storage.Latest
	}
	found, err := a.Store.Get(ctx, session.AccessKey(p.Namespace), read)
	if err != nil {
		return fault.OfRead(err)
	}
	if same(found.Record, p.record) {
		return nil
	}
	_, err = a.under(p, found.Record)
	return err
}

// under judges a principal by another record of his namespace.
func (a *Authenticator) under(p *Principal, r session.Record) (*Principal, error) {
	x, _ := r.(*session.Access)
	if p.token != "" {
		next, err := a.fromToken(p.Namespace, p.token, p.hash, x)
		if err == nil && !next.mayTheSame(p) { // it was revoked, and made anew
			return nil, ErrUnknown()
		}
		return next, err
	}
	for _, subject := range p.denials {
		if x.Denies(subject) {
			return nil, ErrUnknown()
		}
	}
	if p.Expired(a.Now()) {
		return nil, ErrUnknown()
	}
	return p.judgedBy(record(x)), nil
}

// A channel tells who calls by itself: the local socket.
type channelKey struct{}

// WithLocal marks the connections of the local socket: whoever can open it may write
// the node's disk, and so is an operator of the cluster.
func WithLocal(ctx context.Context, uid int) context.Context {
	return context.WithValue(ctx, channelKey{}, &Principal{
		Name: "local:" + strconv.Itoa(uid), Namespace: session.ClusterNamespace, Roles: 1 << operatorRole,
	})
}

func channelOf(ctx context.Context) *Principal {
	p, _ := ctx.Value(channelKey{}).(*Principal)
	return p
}

// agentsHeader brings patterns of the agents that he sees for whom a node asks another in
// its own name: who has shown a certificate has nothing that could be handed on.
const agentsHeader = "Govnode-Agents"

// Bind has a request of this node to another bring what he sees.
func (p *Principal) Bind(header http.Header) {
	if p == nil {
		return
	}
	for _, pattern := range p.Agents {
		header.Add(agentsHeader, url.QueryEscape(pattern))
	}
}

// ofNode is another node, in the namespace in which it asks.
func (a *Authenticator) ofNode(ctx context.Context, p Principal, header http.Header) (*Principal, error) {
	if p.Namespace = header.Get(input.NamespaceHeader); p.Namespace == "" {
		p.Namespace = input.DefaultNamespace
	}
	if bad := input.NamespaceProblem(p.Namespace); bad != "" {
		return nil, fault.Invalid(input.NamespaceHeader, "%s", bad)
	}
	for _, pattern := range header.Values(agentsHeader) {
		pattern, err := url.QueryUnescape(pattern)
		if err != nil {
			return nil, fault.Invalid(agentsHeader, "cannot be read; send what a node sends")
		}
		p.Agents = append(p.Agents, pattern)
	}
	return a.channel(ctx, &p)
}

func (a *Authenticator) channel(ctx context.Context, p *Principal) (*Principal, error) {
	return a.asOf(ctx, p, storage.Nearby)
}

// Only lets those of the cluster through who have one of some roles, where everybody is
// asked who they are: for what is no method of the API.
func (a *Authenticator) Only(next http.Handler, roles ...v1.Role) http.Handler {
	if !a.Required {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := a.identify(r.Context(), r.Header)
		switch {
		case err != nil:
			a.turn(r.URL.Path, nil, err)
			lobby.Wrong(r.Context())
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case p.Namespace != session.ClusterNamespace || !p.Is(roles...):
			err := Denied("this is for %s of %s", roleNames(roles), session.ClusterNamespace)
			a.turn(r.URL.Path, p, err)
			http.Error(w, err.Error(), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
