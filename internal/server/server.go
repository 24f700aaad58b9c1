package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/govnode/engine"
	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/pki"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/approvals"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/flows"
	"example.com/govnode/internal/server/gate"
	"example.com/govnode/internal/server/health"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/limits"
	"example.com/govnode/internal/server/members"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/policies"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/sweep"
	"example.com/govnode/internal/server/tokens"
	"example.com/govnode/internal/server/values"
	"example.com/govnode/internal/server/waiting"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/proto/grpc/health/v1/healthv1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Config is what a Server is made of.
type Config struct {
	// Store puts commands in order. Required; the caller closes it, after the
	// Server.
	Store storage.Store
	// Cluster changes and reports members. Nil where the store has none.
	Cluster members.Cluster
	// Ready says for /readyz and for gRPC's health why the store takes no
	// work, where there is no Cluster to say so. Nil where nothing can be
	// wrong with it.
	Ready func(context.Context) error

	Node    string // name of this node; "node" if empty
	Backend string // what orders commands: memory, raft or redis
	Version string // of the program

	// Logger takes what an operator should see. Nil discards it.
	Logger *slog.Logger
	// Audit takes one JSON object a line for each decision (policy engine spec
	// 17.1), several lines in one write. Nil keeps decisions in memory alone.
	Audit io.Writer
	// AuditRequired refuses decisions that cannot be written to Audit, and does
	// not tell those whose lines could not be. Else they go on without.
	AuditRequired bool
	// AuditTimeout is how long an answer waits for its lines. 2 s if 0.
	AuditTimeout time.Duration
	// Registry is where metrics are registered and what /metrics shows. Nil
	// makes one.
	Registry *prometheus.Registry
	// Engine holds the options with which policies are compiled, for instance
	// the loaders of external policy languages.
	Engine []engine.Option

	// StrictNamespaces are the namespaces whose policies are all judged in
	// strict mode, whatever their trees say; "*" stands for every namespace. It
	// has to be the same on all nodes of a cluster, or they judge differently.
	StrictNamespaces []string

	// JournalRecords and JournalBytes bound what the node keeps in memory to
	// explain decisions and to let followers of events come back. 16,384
	// records and 32 MiB if 0.
	JournalRecords, JournalBytes int
	// Peers is how the API of other nodes is reached. Nil makes a client.
	Peers *http.Client
	// PeerTLS opens connections to the API of other nodes where that is served
	// over TLS. Nil where it is not.
	PeerTLS func(ctx context.Context, network, address string) (net.Conn, error)

	// DiskFree tells how many bytes are free on the disk of the log; below DiskReserve
	// new work is refused. Nil and 0: nobody looks.
	DiskFree    func() (uint64, error)
	DiskReserve uint64

	// Authentication asks everybody who they are. Without it who shows nothing is
	// let in as nobody in particular; a token that is shown is looked at all the same.
	Authentication bool
	// Authority is the fingerprint of who vouches for this node: what join tokens carry.
	// Nil without TLS.
	Authority func() []byte
	// SessionPace is how many sessions a namespace may begin in a second at this node,
	// where it has no quota of operations. Any number if 0.
	SessionPace int
	// Identities map client certificates and JWTs to principals. Nil maps none.
	Identities *access.Identities
	// Loopback says that the node listens on a loopback address alone. Without
	// Authentication a Host that names anything else is refused.
	Loopback bool

	// Reflection lets gRPC clients ask for the schema of the API.
	Reflection bool

	// RequestTimeout bounds a request whose caller brings no deadline, its wait
	// apart; a caller's longer one is cut to it. 30 s if 0.
	RequestTimeout time.Duration

	// LeaderPatience is how long a node of a Cluster may know no leader before
	// it refuses new work at once instead of letting it wait for one. It has to
	// be longer than elections take. 5 s if 0.
	LeaderPatience time.Duration

	// NewID draws ids for what a caller left unnamed; nil draws ULIDs.
	NewID func() string
	// AuditChain is where the chain of the audit's lines stands; nil keeps none. Each
	// change then has a line, and a link in a chain of the state.
	AuditChain *audit.Tail
	// Certificate returns that of this node, by which anchors of the audit are signed. Nil
	// where it has none. StateDigest returns the latest digest of the whole state and its index
	// in the log, 0 before there is one; nil where none is made.
	Certificate func() *tls.Certificate
	StateDigest func() (index uint64, digest session.Digest)
	// Now is the time of day, for audit lines; nil means time.Now.
	Now func() time.Time
}

func (c *Config) validate() error {
	if c.Store == nil {
		return errors.New("server: Config.Store is nil; give it the store that orders commands")
	}
	for i, ns := range c.StrictNamespaces {
		if bad := input.NamespaceProblem(ns); bad != "" && ns != "*" {
			return fmt.Errorf("server: Config.StrictNamespaces[%d]: %q %s", i, ns, bad)
		}
	}
	if c.JournalRecords < 0 || c.JournalBytes < 0 {
		return errors.New("server: Config.JournalRecords or JournalBytes is negative")
	}
	c.JournalRecords = cmp.Or(c.JournalRecords, record.DefaultJournalRecords)
	c.JournalBytes = cmp.Or(c.JournalBytes, record.DefaultJournalBytes)
	if c.AuditRequired && c.Audit == nil {
		return errors.New("server: Config.AuditRequired without Config.Audit; give it where lines are written to")
	}
	if c.AuditTimeout < 0 {
		return errors.New("server: Config.AuditTimeout is negative")
	}
	c.AuditTimeout = cmp.Or(c.AuditTimeout, 2*time.Second)
	if c.Peers == nil {
		c.Peers = record.NewPeerClient(c.PeerTLS)
	}
	if c.RequestTimeout < 0 {
		return errors.New("server: Config.RequestTimeout is negative")
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 30 * time.Second
	}
	if c.LeaderPatience < 0 {
		return errors.New("server: Config.LeaderPatience is negative")
	}
	if c.SessionPace < 0 {
		return errors.New("server: Config.SessionPace is negative")
	}
	c.LeaderPatience = cmp.Or(c.LeaderPatience, 5*time.Second)
	if c.Node == "" {
		c.Node = "node"
	}
	if c.Backend == "" {
		c.Backend = "memory"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.NewID == nil {
		c.NewID = func() string { return ulid.Make().String() }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Identities map certificates and JWTs to principals.
type Identities = access.Identities

// LoadIdentities reads a file of identities.
func LoadIdentities(file string) (*Identities, error) { return access.LoadIdentities(file) }

// A Server answers the API on one node. It is safe for concurrent use.
type Server struct {
	cfg      Config
	store    *order.Store
	auth     *access.Authenticator
	quotas   *quota.Quotas
	changes  storage.Store // of proceed alone
	log      *slog.Logger
	limits   *limits.Service
	policies *policies.Service
	values   *values.Service
	flows    *flows.Keeper
	waits    *waiting.Waiters
	sweeper  *sweep.Sweeper
	audit    *auditor
	seals    *sealer
	anchors  *anchors // nil where lines are not chained
	teller   *record.Teller
	metrics  *metrics
	memory   *gate.Memory
	disk     *gate.Disk
	leader   *members.Watch

	draining atomic.Bool
	drained  chan struct{} // closed when the drain begins
	drain    sync.Once
}

// New starts a Server. Close ends it.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger, metrics: m, drained: make(chan struct{})}
	s.leader = members.NewWatch(cfg.Cluster, cfg.LeaderPatience, cfg.Logger)
	s.audit = &auditor{now: cfg.Now, metrics: m, reports: newReports(s.auditReport), log: &auditLog{
		to: cfg.Audit, chain: cfg.AuditChain, required: cfg.AuditRequired, patience: cfg.AuditTimeout, lost: s.auditLost, state: s.auditState,
	}}
	s.audit.log.init()
	kept := s.audit.chained(cfg.Store)
	store := kept
	if cfg.Cluster != nil {
		store = s.leader.Before(store)
	}
	_, late := cfg.Store.(storage.Gatherer)
	s.auth, err = access.New(access.Config{Store: store, Required: cfg.Authentication, Identities: cfg.Identities, Now: cfg.Now, Refused: m.refused, LateReads: late, Turned: s.audit.turnedAway})
	if err != nil {
		return nil, err
	}
	s.quotas = quota.New(store, cfg.Store, m.overQuota, m.turns, cfg.SessionPace)
	s.store, s.changes = order.New(store, m.premises, s.auth, s.quotas), store
	journal := record.NewJournal(cfg.JournalRecords, cfg.JournalBytes, m.events)
	if err := m.watch(cfg.Registry, journal, cfg.Certificate); err != nil {
		return nil, err
	}
	s.teller = &record.Teller{
		Node: cfg.Node, Now: cfg.Now, Log: cfg.Logger, Journal: journal,
		Cluster: cfg.Cluster, Client: cfg.Peers, Secure: cfg.PeerTLS != nil, Cut: m.cut, Drained: s.drained,
		Enter: s.Follower,
		Still: func(ctx context.Context, p *access.Principal) error {
			if _, err := s.auth.Nearby(ctx, p); fault.Unauthenticated(err) {
				return err
			}
			return nil // what cannot be read now is looked at again
		},
	}
	s.audit.journal, s.audit.store = journal, store
	s.seals = &sealer{key: &digestKey{store: kept}}
	if cfg.AuditChain != nil && cfg.Audit != nil {
		s.audit.key = &digestKey{store: kept, newID: cfg.NewID}
		s.seals = &sealer{key: s.audit.key, on: true}
		s.anchors = &anchors{audit: s.audit, state: cfg.StateDigest, by: cfg.Certificate, every: anchorEvery, said: func(err error) {
			cfg.Logger.Error("an anchor of the audit log could not be signed", "error", err)
		}}
	}
	s.limits = &limits.Service{
		Store: s.store, Now: cfg.Now, Changed: s.audit.limited,
		Crossed: func(ns string, res *session.Result) { s.audit.budgets(ns, engine.Input{}, res) },
	}
	s.policies = &policies.Service{
		Cache: policies.NewCache(store, m.compiled, cfg.StrictNamespaces, s.engineOptions()),
		Store: s.store, Now: cfg.Now, WasPut: s.audit.policyPut, Refused: s.audit.policyRefused, HashPut: s.audit.hashPut,
	}
	s.values = &values.Service{Store: s.store, Now: cfg.Now}
	s.flows = &flows.Keeper{Store: s.store, Now: cfg.Now, NewID: cfg.NewID, Ask: func(ctx context.Context, req *v1.ApprovalServiceRequestRequest) (*v1.ApprovalServiceRequestResponse, error) {
		return s.newApprovals().Request(approvals.ByNode(ctx), req)
	}}
	if s.memory, err = gate.NewMemory(cfg.Registry, cfg.Logger); err != nil {
		return nil, err
	}
	if s.disk, err = gate.NewDisk(cfg.Registry, cfg.Logger, cfg.DiskReserve, cfg.DiskFree); err != nil {
		return nil, err
	}
	s.waits = waiting.New(kept, cfg.Logger, m.waiting, m.stopped, m.waited, s.drained)
	s.sweeper = sweep.New(kept, cfg.Logger, m.killed)
	cfg.Store.OnLapse(s.lapsed)
	cfg.Store.OnFold(s.audit.folded)
	s.leader.Start()
	if s.anchors != nil {
		s.audit.key.start()
		s.anchors.start()
	}
	if cfg.Cluster != nil {
		cfg.Cluster.AdmitForwarded(s.admitForwarded)
	}
	return s, nil
}

// engineOptions are those of the configuration; what a policy could not judge
// goes to the node's log.
func (s *Server) engineOptions() []engine.Option {
	return append([]engine.Option{engine.WithLogger(s.cfg.Logger)}, s.cfg.Engine...)
}

// Handler serves the whole API, health and metrics.
func (s *Server) Handler() http.Handler {
	bounded := connect.WithHandlerOptions(connect.WithReadMaxBytes(int(input.Caps.Body.Max)), input.Gzip())
	opts := connect.WithHandlerOptions(
		bounded,
		connect.WithCodec(input.Proto()),
		connect.WithCodec(input.JSON("json")),
		connect.WithCodec(input.JSON("json; charset=utf-8")),
		connect.WithCompressMinBytes(4<<10), // what fits in three packets costs less as it is
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			switch spec.Procedure {
			case govnodev1connect.PolicyServicePutPolicyProcedure:
				return []connect.HandlerOption{connect.WithReadMaxBytes(int(input.Caps.PolicyBody.Max))}
			case govnodev1connect.CallServiceEndCallProcedure, govnodev1connect.PolicyServiceEvaluateProcedure:
				return []connect.HandlerOption{connect.WithReadMaxBytes(int(input.Caps.OutputBody.Max))}
			}
			return nil
		}),
		connect.WithRequestGate(s.auth.Gate),
		connect.WithInterceptors(&boundary{s}),
		connect.WithRecover(s.recovered),
	)
	probes := &health.Probes{Ready: s.ready, Draining: s.draining.Load, Drained: s.drained}
	mux := http.NewServeMux()
	mux.Handle(govnodev1connect.NewSessionServiceHandler(sessionService{s}, opts))
	calls, handler := govnodev1connect.NewCallServiceHandler(callService{Server: s}, opts)
	mux.Handle(calls, stoppable(handler))
	mux.Handle(govnodev1connect.NewSlotServiceHandler(slotService{s, s.limits}, opts))
	mux.Handle(govnodev1connect.NewLimitServiceHandler(limitService{s, s.limits}, opts))
	mux.Handle(govnodev1connect.NewPolicyServiceHandler(policyService{s, s.policies}, opts))
	mux.Handle(govnodev1connect.NewApprovalServiceHandler(s.newApprovals(), opts))
	mux.Handle(govnodev1connect.NewDecisionServiceHandler(s.teller, opts))
	mux.Handle(govnodev1connect.NewEventServiceHandler(s.teller, opts))
	mux.Handle(govnodev1connect.NewCounterServiceHandler(s.values, opts))
	mux.Handle(govnodev1connect.NewClusterServiceHandler(clusterService{s}, opts))
	mux.Handle(govnodev1connect.NewAccessServiceHandler(s.newTokens(), opts))
	mux.Handle(healthv1connect.NewHealthHandler(probes, bounded))
	if s.cfg.Reflection {
		r := grpcreflect.NewStaticReflector(append(health.ServiceNames(), healthv1connect.HealthName)...)
		for _, reflect := range []func(*grpcreflect.Reflector, ...connect.HandlerOption) (string, http.Handler){grpcreflect.NewHandlerV1, grpcreflect.NewHandlerV1Alpha} {
			path, h := reflect(r, bounded)
			mux.Handle(path, s.auth.Only(h, v1.Role_ROLE_OPERATOR, v1.Role_ROLE_AUDITOR))
		}
	}
	mux.HandleFunc("GET /healthz", probes.Healthz)
	mux.HandleFunc("GET /readyz", probes.Readyz)
	mux.Handle("GET /metrics", s.auth.Only(s.shown(), v1.Role_ROLE_OPERATOR, v1.Role_ROLE_AUDITOR))
	all := s.certified(gate.NewDirectory(shortBodies(mux), s.cfg.Reflection))
	if s.cfg.Authentication {
		return all
	}
	return gate.NewNeighbours(all, s.cfg.Loopback)
}

// shortBodies bounds the bodies of all requests but those that may go on for as long as
// their sender likes.
func shortBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case govnodev1connect.CallServiceExchangeProcedure, govnodev1connect.ClusterServiceRestoreProcedure:
		default:
			input.BoundBody(w, r)
		}
		next.ServeHTTP(w, r)
	})
}

// certified marks requests by the certificate of their connection, which TLS has held
// to the cluster's authority.
func (s *Server) certified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			cert := r.TLS.PeerCertificates[0]
			if id, ok := pki.IdentityOf(cert); ok && (id.Role != pki.Node || s.isMember(r.Context(), id.Name)) {
				r = r.WithContext(s.auth.WithCertificate(r.Context(), id.Name, id.Role == pki.Node, cert.NotAfter))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isMember reports whether a node is a member: one that was removed has its certificate
// still, and no more business here.
func (s *Server) isMember(ctx context.Context, node string) bool {
	if s.cfg.Cluster == nil {
		return false // nobody asks in the name of a caller of its own
	}
	status, err := s.cfg.Cluster.Status(ctx)
	return err == nil && slices.ContainsFunc(status.Peers, func(p Peer) bool { return p.Node == node })
}

// Follower counts one more of those who follow a namespace at this node by other ways
// than events, until leave is called. The error says that its quota is reached.
func (s *Server) Follower(ctx context.Context, namespace string) (leave func(), err error) {
	return s.quotas.Enter(ctx, namespace, quota.Followers)
}

// Local marks a connection of the local socket, whose callers are operators of the
// cluster: whoever may open it may write the node's disk.
func Local(ctx context.Context, uid int) context.Context { return access.WithLocal(ctx, uid) }

// AdminHandler serves what is for those who run the node, on a port that nobody else
// reaches: metrics and profiles.
func (s *Server) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.shown())
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return gate.NewNeighbours(mux, true)
}

// shown shows the metrics.
func (s *Server) shown() http.Handler {
	return promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{ErrorLog: promLog{s.log}})
}

func (s *Server) newTokens() *tokens.Service {
	return &tokens.Service{Store: s.store, Auth: s.auth, Quotas: s.quotas, Now: s.cfg.Now, Authority: s.cfg.Authority, Changed: s.audit.limited}
}

// ready returns the check that fails.
func (s *Server) ready(ctx context.Context) error {
	if s.draining.Load() {
		return health.ErrDrain
	}
	if trouble := s.audit.log.failing(); s.cfg.AuditRequired && trouble != nil {
		return fmt.Errorf("audit: the log cannot be written and is required: %w", trouble)
	}
	if s.cfg.Cluster != nil {
		return s.cfg.Cluster.Ready(ctx)
	}
	if s.cfg.Ready != nil {
		return s.cfg.Ready(ctx)
	}
	return nil
}

// Drain prepares the end: /readyz turns false, no new call or session is
// taken, and whoever waits here is told to go on at another node with the same
// id. It returns when no wait is left, or with the error of ctx.
func (s *Server) Drain(ctx context.Context) error {
	s.drain.Do(func() {
		s.draining.Store(true)
		close(s.drained)
	})
	return s.waits.Idle(ctx)
}

// Close drains what still waits and ends the Server's own work. The Store
// stays open.
func (s *Server) Close() error {
	s.drain.Do(func() {
		s.draining.Store(true)
		close(s.drained)
	})
	if s.cfg.Cluster != nil {
		s.cfg.Cluster.AdmitForwarded(nil)
	}
	s.auth.Close()
	s.sweeper.Close()
	s.waits.Close()
	s.cfg.Store.OnLapse(nil)
	s.cfg.Store.OnFold(nil)
	if s.anchors != nil {
		s.audit.key.close()
		s.anchors.close()
	}
	s.audit.log.close()
	s.audit.reports.close()
	s.leader.Close()
	s.memory.Close()
	s.disk.Close()
	return nil
}
