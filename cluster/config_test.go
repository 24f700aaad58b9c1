package cluster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
	"example.com/govnode/storage"
)

// A node whose elections are set to take long does not refuse new work while
// one goes on as it should.
func TestPatience(t *testing.T) {
	for _, test := range []struct{ heartbeat, election, patience time.Duration }{
		{0, 0, 5 * time.Second}, // without Raft
		{500 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second},
		{20 * time.Millisecond, 20 * time.Millisecond, 5 * time.Second},
		{3 * time.Second, time.Second, 30 * time.Second},
		{time.Second, time.Minute, 10 * time.Minute},
	} {
		require.Equal(t, test.patience, Patience(test.heartbeat, test.election), "%v", test)
	}
}

// What Config says of its defaults is so.
func TestDefaults(t *testing.T) {
	cfg, err := Config{ID: "n1", Dir: "data", BindAddr: "127.0.0.1:0"}.withDefaults()
	require.NoError(t, err)
	f, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	require.NoError(t, err)
	said := regexp.MustCompile(`Default ([0-9,]+)(?: (ms|s|MiB)\b)?`)
	units := map[string]int64{"": 1, "ms": int64(time.Millisecond), "s": int64(time.Second), "MiB": 1 << 20}
	found := 0
	ast.Inspect(f, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok {
			return true
		}
		m := said.FindStringSubmatch(strings.Join(strings.Fields(field.Doc.Text()), " "))
		if m == nil {
			return true
		}
		want, err := strconv.ParseInt(strings.ReplaceAll(m[1], ",", ""), 10, 64)
		require.NoError(t, err)
		for _, name := range field.Names {
			found++
			v := reflect.ValueOf(cfg).FieldByName(name.Name)
			require.EqualValues(t, want*units[m[2]], v.Convert(reflect.TypeFor[int64]()).Int(), name.Name)
		}
		return true
	})
	require.Equal(t, 14, found)
	require.Equal(t, LogBoltDB, cfg.LogStore)
	require.Equal(t, Patience(cfg.HeartbeatTimeout, cfg.ElectionTimeout), cfg.LeaderPatience)

	l := listen(t, "127.0.0.1:0")
	defer l.Close()
	conn, err := cfg.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	cfg, err = Config{ID: "n1", Dir: "data", BindAddr: "127.0.0.1:0", HeartbeatTimeout: 100 * time.Millisecond}.withDefaults()
	require.NoError(t, err)
	require.Equal(t, cfg.HeartbeatTimeout, cfg.LeaderLeaseTimeout, "no lease outlasts the patience of followers")
}

// A node that must not go on ends its process, with the code that Config names, unless Fatal says otherwise;
// also where its log hangs.
func TestAFatalErrorEndsTheProcess(t *testing.T) {
	if log := os.Getenv("CLUSTER_FATAL"); log != "" {
		cfg := Config{ID: "n1", Dir: "data", BindAddr: "127.0.0.1:0"}
		if log == "hangs" {
			r, w := io.Pipe()
			defer r.Close()
			cfg.Logger = slog.New(slog.NewTextHandler(w, nil))
		}
		cfg, err := cfg.withDefaults()
		require.NoError(t, err)
		cfg.Fatal(errDisk)
		return
	}
	for _, log := range []string{"writes", "hangs"} {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=20s")
		c.Env = append(os.Environ(), "CLUSTER_FATAL="+log)
		out, err := c.CombinedOutput()
		var ended *exec.ExitError
		require.ErrorAs(t, err, &ended, "%s", out)
		require.Equal(t, 70, ended.ExitCode(), "%s", out)
		require.Equal(t, log == "writes", strings.Contains(string(out), errDisk.Error()))
	}
}

// An address is that of a host and a port that others can reach, and is not longer than a name may be.
func TestAddresses(t *testing.T) {
	for address, ok := range map[string]bool{
		"host:1": true, "10.0.0.1:1": true, "[::1]:1": true, strings.Repeat("h", 254) + ":1": true,
		"": false, "host": false, "host:": false, "host:0": false, ":1": false, "0.0.0.0:1": false, "[::]:1": false, strings.Repeat("h", 255) + ":1": false,
	} {
		require.Equal(t, ok, validAddress(address) == nil, address)
	}
}

// What goes together, and what does not.
func TestConfigAtItsBounds(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	defer l.Close()
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"two places to listen":        {func(c *Config) { c.Listener = l }, "cluster: BindAddr: is not used with a Listener"},
		"a listener":                  {func(c *Config) { c.Listener, c.BindAddr = l, "" }, ""},
		"a lease as long as patience": {func(c *Config) { c.LeaderLeaseTimeout = 500 * time.Millisecond }, ""},
		"a lease that is longer":      {func(c *Config) { c.LeaderLeaseTimeout = 500*time.Millisecond + 1 }, "cluster: LeaderLeaseTimeout: "},
		"one member to ask":           {func(c *Config) { c.Replace, c.Join = true, []string{"host:1"} }, ""},
		"TLS that knows nobody":       {func(c *Config) { c.TLS = new(pki.Source) }, "cluster: TLS: "},
	} {
		cfg := Config{ID: "n1", Dir: "data", BindAddr: "127.0.0.1:0"}
		tt.change(&cfg)
		_, err := cfg.withDefaults()
		if tt.want == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tt.want, name)
		}
	}
}

// Who has a day to wait does not wait for a majority that is gone: neither with
// a command, nor with a read of the latest state, nor with a change of members.
func TestAMajorityThatIsGoneIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, func(c *Config) { c.LeaderPatience = 50 * time.Millisecond })
	n := c.nodes[0]
	c.net.isolate(c.nodes[1].Address(), true)
	require.Eventually(t, func() bool { _, leader := n.raft.LeaderWithID(); return leader == "" }, 10*time.Second, 10*time.Millisecond)

	a := n.Apply(t.Context(), increment("r"))[0]
	require.Equal(t, storage.NotApplied, a.Outcome, "%v", a.Err)
	require.ErrorIs(t, a.Err, errNoLeader)
	_, err := n.View(t.Context(), "", storage.Latest)
	require.ErrorIs(t, err, errNoLeader)
	err = n.AddNode(t.Context(), "n3", "127.0.0.1:1", true)
	require.ErrorIs(t, err, errNoLeader)
	require.False(t, isUnknown(err))
}
