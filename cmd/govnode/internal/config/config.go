package config

import (
	"strings"
	"time"
)

// Config holds every setting. Which commands read which of them, under what
// names, and what they are without being set, stands in the table settings.
type Config struct {
	File string

	Listen         string
	RaftListen     string
	Advertise      string
	Insecure       bool
	Auth           string
	Identities     string
	Socket         string
	AdminListen    string
	Token          string
	TokenFile      string
	MaxConnections int
	RequestTimeout time.Duration
	Reflection     bool
	EdictumKeys    string

	TLSCert       string
	TLSKey        string
	TLSCA         string
	TLSClientAuth string
	ClusterName   string

	StrictNamespaces []string

	Node          string
	Data          string
	Backend       string
	Bootstrap     bool
	Join          []string
	JoinToken     string
	JoinTokenFile string
	Admission     string
	JoinTimeout   time.Duration
	BootstrapWait time.Duration
	Nonvoter      bool
	Replace       bool
	Audit         string
	DiskReserve   int

	AuditMode    string
	AuditChain   string
	AuditTimeout time.Duration

	LogLevel  string
	LogFormat string

	Redis                 string
	RedisCluster          []string
	RedisSentinel         []string
	RedisSentinelMaster   string
	RedisSentinelUser     string
	RedisSentinelPassword string
	RedisTLS              bool
	RedisTLSCA            string
	RedisTLSCert          string
	RedisTLSKey           string
	RedisPrefix           string
	RedisQuarantine       time.Duration
	RedisTimeout          time.Duration
	RedisAcceptRisk       []string

	Heartbeat     time.Duration
	Election      time.Duration
	LeaderLease   time.Duration
	DiskTimeout   time.Duration
	LogStore      string
	Queue         int
	SnapshotBytes int
	TrailingLogs  int

	Nodes   int
	Restart bool
	Verbose bool

	Addr      string
	Namespace string
	Output    string
	Timeout   time.Duration

	// sources says where each setting got its value, by the name of its flag.
	sources map[string]string
}

// Scope is a set of commands.
type Scope int

const (
	OnServe  Scope = 1 << iota // serve
	OnDev                      // dev
	OnClient                   // everything that talks to a running node
)

const onAll = OnServe | OnDev | OnClient

// A setting is one line of the table from which the flags, the environment
// variables, the keys of the file, the help and `config explain` are made. The
// key in the file is the name of the flag; the variable is that name in
// capitals, see env.
type setting struct {
	flag    string
	short   string // one letter, or empty
	on      Scope
	def     string // as it would be typed
	may     string // what it may be: "least..most", or "one|another", or empty for what check knows
	meaning string
	in      func(*Config) any // the field: *string, *bool, *int, *time.Duration or *[]string
}

// env is the environment variable of the setting: GOVNODE_RAFT_LISTEN for
// --raft-listen.
func (s setting) env() string {
	return "GOVNODE_" + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))
}

// secret reports whether the value may hold a password: it is not printed, and
// goes to other processes through their environment.
func (s setting) secret() bool {
	return s.flag == "redis" || s.flag == "redis-sentinel-password" || s.flag == "token" || s.flag == "join-token"
}

// text is the meaning without the marks around the name of its value.
func (s setting) text() string {
	text := strings.ReplaceAll(s.meaning, "`", "")
	if s.may != "" {
		text += ", " + s.may
	}
	return text
}

var settings = []setting{
	{"config", "", onAll, "", "", "YAML `file` with settings; its keys are the names of the flags", func(c *Config) any { return &c.File }},

	{"listen", "", OnServe | OnDev, "127.0.0.1:7070", "", "`address` of the API; dev gives its nodes this port and those that follow, or free ones if it is 0", func(c *Config) any { return &c.Listen }},
	{"raft-listen", "", OnServe, "", "", "`address` between nodes; the host of --listen and its port + 10 if empty", func(c *Config) any { return &c.RaftListen }},
	{"advertise", "", OnServe, "", "", "`host` under which others reach this node; the host of the listener if empty", func(c *Config) any { return &c.Advertise }},
	{"insecure", "", OnServe | OnDev, "false", "", "listen on addresses that are not loopback although nobody is asked who they are, which only certificates do", func(c *Config) any { return &c.Insecure }},
	{"auth", "", OnServe, AuthNone, AuthNone + "|" + AuthTokens, "who is let in: none asks nobody, tokens asks everybody for a token, see govnode token create", func(c *Config) any { return &c.Auth }},
	{"identities", "", OnServe, "", "", "YAML `file` that says who the holders of client certificates and of JWTs are, the same on all nodes", func(c *Config) any { return &c.Identities }},
	{"socket", "", OnServe | OnClient, "", "", "`path` of the local socket, over which the node's own user makes the first token; govnode.sock in the data folder with --auth tokens", func(c *Config) any { return &c.Socket }},
	{"admin-listen", "", OnServe, "", "", "loopback `address` of a port for metrics and profiles; none if empty", func(c *Config) any { return &c.AdminListen }},
	{"tls-cert", "", OnServe | OnClient, "", "", "`file` of the certificate in PEM that a node, or a client command, shows; a node with one speaks TLS 1.3 alone, and reads the files again when they change", func(c *Config) any { return &c.TLSCert }},
	{"tls-key", "", OnServe | OnClient, "", "", "`file` of the key in PEM of that certificate, which only its owner may read", func(c *Config) any { return &c.TLSKey }},
	{"tls-ca", "", OnServe | OnClient, "", "", "`file` of the certificates in PEM of those who may vouch for others, the ca.crt of govnode tls init; a node with one asks other nodes for certificates, a client command without one trusts those of this system", func(c *Config) any { return &c.TLSCA }},
	{"tls-client-auth", "", OnServe, "", "", "whether users of the API show certificates, none|optional|require; optional with --tls-ca and none without if empty", func(c *Config) any { return &c.TLSClientAuth }},
	{"cluster-name", "", OnServe, "govnode", "", "`name` of the cluster of certificates, as govnode tls init was given it; certificates of another one are refused", func(c *Config) any { return &c.ClusterName }},
	{"max-connections", "", OnServe | OnDev, "8192", "1..1048576", "connections to the API that are let in at once; for more, idle ones of the address that has most are closed", func(c *Config) any { return &c.MaxConnections }},
	{"request-timeout", "", OnServe | OnDev, "30s", "1s..10m", "longest time for one request, its wait for a slot apart", func(c *Config) any { return &c.RequestTimeout }},
	{"reflection", "", OnServe, "false", "", "let gRPC clients, such as grpcurl, ask for the schema of the API; dev does", func(c *Config) any { return &c.Reflection }},

	{"edictum-keys", "", OnServe | OnDev, "", "", "YAML `file` of the keys by which SDKs of Edictum are known, read again at SIGHUP; without one a node does not serve /v1/, and dev makes one", func(c *Config) any { return &c.EdictumKeys }},

	{"strict-namespaces", "", OnServe | OnDev, "", "", "`names` of namespaces, separated by commas, whose policies are all judged in strict mode, or * for every one; the same on all nodes", func(c *Config) any { return &c.StrictNamespaces }},

	{"node", "", OnServe, "node1", "", "`name` of this node, its own in the cluster for ever; over a Redis, if none is given, that of the host and the port of --listen", func(c *Config) any { return &c.Node }},
	{"data", "", OnServe | OnDev, "", "", "`folder` for what outlives the process; dev uses a temporary one if empty", func(c *Config) any { return &c.Data }},
	{"backend", "", OnServe | OnDev, "raft", "raft|memory|redis", "what puts commands in order; memory is one node and forgets everything when it ends", func(c *Config) any { return &c.Backend }},
	{"bootstrap", "", OnServe, "false", "", "begin a new cluster with this node as its first member, if its data folder is empty and no address of --join belongs to one", func(c *Config) any { return &c.Bootstrap }},
	{"join", "", OnServe, "", "", "Raft `addresses` of members, separated by commas, to ask for admission", func(c *Config) any { return &c.Join }},
	{"join-token", "", OnServe, "", "", "`text` of a join token, by which this node makes itself a member, see govnode token create --join; whoever sees the flags of processes sees it, so better give --join-token-file", func(c *Config) any { return &c.JoinToken }},
	{"join-token-file", "", OnServe, "", "", "`file` with the join token; it is read where the data folder is empty, and may be gone later", func(c *Config) any { return &c.JoinTokenFile }},
	{"admission", "", OnServe, AdmitCertificate, AdmitCertificate + "|" + AdmitToken, "whom the members let join: certificate every node that can reach them, with TLS those with a certificate of a node of this cluster, token those alone that bring a join token or that an operator added; the same on all nodes", func(c *Config) any { return &c.Admission }},
	{"bootstrap-wait", "", OnServe, "1.5s", "0s..1m", "how long a node that begins a cluster listens first for members of another that take it for theirs", func(c *Config) any { return &c.BootstrapWait }},
	{"join-timeout", "", OnServe, "1m0s", "1s..1h", "how long to wait for admission", func(c *Config) any { return &c.JoinTimeout }},
	{"nonvoter", "", OnServe, "false", "", "join as a member that has the state and no vote", func(c *Config) any { return &c.Nonvoter }},
	{"replace", "", OnServe, "false", "", "join with an empty data folder under a name that the cluster knows: what that node had is lost for ever", func(c *Config) any { return &c.Replace }},
	{"audit", "", OnServe, "", "", "`file` to which decisions are appended, or - for standard output; audit.jsonl in the data folder if empty, and standard output without one", func(c *Config) any { return &c.Audit }},
	{"disk-reserve", "", OnServe, "268435456", "0..1099511627776", "bytes of room on the disk of the data folder below which new work is refused, so that the log does not meet a full disk; 0 looks at nothing", func(c *Config) any { return &c.DiskReserve }},
	{"audit-chain", "", OnServe, auto, auto + "|" + on + "|" + off, "whether the audit log is chained, so that what is changed in it is found by govnode audit verify; auto does with --auth tokens", func(c *Config) any { return &c.AuditChain }},
	{"audit-mode", "", OnServe, auditBestEffort, auditBestEffort + "|" + AuditRequired, "what becomes of a decision that cannot be written to the audit log: best-effort goes on, required refuses", func(c *Config) any { return &c.AuditMode }},
	{"audit-timeout", "", OnServe, "2s", "10ms..1m", "how long an answer waits for its lines in the audit log", func(c *Config) any { return &c.AuditTimeout }},
	{"log-level", "", OnServe | OnDev, "info", "debug|info|warn|error", "least level that is logged", func(c *Config) any { return &c.LogLevel }},
	{"log-format", "", OnServe | OnDev, "text", "text|json", "how it is logged", func(c *Config) any { return &c.LogFormat }},

	{"redis", "", OnServe | OnDev, "", "", "`URL` of the Redis of --backend redis, redis://user:password@host:port/db or rediss:// for TLS; whoever sees the flags of processes sees a password in it, so better set it in the environment or the file; beside --redis-cluster or --redis-sentinel it brings user, password and db, and its host is not looked at", func(c *Config) any { return &c.Redis }},
	{"redis-cluster", "", OnServe | OnDev, "", "", "`addresses` of some members of a Redis Cluster, separated by commas", func(c *Config) any { return &c.RedisCluster }},
	{"redis-sentinel", "", OnServe | OnDev, "", "", "`addresses` of Sentinels, separated by commas", func(c *Config) any { return &c.RedisSentinel }},
	{"redis-sentinel-master", "", OnServe | OnDev, "", "", "`name` of the primary that the Sentinels watch", func(c *Config) any { return &c.RedisSentinelMaster }},
	{"redis-sentinel-user", "", OnServe | OnDev, "", "", "`name` of the user at the Sentinels, if they have users", func(c *Config) any { return &c.RedisSentinelUser }},
	{"redis-sentinel-password", "", OnServe | OnDev, "", "", "`password` at the Sentinels, better set in the environment or the file", func(c *Config) any { return &c.RedisSentinelPassword }},
	{"redis-tls", "", OnServe | OnDev, "false", "", "use TLS for all connections to Redis and Sentinels, as with rediss:// and the three below", func(c *Config) any { return &c.RedisTLS }},
	{"redis-tls-ca", "", OnServe | OnDev, "", "", "`file` of the certificates in PEM that may vouch for Redis; those of this system if empty", func(c *Config) any { return &c.RedisTLSCA }},
	{"redis-tls-cert", "", OnServe | OnDev, "", "", "`file` of the certificate in PEM that this node shows to Redis, which asks for one unless its tls-auth-clients is no", func(c *Config) any { return &c.RedisTLSCert }},
	{"redis-tls-key", "", OnServe | OnDev, "", "", "`file` of the key in PEM of that certificate", func(c *Config) any { return &c.RedisTLSKey }},
	{"redis-prefix", "", OnServe | OnDev, "gov", "", "`text` that every key in Redis begins with", func(c *Config) any { return &c.RedisPrefix }},
	{"redis-quarantine", "", OnServe | OnDev, "1h1m0s", "0s..24h", "how long nothing is admitted once Redis may have lost what it had acknowledged; with 0 limits may be exceeded then", func(c *Config) any { return &c.RedisQuarantine }},
	{"redis-timeout", "", OnServe | OnDev, "5s", "100ms..1m", "longest time for one exchange with Redis", func(c *Config) any { return &c.RedisTimeout }},
	{"redis-accept-risk", "", OnServe | OnDev, "", "", "`names` of what a Redis is refused for and is accepted all the same: no-aof|eviction", func(c *Config) any { return &c.RedisAcceptRisk }},

	{"raft-heartbeat", "", OnServe, "500ms", "20ms..1m", "silence of the leader after which a node stands for election", func(c *Config) any { return &c.Heartbeat }},
	{"raft-election", "", OnServe, "500ms", "20ms..1m", "longest time for one round of an election", func(c *Config) any { return &c.Election }},
	{"raft-leader-lease", "", OnServe, "400ms", "10ms..1m", "time without a majority after which a leader steps down; at most --raft-heartbeat", func(c *Config) any { return &c.LeaderLease }},
	{"raft-disk-timeout", "", OnServe, "10s", "1s..10m", "time that one access to the log may take before the node gives its disk up and ends", func(c *Config) any { return &c.DiskTimeout }},
	{"log-store", "", OnServe | OnDev, "boltdb", "boltdb|wal", "what keeps the Raft log; wal flushes once for each append where boltdb does twice, and a data folder keeps the one that it was made with", func(c *Config) any { return &c.LogStore }},
	{"raft-queue", "", OnServe, "4096", "1..1048576", "commands that may wait for a place in the log; more are refused at once", func(c *Config) any { return &c.Queue }},
	{"raft-snapshot-bytes", "", OnServe, "67108864", "65536..1099511627776", "bytes of log after which a snapshot is taken", func(c *Config) any { return &c.SnapshotBytes }},
	{"raft-trailing-logs", "", OnServe, "1024", "1..16777216", "entries that are kept behind a snapshot, for followers that are a little late", func(c *Config) any { return &c.TrailingLogs }},

	{"nodes", "", OnDev, "3", "1..9", "how many nodes to start; the memory backend has one", func(c *Config) any { return &c.Nodes }},
	{"restart", "", OnDev, "true", "", "start a node that died again after 2 s", func(c *Config) any { return &c.Restart }},
	{"verbose", "v", OnDev, "false", "", "print what the nodes log, too", func(c *Config) any { return &c.Verbose }},

	{"addr", "", OnClient, "127.0.0.1:7070", "", "`addresses` of nodes, separated by commas, asked in this order; HOST:PORT is https where --tls-ca or --tls-cert is given, else http, and https://HOST:PORT says it", func(c *Config) any { return &c.Addr }},
	{"token", "", OnClient, "", "", "`text` of the token to show; whoever sees the flags of processes sees it, so better set it in the environment, or use govnode login", func(c *Config) any { return &c.Token }},
	{"token-file", "", OnClient, "", "", "`file` with the token to show", func(c *Config) any { return &c.TokenFile }},
	{"namespace", "", OnClient, "default", "", "`name` of the namespace to work in", func(c *Config) any { return &c.Namespace }},
	{"output", "o", OnClient, "text", "text|json", "how to print the answer", func(c *Config) any { return &c.Output }},
	{"timeout", "", OnClient, "10s", "1ms..1h", "how long to wait for an answer", func(c *Config) any { return &c.Timeout }},
}

// Who is let in.
const (
	AuthNone   = "none"
	AuthTokens = "tokens"
)

// Whom the members let join.
const (
	AdmitCertificate = "certificate"
	AdmitToken       = "token"
)

// What becomes of decisions that cannot be written.
const (
	auditBestEffort = "best-effort"

	auto, on, off = "auto", "on", "off" // of what is a choice of the node
	AuditRequired = "required"
)

// ChainsAudit reports whether the audit log is chained.
func (c *Config) ChainsAudit() bool {
	return c.AuditChain == on || c.AuditChain == auto && c.Auth == AuthTokens
}
