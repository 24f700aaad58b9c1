package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// An authority makes certificates for 127.0.0.1, in files in PEM.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority returns one that has made certificates for servers, "redis", and
// for their clients, "node".
func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", true)
	a.make("redis", false)
	a.make("node", false)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name+".pem") }

func (a *authority) make(name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: isCA,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	for file, block := range map[string]*pem.Block{name: {Type: "CERTIFICATE", Bytes: der}, name + "-key": {Type: "PRIVATE KEY", Bytes: secret}} {
		require.NoError(a.t, os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600))
	}
	return cert, key
}

// client is what a node has: the certificates that it trusts, and its own.
func (a *authority) client() *tls.Config {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.file("node"), a.file("node-key"))
	require.NoError(a.t, err)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// settings make a server listen with TLS alone, ask for certificates, and use
// TLS to others.
func (a *authority) settings(port int) [][]string {
	return [][]string{
		{"port", "0"}, {"tls-port", strconv.Itoa(port)}, {"tls-replication", "yes"},
		{"tls-cert-file", a.file("redis")}, {"tls-key-file", a.file("redis-key")}, {"tls-ca-cert-file", a.file("ca")},
	}
}

// start starts a Redis with TLS and four users: the documented one of a node,
// one that replicates, one for the Sentinels, and one for the test. The default
// user is off.
func (a *authority) start(cluster bool, more ...string) *server {
	a.t.Helper()
	s := &server{t: a.t, dir: redisFolder(a.t)}
	node := []string{"user", "govnode"}
	for _, line := range documentedUser(a.t, cluster) {
		for _, word := range line[3:] {
			node = append(node, word.(string))
		}
	}
	s.startAnywhere(func() {
		s.args = nil
		for _, setting := range append(a.settings(s.port), node,
			[]string{"user", "default", "off"},
			[]string{"user", "test", "on", ">all", "~*", "&*", "+@all"},
			[]string{"user", "peer", "on", ">copy", "+psync", "+replconf", "+ping"},
			strings.Fields("user sentinel on >watch allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill"),
			[]string{"masteruser", "peer"}, []string{"masterauth", "copy"}, []string{"appendfsync", "always"}) {
			s.args = append(append(s.args, "--"+setting[0]), setting[1:]...)
		}
		s.args = append(s.args, more...)
		s.client = redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1, TLSConfig: a.client(), Username: "test", Password: "all"})
	})
	return s
}

// allowed holds a server to it, once nothing uses it any more, that the users of
// nodes were forbidden nothing.
func allowed(t *testing.T, c *redis.Client) {
	t.Cleanup(func() {
		log, err := c.Do(context.Background(), "ACL", "LOG").Slice()
		if !errors.As(err, new(redis.Error)) && err != nil {
			return // it was killed
		}
		require.NoError(t, err)
		for _, entry := range log {
			require.NotContains(t, fmt.Sprint(entry), "username govnode", "the document forbids what the store needs")
		}
	})
}

// documentedWatcher returns the words of the user for Sentinels that the document
// about Redis shows.
func documentedWatcher(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/redis.md")
	require.NoError(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "ACL SETUSER govnode-watch "); ok {
			return strings.Fields("user govnode-watch " + strings.Replace(rest, ">PASSWORD", ">look", 1))
		}
	}
	require.Fail(t, "no line begins with ACL SETUSER govnode-watch")
	return nil
}

// sentinel starts one with TLS and users that watches a primary under the name
// "main", and returns a client of it that may do everything.
func (a *authority) sentinel(primary *server) *redis.Client {
	a.t.Helper()
	port, dir := freePort(a.t), redisFolder(a.t)
	var text strings.Builder
	for _, setting := range append(a.settings(port), [][]string{
		{"bind", "127.0.0.1"}, {"dir", dir}, documentedWatcher(a.t),
		{"user", "default", "off"}, {"user", "test", "on", ">all", "~*", "&*", "+@all"},
		{"sentinel", "monitor", "main", "127.0.0.1", strconv.Itoa(primary.port), "2"},
		{"sentinel", "auth-user", "main", "sentinel"}, {"sentinel", "auth-pass", "main", "watch"},
		{"sentinel", "sentinel-user", "test"}, {"sentinel", "sentinel-pass", "all"},
		{"sentinel", "down-after-milliseconds", "main", "700"}, {"sentinel", "failover-timeout", "main", "3000"},
	}...) {
		fmt.Fprintln(&text, strings.Join(setting, " "))
	}
	file := filepath.Join(dir, "sentinel.conf")
	require.NoError(a.t, os.WriteFile(file, []byte(text.String()), 0o600))
	cmd := exec.Command(needRedis(a.t), file, "--sentinel")
	require.NoError(a.t, cmd.Start())
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + strconv.Itoa(port), TLSConfig: a.client(), Username: "test", Password: "all"})
	a.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = c.Close()
	})
	require.Eventually(a.t, func() bool { return c.Ping(context.Background()).Err() == nil }, 30*time.Second, 10*time.Millisecond)
	return c
}

// sentinels starts three and returns their addresses when all know each other and
// the one replica.
func (a *authority) sentinels(primary *server) (addresses []string) {
	a.t.Helper()
	all := []*redis.Client{a.sentinel(primary), a.sentinel(primary), a.sentinel(primary)}
	for _, c := range all {
		allowed(a.t, c)
		addresses = append(addresses, c.Options().Addr)
		require.Eventually(a.t, func() bool {
			m, err := c.Do(context.Background(), "SENTINEL", "MASTER", "main").Result()
			text := fmt.Sprint(m)
			return err == nil && strings.Contains(text, "num-other-sentinels:2") && strings.Contains(text, "num-slaves:1")
		}, 30*time.Second, 20*time.Millisecond, "the Sentinels do not find together")
	}
	return addresses
}

// Everything speaks TLS alone, asks for certificates and knows users, and nodes
// are the documented ones: they serve, and follow the Sentinels to another
// primary.
func TestRedisSentinelWithTLSAndUsers(t *testing.T) {
	if !full() {
		t.Skip("two servers, three Sentinels and a failover: run it with make redis")
	}
	t.Parallel()
	a := newAuthority(t)
	primary, replica := a.start(false), a.start(false)
	allowed(t, replica.client)
	replica.do("REPLICAOF", "127.0.0.1", primary.port)
	cfg := Config{
		URL: "redis://govnode:secret@any/0", TLS: a.client(), Timeout: time.Second, Quarantine: quarantineOfTests, Logger: testLog(),
		Sentinel: Sentinel{Master: "main", Addresses: a.sentinels(primary), Username: "govnode-watch", Password: "look"},
	}
	refusesStrangers(t, cfg)
	followsFailover(t, cfg, func() *server { return primary })
}

// The same in a Redis Cluster.
func TestRedisClusterWithTLSAndUsers(t *testing.T) {
	atLength(t)
	t.Parallel()
	a := newAuthority(t)
	var all []*server
	cfg := Config{URL: "redis://govnode:secret@any/0", TLS: a.client(), Quarantine: quarantineOfTests, Logger: testLog()}
	for range 6 {
		s := a.start(true, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0", "--tls-cluster", "yes")
		allowed(t, s.client)
		all, cfg.Cluster = append(all, s), append(cfg.Cluster, s.addr())
	}
	joinCluster(t, all)
	refusesStrangers(t, cfg)
	followsFailover(t, cfg, func() *server { return serves(t, all, "{gov:"+testNS+"}") })
}

const quarantineOfTests = 3 * time.Second

// followsFailover holds two nodes to what they promise when the primary of the
// namespace ends and its replica is promoted: nobody has the one slot while the
// holder from before may believe in it, then the nodes serve by themselves, and
// they hear from each other again.
func followsFailover(t *testing.T, cfg Config, primary func() *server) {
	f := &fleet{t: t}
	for _, name := range []string{"one", "two"} {
		cfg.Node = name
		r, err := Open(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { _ = r.Close() })
		f.nodes = append(f.nodes, r)
	}
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	f.must(1, &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: "w"}}) // so that it knows the namespace
	hears(t, f, "before")
	ends := primary()
	ends.do("SET", "{gov:"+testNS+"}:probe", "x")
	require.EqualValues(t, 1, ends.do("WAIT", 1, 20_000), "the replica does not follow")
	const ttl = quarantineOfTests - time.Second
	held := f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "held", Pool: "one", Weight: 1, TTL: ttl})
	require.Equal(t, session.Admitted, held.Code)
	lapses := time.Now().Add(ttl)
	ends.kill()
	var both sync.WaitGroup
	for _, r := range f.nodes {
		both.Go(func() { notReady(t, r, "quarantine") })
	}
	both.Wait()
	next := f.must(1, &session.Acquire{NS: testNS, Client: "w", Slot: "next", Pool: "one", Weight: 1, TTL: time.Minute})
	require.Equal(t, session.Admitted, next.Code)
	require.True(t, time.Now().After(lapses), "the slot was given out twice")
	require.Greater(t, next.Grants[0].Token, held.Grants[0].Token)
	third := f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "third", Pool: "one", Weight: 1, TTL: time.Minute})
	require.Equal(t, session.ConcurrencyLimit, third.Code)
	f.must(1, &session.Release{NS: testNS, Client: "w", Slot: "next", Pool: "one", Token: next.Grants[0].Token})
	for _, r := range f.nodes {
		ready(t, r)
	}
	hears(t, f, "after")
}

// hears waits until the second node is told by the first, through Redis, that
// somebody's turn has come.
func hears(t *testing.T, f *fleet, name string) {
	t.Helper()
	require.Equal(t, session.Done, f.must(0, &session.PutPool{NS: testNS, Pool: "told", Slots: 1, Queue: 10, By: session.Maker{Client: "t", Request: "told" + name}}).Code)
	n := 0
	require.Eventually(t, func() bool {
		n++
		before := f.node(1).hinted.Load()
		one, two := fmt.Sprint(name, "-one-", n), fmt.Sprint(name, "-two-", n)
		first := f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: one, Pool: "told", Weight: 1, TTL: time.Minute})
		waits := &session.Acquire{NS: testNS, Client: "w", Slot: two, Pool: "told", Weight: 1, TTL: time.Minute, Wait: time.Minute}
		if first.Code != session.Admitted || f.must(0, waits).Code != session.Queued {
			return false
		}
		f.must(0, &session.Release{NS: testNS, Client: "w", Slot: one, Pool: "told", Token: first.Grants[0].Token})
		told := false
		for until := time.Now().Add(200 * time.Millisecond); !told && time.Now().Before(until); rest(t.Context(), time.Millisecond) {
			told = f.node(1).hinted.Load() > before
		}
		if r := f.must(0, waits); r.Code == session.Admitted {
			f.must(0, &session.Release{NS: testNS, Client: "w", Slot: two, Pool: "told", Token: r.Grants[0].Token})
		}
		return told
	}, 20*time.Second, 10*time.Millisecond, "the second node hears nothing")
}

// refusesStrangers tries what must not connect, and must be told what to do.
func refusesStrangers(t *testing.T, cfg Config) {
	t.Helper()
	for says, change := range map[string]func(*Config){
		"give user and password in the URL": func(c *Config) { c.URL = "redis://govnode:wrong@any/0" },
		"give one in TLS.Certificates": func(c *Config) {
			c.TLS = c.TLS.Clone()
			c.TLS.Certificates = nil
		},
		"name the certificates that vouch for it in TLS.RootCAs": func(c *Config) {
			c.TLS = c.TLS.Clone()
			c.TLS.RootCAs = x509.NewCertPool()
		},
	} {
		c := cfg
		c.Timeout = time.Second
		change(&c)
		_, err := Open(t.Context(), c)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "secret")
	}
}

// Whoever mixes up TLS and none, or the password of the Sentinels and that of
// Redis, is told so.
func TestRedisAdviceOnWhatIsMixedUp(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := a.start(false)
	_, err := Open(t.Context(), Config{URL: "redis://govnode:secret@" + s.addr(), Timeout: time.Second, Logger: testLog()})
	require.ErrorContains(t, err, "both use TLS or neither does")

	watch := Sentinel{Master: "main", Addresses: []string{a.sentinel(s).Options().Addr}, Username: "govnode-watch", Password: "wrong"}
	_, err = Open(t.Context(), Config{URL: "redis://govnode:secret@any", TLS: a.client(), Sentinel: watch, Timeout: time.Second, Logger: testLog()})
	require.ErrorContains(t, err, "--redis-sentinel-password")
}
