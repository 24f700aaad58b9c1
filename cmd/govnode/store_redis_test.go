package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/dev"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	redisstore "example.com/govnode/storage/redis"
)

// An authority makes certificates for 127.0.0.1, in files in PEM.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", true)
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

// Redis speaks TLS alone and asks for a certificate, and the node is a user: it
// serves with all of that, and else says at the start what is missing.
func TestServeOnRedisWithTLS(t *testing.T) {
	t.Parallel()
	needRedis(t)
	a := newAuthority(t)
	a.make("redis", false)
	a.make("node", false)
	address, err := dev.FreePorts("127.0.0.1:0", 1)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	runRedis(t, address, "--port", "0", "--tls-port", port, "--tls-cert-file", a.file("redis"), "--tls-key-file", a.file("redis-key"),
		"--tls-ca-cert-file", a.file("ca"), "--user", "app", "on", ">secret", "~*", "&*", "+@all")

	type extra = []string
	url := func(user string) string { return "--redis=rediss://" + user + "@" + address + "/0" }
	run := func(args ...string) *process {
		return start(t, append(extra{"serve", "--backend", "redis", "--listen", "127.0.0.1:0"}, args...)...)
	}
	ca := "--redis-tls-ca=" + a.file("ca")
	own := extra{"--redis-tls-cert=" + a.file("node"), "--redis-tls-key=" + a.file("node-key")}
	node := run(append(extra{url("app:secret"), ca}, own...)...)
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	require.Equal(t, "ok\n", body(t, "http://"+api+"/readyz"))
	require.NoError(t, node.stop())

	for says, args := range map[string]extra{
		"certificate signed by unknown authority; name the certificates": append(extra{url("app:secret")}, own...),
		"asks for a certificate of this node: give one in":               {url("app:secret"), ca}, // whether its reason is read first or the connection is reset
		"WRONGPASS": append(extra{url("app:wrong"), ca}, own...),
	} {
		node := run(args...)
		require.Error(t, node.wait())
		require.Contains(t, node.printed(), says)
		require.NotContains(t, node.printed(), "secret")
	}
}

// runRedis runs a redis-server and returns when somebody listens at the address.
func runRedis(t *testing.T, address string, args ...string) {
	t.Helper()
	cmd := exec.Command(needRedis(t), append([]string{"--bind", "127.0.0.1", "--dir", t.TempDir(),
		"--appendonly", "yes", "--appendfsync", "always", "--save", ""}, args...)...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, longEnough, 10*time.Millisecond)
}

func body(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(text)
}

// What probes see of a node whose Redis is emptied: the page says why it is not
// ready and gRPC's health that it does not serve, until the quarantine is over.
func TestServeOnRedisIsNotReady(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	node := start(t, "serve", "--backend", "redis", "--redis", url, "--redis-quarantine", "2s", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	health := func() string {
		res, err := http.Post("http://"+api+"/grpc.health.v1.Health/Check", "application/json", strings.NewReader("{}"))
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "ok\n", body(t, "http://"+api+"/readyz"))
	require.Contains(t, health(), `"SERVING"`)
	by := redisClient(t, url)
	require.NoError(t, by.FlushAll(t.Context()).Err())
	var says string
	require.Eventually(t, func() bool {
		says = body(t, "http://"+api+"/readyz")
		return says != "ok\n"
	}, longEnough, 5*time.Millisecond)
	require.Regexp(t, `^not ready: .*quarantine for another \ds, which ends by itself\n$`, says)
	require.Contains(t, health(), "NOT_SERVING")
	require.Contains(t, body(t, "http://"+api+"/metrics"), "\ngov_redis_quarantine 1\n")
	require.Eventually(t, func() bool { return body(t, "http://"+api+"/readyz") == "ok\n" }, longEnough, 5*time.Millisecond)
	require.Contains(t, health(), `"SERVING"`)
	require.NoError(t, node.stop())
}

func redisClient(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	require.NoError(t, err)
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Two values that are always written together are read as they stood together,
// also where there are more than a look at the whole state takes in, and however
// far apart their names are.
func TestBatchGetOnRedisIsOneInstant(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	node := start(t, "serve", "--backend", "redis", "--redis", url, "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	writer, err := redisstore.Open(t.Context(), redisstore.Config{URL: url, Node: "writer"})
	require.NoError(t, err)
	defer func() { require.NoError(t, writer.Close()) }()
	add := func(key string) session.Command {
		return &session.Increment{NS: "default", Key: key, Amount: 1_000_000, By: session.Maker{Client: "w"}}
	}
	var many []session.Command
	for i := range 8500 {
		many = append(many, add(fmt.Sprint("b", i)))
	}
	for _, a := range writer.Apply(t.Context(), many...) {
		require.NoError(t, a.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for ctx.Err() == nil {
			for _, a := range writer.Apply(context.Background(), add("a"), add("z")) {
				if a.Err != nil {
					t.Error(a.Err)
				}
			}
		}
	}()
	counters := govnodev1connect.NewCounterServiceClient(http.DefaultClient, "http://"+api)
	var seen []string
	for range 200 {
		got, err := counters.BatchGet(ctx, &govnodev1.BatchGetRequest{Keys: []string{"a", "b7", "z", "absent"}})
		require.NoError(t, err)
		require.Equal(t, got.Values["a"], got.Values["z"])
		require.Equal(t, "1", got.Values["b7"])
		require.NotContains(t, got.Values, "absent")
		seen = append(seen, got.Values["a"])
	}
	require.NotEqual(t, seen[0], seen[len(seen)-1], "nothing was written meanwhile")
	_, err = counters.BatchGet(ctx, &govnodev1.BatchGetRequest{Keys: []string{""}})
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	cancel()
	<-wrote
	require.NoError(t, node.stop())
}

// A node that cannot begin says what to do, in one line.
func TestServeOnRedisSaysWhyNot(t *testing.T) {
	t.Parallel()
	free, err := dev.FreePorts("127.0.0.1:0", 1)
	require.NoError(t, err)
	url := startRedis(t)
	require.NoError(t, redisClient(t, url).ConfigSet(t.Context(), "appendonly", "no").Err())
	for says, to := range map[string]string{
		"see that Redis runs there":                      "redis://" + free,
		"run redis-cli CONFIG SET appendonly yes":        url,
		"give user and password in the URL":              strings.Replace(url, ":secret@", "", 1),
		"URL cannot be read; write redis://user:passwor": "http://:secret@h",
	} {
		node := start(t, "serve", "--backend", "redis", "--redis", to, "--listen", "127.0.0.1:0")
		require.ErrorContains(t, node.wait(), "exit status 1", to)
		require.Contains(t, node.printed(), says)
		require.NotContains(t, node.printed(), "secret")
	}
}
