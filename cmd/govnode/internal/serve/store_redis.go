package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/storage/redis"
)

// openRedis connects to a Redis, which is checked before it is used.
func openRedis(ctx context.Context, c *config.Config, log *slog.Logger, registry *prometheus.Registry) (*redis.Store, error) {
	quarantine := c.RedisQuarantine
	if quarantine == 0 {
		quarantine = -1 // package redis has 0 for its own default
	}
	secure, err := redisTLS(c)
	if err != nil {
		return nil, err
	}
	return redis.Open(ctx, redis.Config{
		URL: c.Redis, Cluster: c.RedisCluster, TLS: secure,
		Sentinel: redis.Sentinel{
			Master: c.RedisSentinelMaster, Addresses: c.RedisSentinel,
			Username: c.RedisSentinelUser, Password: c.RedisSentinelPassword,
		},
		Prefix: c.RedisPrefix, Node: c.Node, Logger: log.With("node", c.Node), Registry: registry,
		Quarantine: quarantine, AcceptRisk: c.RedisAcceptRisk, Timeout: c.RedisTimeout,
	})
}

// redisTLS returns how connections to Redis are secured: nil leaves that to the
// URL.
func redisTLS(c *config.Config) (*tls.Config, error) {
	if !c.RedisTLS && c.RedisTLSCA == "" && c.RedisTLSCert == "" {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.RedisTLSCA != "" {
		content, err := os.ReadFile(c.RedisTLSCA)
		if err != nil {
			return nil, fmt.Errorf("redis-tls-ca: %w; name a file of certificates in PEM", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(content) {
			return nil, fmt.Errorf("redis-tls-ca: %s has no certificate in PEM; name a file that has", c.RedisTLSCA)
		}
	}
	if c.RedisTLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.RedisTLSCert, c.RedisTLSKey)
		if err != nil {
			return nil, fmt.Errorf("redis-tls-cert, redis-tls-key: %w; name the files of a certificate and of its key, both in PEM", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
