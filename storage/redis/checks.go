package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage/redis/internal/wire"
)

// What a Redis has to be, and how it is found out.

// What a Redis has to be, since 6.2 the oldest that scripts and commands here
// rely on.
const minMajor, minMinor = 6, 2

// settings are what the promise depends on; empty where Redis does not tell.
type settings struct {
	version, role, mode   string
	policy                string // maxmemory-policy
	aof, fsync            string // appendonly, appendfsync
	replicas, minReplicas string
}

// check looks at the settings of every primary. What is wrong is an error that
// names the command which repairs it, and nothing is served until it is
// repaired. What is only weaker is logged at the start.
func (r *Store) check(ctx context.Context, start bool) error {
	err := r.checkAll(ctx, start)
	if err == nil {
		if r.refused.Swap(nil) != nil {
			r.log.Info("the settings of Redis are in order again: commands are served")
		}
		return nil
	}
	if notServedNow(err) && !start {
		return err // each command finds that out by itself
	}
	err = fmt.Errorf("redis: %w%s", err, advice(err))
	if !start && r.refused.Swap(&err) == nil {
		r.log.Error("Redis cannot keep the promise any more: commands are refused", "error", err)
	}
	return err
}

// advice says what to do about an error with which nothing can begin. The texts
// of what is wrong with the settings say so themselves.
func advice(err error) string {
	var op *net.OpError
	dialed := errors.As(err, &op) && op.Op == "dial" // it has not come to TLS
	switch {
	case errors.Is(err, errSettings):
		return ""
	case errorKind(err, "NOPERM"):
		return "; allow it to this user: docs/redis.md lists all that a node needs"
	case (errorKind(err, "NOAUTH") || errorKind(err, "WRONGPASS")) && strings.Contains(err.Error(), "sentinels"):
		return "; give user and password of the Sentinels in Sentinel.Username and Sentinel.Password (--redis-sentinel-user and --redis-sentinel-password)"
	case errorKind(err, "NOAUTH"), errorKind(err, "WRONGPASS"), errorKind(err, "ERR AUTH"):
		return "; give user and password in the URL, redis://user:password@host:port/db"
	case errorKind(err, "cluster support disabled"):
		return "; it is no Redis Cluster: name it in URL (--redis)"
	case errorKind(err, "unknown command 'sentinel'"):
		return "; it is no Sentinel: name it in URL (--redis)"
	case errors.Is(err, redis.Nil):
		return "; see that the Sentinels watch a primary of that name"
	case errorKind(err, "LOADING"):
		return "; try again when it has read its data"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "; name the certificates that vouch for it in TLS.RootCAs (--redis-tls-ca)"
	case strings.Contains(err.Error(), "tls: certificate required"):
		return "; it asks for a certificate of this node: give one in TLS.Certificates (--redis-tls-cert and --redis-tls-key)"
	case !dialed && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)): // it may come before what Redis says of it
		return "; see that both use TLS or neither does, and if it asks for a certificate of this node: give one in TLS.Certificates (--redis-tls-cert and --redis-tls-key)"
	case dialed, errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF):
		return "; see that Redis runs there, that this node reaches it, and that both use TLS or neither does"
	}
	return ""
}

// refusal returns why nothing is served, if the settings do not allow it.
func (r *Store) refusal() error {
	if p := r.refused.Load(); p != nil {
		return *p
	}
	return nil
}

// errSettings is wrapped by what is wrong with the settings.
var errSettings = errors.New("it cannot keep what govnode promises")

func notServedNow(err error) bool { return !errors.Is(err, errSettings) }

func (r *Store) checkAll(ctx context.Context, start bool) error {
	c, ok := r.client.(*redis.ClusterClient)
	if !ok {
		return r.checkOne(ctx, r.client, start)
	}
	info, err := c.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if m := parseInfo(info); m["cluster_state"] != "ok" || m["cluster_slots_assigned"] != "16384" {
		return fmt.Errorf("%w: the cluster is %q and %s of 16384 slots are served; run redis-cli --cluster fix HOST:PORT",
			errSettings, m["cluster_state"], m["cluster_slots_assigned"])
	}
	var mu sync.Mutex
	var wrong []error
	err = c.ForEachMaster(ctx, func(ctx context.Context, one *redis.Client) error {
		if err := r.checkOne(ctx, one, start); err != nil {
			mu.Lock()
			defer mu.Unlock()
			wrong = append(wrong, fmt.Errorf("%s: %w", one.Options().Addr, err))
		}
		return nil
	})
	if err := errors.Join(append(wrong, err)...); err != nil {
		return err
	}
	return r.allowed(ctx, c)
}

// asker is what both kinds of client can do.
type asker interface {
	Info(ctx context.Context, section ...string) *redis.StringCmd
	ConfigGet(ctx context.Context, parameter string) *redis.MapStringStringCmd
	Publish(ctx context.Context, channel string, message any) *redis.IntCmd
	Pipeline() redis.Pipeliner
}

func (r *Store) checkOne(ctx context.Context, c asker, start bool) error {
	s, err := readSettings(ctx, c)
	if err != nil {
		return err
	}
	if err := s.wrong(&r.cfg); err != nil {
		return err
	}
	if err := r.allowed(ctx, c); err != nil {
		return err
	}
	if start {
		for _, text := range s.weaker() {
			r.log.Warn("Redis: " + text)
		}
	}
	return nil
}

// allowed tries what a swap does once it has begun to write: what is forbidden of
// that is found here, and not half-way.
func (r *Store) allowed(ctx context.Context, c asker) error {
	if err := c.Publish(ctx, r.keys.Hints(), r.name+" ").Err(); errorKind(err, "NOPERM") {
		return fmt.Errorf("%w: this user may not publish to the channel %s, so that other nodes do not hear whose turn has come (%w); allow it with ACL SETUSER, see docs/redis.md",
			errSettings, r.keys.Hints(), err)
	}
	if _, member := c.(*redis.Client); member && r.clustered() {
		return nil // which key it serves is for the others to say
	}
	key := "{" + r.cfg.Prefix + "}:probe:" + r.name
	p := c.Pipeline()
	p.MSet(ctx, key, "")
	p.Set(ctx, key, "", 0)
	p.Append(ctx, key, "x")
	p.Rename(ctx, key, key)
	p.Del(ctx, key)
	p.ZAdd(ctx, key, redis.Z{Member: "x"})
	p.ZRem(ctx, key, "x")
	p.RPush(ctx, key, "x", "y")
	p.LRem(ctx, key, 0, "x")
	p.LPop(ctx, key)
	p.Scan(ctx, 0, key, 1)
	cmds, _ := p.Exec(ctx)
	for _, cmd := range cmds {
		if err := cmd.Err(); errorKind(err, "NOPERM") {
			return fmt.Errorf("%w: this user may not run what a node needs (%w); allow it with ACL SETUSER, see docs/redis.md", errSettings, err)
		}
	}
	return nil
}

// readSettings asks CONFIG, and INFO where a managed Redis forbids that.
func readSettings(ctx context.Context, c asker) (s settings, err error) {
	text, err := c.Info(ctx).Result()
	if err != nil {
		return s, err
	}
	info := parseInfo(text)
	s = settings{version: info["redis_version"], role: info["role"], mode: info["redis_mode"], policy: info["maxmemory_policy"], replicas: info["connected_slaves"]}
	switch info["aof_enabled"] {
	case "0":
		s.aof = "no"
	case "1":
		s.aof = "yes"
	}
	for name, v := range map[string]*string{"maxmemory-policy": &s.policy, "appendonly": &s.aof, "appendfsync": &s.fsync, "min-replicas-to-write": &s.minReplicas} {
		m, err := c.ConfigGet(ctx, name).Result()
		var reply redis.Error
		if errors.As(err, &reply) {
			return s, nil // forbidden: what INFO says has to do
		}
		if err != nil {
			return s, err
		}
		if x := m[name]; x != "" {
			*v = x
		}
	}
	return s, nil
}

// wrong returns what makes the promise impossible.
func (s settings) wrong(cfg *Config) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{errSettings}, args...)...)
	}
	switch {
	case !s.recentEnough():
		return refuse("it is version %q; upgrade it to %d.%d or newer", s.version, minMajor, minMinor)
	case s.mode == "sentinel":
		return refuse("it is a Sentinel; name it in Sentinel.Addresses (--redis-sentinel), with the name of the primary that it watches")
	case s.mode == "cluster" && len(cfg.Cluster) == 0:
		return refuse("it is a member of a Redis Cluster; name it in Cluster (--redis-cluster)")
	case s.role != "master":
		return refuse("it is a replica; name the primary, or make it one with redis-cli REPLICAOF NO ONE")
	case s.policy != "noeviction" && !cfg.accepts(RiskEviction):
		return refuse("its maxmemory-policy is %q, so it may drop counts when memory is short; run redis-cli CONFIG SET maxmemory-policy noeviction (or accept that: --redis-accept-risk %s)", s.policy, RiskEviction)
	case s.aof == "" && !cfg.accepts(RiskAOF):
		return refuse("it does not tell whether it keeps an append-only file; allow INFO or CONFIG GET to this user, or accept that it may not: --redis-accept-risk %s", RiskAOF)
	case s.aof != "yes" && !cfg.accepts(RiskAOF):
		return refuse("appendonly is %q, so a restart loses all counts; run redis-cli CONFIG SET appendonly yes and redis-cli CONFIG REWRITE (or accept that: --redis-accept-risk %s)", s.aof, RiskAOF)
	}
	return nil
}

func (s settings) recentEnough() bool {
	major, rest, _ := strings.Cut(s.version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	return err == nil && err2 == nil && (a > minMajor || a == minMajor && b >= minMinor)
}

// weaker returns what of the promise these settings weaken.
func (s settings) weaker() (texts []string) {
	switch s.fsync {
	case "always":
	case "":
		texts = append(texts, "it does not tell appendfsync; unless that is always, a power cut may lose the last second of counts and leases")
	default:
		texts = append(texts, fmt.Sprintf("appendfsync is %s, so a power cut may lose the last second of counts and leases, or more; for none run redis-cli CONFIG SET appendfsync always", s.fsync))
	}
	if s.aof != "yes" {
		texts = append(texts, "appendonly is not known to be on, so a restart may lose everything; that is noticed and answered by quarantine")
	}
	if n, err := strconv.Atoi(s.replicas); err == nil && n > 0 && (s.minReplicas == "0" || s.minReplicas == "") {
		texts = append(texts, "it has replicas and min-replicas-to-write is 0, so a primary that was cut off goes on; run redis-cli CONFIG SET min-replicas-to-write 1")
	}
	return texts
}

// reportTypes logs which keys of some records are not what govnode wrote.
func (r *Store) reportTypes(p *place, wants []wire.Want) {
	ctx, cancel := r.trip()
	defer cancel()
	kinds := map[string]string{p.d.key("epoch"): "string", p.d.key("clock"): "string",
		p.d.key("due"): "zset", p.d.key("marks"): "zset", p.Counts(): "zset"}
	for _, w := range wants {
		kinds[p.Record(w.Key)], kinds[p.Index(w.Key.Kind())] = "string", "zset"
		for part := 0; part < 16 && len(wants) <= 8; part++ {
			kinds[p.Part(w.Key, part)] = "string"
		}
	}
	for key, kind := range kinds {
		if got, e := r.client.Type(ctx, key).Result(); e == nil && got != kind && got != "none" {
			r.log.Error("a key in Redis has the wrong type: commands that need it are refused; remove it", "key", key, "type", got, "want", kind)
		}
	}
}
