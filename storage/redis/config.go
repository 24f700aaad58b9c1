package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
)

// Config says which Redis puts commands in order. One of URL, Sentinel and
// Cluster is set.
type Config struct {
	// URL names one primary: redis://user:password@host:port/db, or rediss://
	// for TLS. With Sentinel or Cluster it may be left out, or bring user,
	// password and db, and its host is not looked at.
	URL string
	// Sentinel finds the primary.
	Sentinel Sentinel
	// Cluster has addresses of some members of a Redis Cluster. All that
	// belongs to a namespace lies in one of its slots.
	Cluster []string
	// TLS is used for all connections if it is set, or if the URL asks for it.
	TLS *tls.Config

	// Prefix begins every key, in the braces of its hash tag: "gov". Two
	// deployments may share a Redis under different prefixes.
	Prefix string
	// Node is this node's name, for the log.
	Node   string
	Logger *slog.Logger
	// Registry is given the store's metrics (gov_redis_*), if it is not nil.
	Registry *prometheus.Registry

	// Quarantine is how long commands are refused once acknowledged writes may
	// have been lost: a failover, an emptied or an older data set. It has to
	// be as long as the longest lease that clients ask for, plus what their
	// clocks may be slow by; then nobody holds a lease any more that this
	// Redis does not know. 0 means 61 minutes, which is above the longest
	// lease there is. Below 0 there is no quarantine, and the limits may be
	// exceeded after a failover.
	Quarantine time.Duration
	// AcceptRisk names what the starting checks would refuse: see RiskAOF and
	// the others.
	AcceptRisk []string

	// RoundSize is how many commands share a round; 0 means 256.
	RoundSize int
	// CacheBytes bounds the values that the node keeps; 0 means 64 MiB.
	CacheBytes int
	// Timeout is of one exchange with Redis, and of commands whose callers
	// give no deadline; 0 means 5 s.
	Timeout time.Duration

	// monotonic replaces the clock of this process in tests, logTime the log time
	// that it leads to, and recoverFor the constant of that name.
	monotonic  func() time.Duration
	logTime    func() time.Duration
	recoverFor time.Duration
}

// Sentinel names the primary that Sentinels watch.
type Sentinel struct {
	Master             string
	Addresses          []string
	Username, Password string // of the Sentinels themselves
}

// What AcceptRisk may name.
const (
	// RiskAOF accepts a Redis that loses everything when it restarts, or that
	// does not tell whether it would.
	RiskAOF = "no-aof"
	// RiskEviction accepts a Redis that may drop keys when memory is short.
	// What is dropped is noticed and answered by quarantine.
	RiskEviction = "eviction"
)

const (
	defaultQuarantine = session.MaxTTL + time.Minute
	defaultRound      = 256
	defaultCache      = 64 << 20
	defaultTimeout    = 5 * time.Second
	dialTimeout       = 2 * time.Second
)

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "gov"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Quarantine == 0 {
		c.Quarantine = defaultQuarantine
	}
	if c.RoundSize == 0 {
		c.RoundSize = defaultRound
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = defaultCache
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.recoverFor == 0 {
		c.recoverFor = recoverFor
	}
	if c.monotonic == nil {
		start := time.Now()
		c.monotonic = func() time.Duration { return time.Since(start) }
	}
	return c
}

func (c *Config) validate() error {
	sentinel := c.Sentinel.Master != "" || len(c.Sentinel.Addresses) > 0
	switch {
	case sentinel && len(c.Cluster) > 0:
		return errors.New("redis: Sentinel and Cluster are both set; keep one of them")
	case sentinel && (c.Sentinel.Master == "" || len(c.Sentinel.Addresses) == 0):
		return errors.New("redis: Sentinel needs Master and Addresses; set both")
	case !sentinel && len(c.Cluster) == 0 && c.URL == "":
		return errors.New("redis: URL is empty; set it to redis://host:port, or set Sentinel or Cluster")
	}
	if len(c.Prefix) > 64 || strings.Trim(c.Prefix, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
		return fmt.Errorf("redis: Prefix %q: use at most 64 letters, digits, dots, dashes and underscores", c.Prefix)
	}
	for _, risk := range c.AcceptRisk {
		if risk != RiskAOF && risk != RiskEviction {
			return fmt.Errorf("redis: AcceptRisk has %q; it may have %q and %q", risk, RiskAOF, RiskEviction)
		}
	}
	if c.RoundSize < 0 || c.RoundSize > 4096 {
		return fmt.Errorf("redis: RoundSize is %d; use 1 to 4096", c.RoundSize)
	}
	if c.Timeout < 0 || c.CacheBytes < 0 {
		return errors.New("redis: Timeout and CacheBytes cannot be negative")
	}
	return nil
}

func (c *Config) accepts(risk string) bool {
	for _, r := range c.AcceptRisk {
		if r == risk {
			return true
		}
	}
	return false
}

// client returns what talks to Redis. It never sends a command a second time by
// itself: whether that is safe is for the store to say. In a Redis Cluster a
// command goes where a redirection points, before it was carried out.
func (c *Config) client() (redis.UniversalClient, error) {
	o := &redis.UniversalOptions{
		TLSConfig: c.TLS, ClientName: "govnode", DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: dialTimeout, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout, PoolTimeout: c.Timeout,
		ContextTimeoutEnabled: true,
	}
	if c.URL != "" {
		u, err := redis.ParseURL(c.URL)
		if err != nil {
			// The text of the library may repeat the password.
			return nil, errors.New("redis: URL cannot be read; write redis://user:password@host:port/db, or rediss:// for TLS")
		}
		o.Addrs, o.DB, o.Username, o.Password = []string{u.Addr}, u.DB, u.Username, u.Password
		if o.TLSConfig == nil {
			o.TLSConfig = u.TLSConfig
		}
	}
	if o.TLSConfig != nil && (len(c.Cluster) > 0 || c.Sentinel.Master != "") {
		// Not the host of the URL, which nothing connects to: each server
		// shows a certificate for the address under which it is reached.
		o.TLSConfig = o.TLSConfig.Clone()
		o.TLSConfig.ServerName = ""
	}
	switch {
	case len(c.Cluster) > 0:
		o.Addrs, o.IsClusterMode = c.Cluster, true
		if o.DB != 0 {
			return nil, errors.New("redis: URL names a database; a Redis Cluster has database 0 alone")
		}
	case c.Sentinel.Master != "":
		o.Addrs, o.MasterName = c.Sentinel.Addresses, c.Sentinel.Master
		o.SentinelUsername, o.SentinelPassword = c.Sentinel.Username, c.Sentinel.Password
	}
	return redis.NewUniversalClient(o), nil
}

// notSent reports whether the error says that a command did not reach Redis or
// that Redis refused it, so that it had no effect. Scripts check everything
// before they write, and what Redis refuses of their writes it refuses from the
// first on.
func notSent(err error) bool {
	var reply redis.Error
	if errors.As(err, &reply) || errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) {
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// errorKind reports whether Redis answered an error of a kind, as "WRONGTYPE".
func errorKind(err error, kind string) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.Contains(reply.Error(), kind)
}

// trip bounds one exchange with Redis.
func (r *Store) trip() (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.ctx, r.cfg.Timeout)
}
