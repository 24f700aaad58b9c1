package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/pki"
)

// What the settings of a command may be, each by itself and together.

// MaxNodes bounds dev: with eleven, the Raft port of the first node would be the
// API port of the last, and seven voters are more than anybody needs.
const MaxNodes = 9

// RaftPortOffset is the distance from a node's API port to its Raft port where
// nothing else is said.
const RaftPortOffset = 10

// Check refuses settings that cannot stand, or not together. It looks only at
// those that the command has, names the one that is wrong and where it came
// from, and changes nothing but what has no value yet.
func (c *Config) Check(on Scope) error {
	for _, s := range settings {
		if s.on&on == 0 || s.may == "" {
			continue
		}
		if !s.allows(c) {
			return c.wrong(s.flag, "must be "+strings.ReplaceAll(strings.ReplaceAll(s.may, "..", " to "), "|", " or "))
		}
	}
	for _, k := range []struct {
		on    Scope
		check func() error
	}{
		{OnServe | OnDev, c.checkNode},
		{OnServe, c.checkServe},
		{OnDev, c.checkDev},
		{OnClient, c.checkClient},
	} {
		if k.on&on == 0 {
			continue
		}
		if err := k.check(); err != nil {
			return err
		}
	}
	return nil
}

// allows reports whether the value is one that the table allows.
func (s setting) allows(c *Config) bool {
	least, most, isRange := strings.Cut(s.may, "..")
	switch p := s.in(c).(type) {
	case *string:
		return slices.Contains(strings.Split(s.may, "|"), *p)
	case *int:
		lo, err := strconv.Atoi(least)
		hi, err2 := strconv.Atoi(most)
		return isRange && err == nil && err2 == nil && lo <= *p && *p <= hi
	case *time.Duration:
		lo, err := time.ParseDuration(least)
		hi, err2 := time.ParseDuration(most)
		return isRange && err == nil && err2 == nil && lo <= *p && *p <= hi
	}
	return false
}

// wrong is an error about one setting.
func (c *Config) wrong(flag, advice string) error {
	for _, s := range settings {
		if s.flag == flag {
			return terminal.Usagef("%s: %q (%s): %s", flag, c.shown(s), c.sources[flag], advice)
		}
	}
	panic("no setting " + flag)
}

func (c *Config) checkNode() error {
	if err := c.checkTLS(); err != nil {
		return err
	}
	if c.Backend == "redis" {
		if err := c.checkRedis(); err != nil {
			return err
		}
	} else if err := c.checkNoRedis(); err != nil {
		return err
	}
	for _, ns := range c.StrictNamespaces {
		if ns != "*" && !ValidNodeName(ns) {
			return c.wrong("strict-namespaces", "must be names of 1 to 64 characters of A-Z a-z 0-9 . _ -, separated by commas, or *")
		}
	}
	return c.checkListener("listen", c.Listen)
}

// checkTLS refuses what would leave a node half secured. Only serve has these
// settings.
func (c *Config) checkTLS() error {
	switch {
	case c.TLSCert != "" && c.TLSKey == "":
		return c.wrong("tls-key", "must name the file of the key of --tls-cert")
	case c.TLSKey != "" && c.TLSCert == "":
		return c.wrong("tls-cert", "must name the file of the certificate of --tls-key")
	case c.TLSCert == "" && c.TLSCA != "":
		return c.wrong("tls-ca", "a node that asks others for certificates has to have one itself; give --tls-cert and --tls-key, or leave it out")
	case c.TLSCert == "" && c.TLSClientAuth != "":
		return c.wrong("tls-client-auth", "belongs to --tls-cert and --tls-key; give them, or leave it out")
	case c.TLSCert == "":
		return nil
	case c.Backend == "raft" && c.TLSCA == "":
		return c.wrong("tls-ca", "the nodes of a cluster have to know each other by their certificates; give the file of their authority, which `govnode tls init` makes, with --tls-ca")
	}
	if err := pki.CheckCluster(c.ClusterName); err != nil {
		return c.wrong("cluster-name", "must be 1 to 63 small letters, digits, - or _, and dots between them")
	}
	switch auth := pki.ClientAuth(c.TLSClientAuth); {
	case auth == "" && c.TLSCA == "":
		c.TLSClientAuth = string(pki.AuthNone)
	case auth == "":
		c.TLSClientAuth = string(pki.AuthOptional)
	case auth != pki.AuthNone && auth != pki.AuthOptional && auth != pki.AuthRequire:
		return c.wrong("tls-client-auth", "must be none, optional or require")
	case auth != pki.AuthNone && c.TLSCA == "":
		return c.wrong("tls-client-auth", "needs --tls-ca, the authority by which clients are known")
	}
	return nil
}

// asks reports whether whoever connects to a listener is asked who they are, over a
// connection that nobody else can read.
func (c *Config) asks(flag string) bool {
	return c.TLSCert != "" && (flag == "raft-listen" || c.Auth == AuthTokens)
}

func (c *Config) checkRedis() error {
	ways := 0
	for _, given := range []bool{c.Redis != "", len(c.RedisCluster) > 0, len(c.RedisSentinel) > 0 || c.RedisSentinelMaster != ""} {
		if given {
			ways++
		}
	}
	switch {
	case ways == 0:
		return c.wrong("redis", "the Redis must be named; give --redis redis://HOST:PORT, --redis-cluster or --redis-sentinel")
	case len(c.RedisCluster) > 0 && len(c.RedisSentinel) > 0:
		return c.wrong("redis-sentinel", "a Redis Cluster has no Sentinels; leave it or --redis-cluster out")
	case len(c.RedisSentinel) > 0 && c.RedisSentinelMaster == "":
		return c.wrong("redis-sentinel-master", "must name the primary that the Sentinels watch")
	case len(c.RedisSentinel) == 0 && c.RedisSentinelMaster != "":
		return c.wrong("redis-sentinel", "must name the Sentinels that watch "+c.RedisSentinelMaster)
	case len(c.RedisSentinel) == 0 && c.RedisSentinelUser != "":
		return c.wrong("redis-sentinel-user", "belongs to --redis-sentinel; leave it out")
	case len(c.RedisSentinel) == 0 && c.RedisSentinelPassword != "":
		return c.wrong("redis-sentinel-password", "belongs to --redis-sentinel; leave it out")
	case c.RedisTLSCert != "" && c.RedisTLSKey == "":
		return c.wrong("redis-tls-key", "must name the file of the key of --redis-tls-cert")
	case c.RedisTLSKey != "" && c.RedisTLSCert == "":
		return c.wrong("redis-tls-cert", "must name the file of the certificate of --redis-tls-key")
	}
	return nil
}

// checkNoRedis refuses what would be ignored: whoever gives it wants a Redis.
func (c *Config) checkNoRedis() error {
	for _, s := range settings {
		if strings.HasPrefix(s.flag, "redis") && settingValue(s.in(c)) != s.def {
			return c.wrong(s.flag, "belongs to --backend redis; leave it out")
		}
	}
	return nil
}

// checkListener refuses an address that others can reach unless that is asked
// for.
func (c *Config) checkListener(flag, at string) error {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return c.wrong(flag, "must be an address as HOST:PORT, for instance 127.0.0.1:7070")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return c.wrong(flag, "the port must be a number from 0 to 65535")
	}
	if !c.Insecure && !c.asks(flag) && !address.IsLoopback(host) {
		how := "make certificates with `govnode tls init` and `govnode tls node " + c.Node + "`, and start it with --auth tokens, --tls-cert, --tls-key and --tls-ca"
		if flag == "raft-listen" {
			how = "make certificates with `govnode tls init` and `govnode tls node " + c.Node + "`, and start it with --tls-cert, --tls-key and --tls-ca"
		}
		why := "nobody who connects is asked who they are"
		if c.Auth == AuthTokens && flag == "listen" {
			why = "without certificates everybody on the way reads the tokens"
		}
		return c.wrong(flag, "is not a loopback address, and "+why+"; "+how+". Else listen on 127.0.0.1, or add --insecure if the network keeps strangers out")
	}
	return nil
}

func (c *Config) checkServe() error {
	if c.Identities != "" && c.Auth != AuthTokens {
		return c.wrong("identities", "belongs to --auth tokens; give that as well, or leave it out")
	}
	if c.Auth == AuthTokens && c.EdictumKeys != "" {
		return c.wrong("edictum-keys", "belongs to --auth none; SDKs show tokens here: make them with govnode token create --role agent --environment NAME, and leave the file out")
	}
	if c.AdminListen != "" {
		if host, _, err := net.SplitHostPort(c.AdminListen); err != nil || !address.IsLoopback(host) {
			return c.wrong("admin-listen", "must be a loopback address as HOST:PORT, since nobody who connects is asked who they are")
		}
	}
	if !ValidNodeName(c.Node) {
		return c.wrong("node", "must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if c.Backend != "raft" {
		if c.Bootstrap || len(c.Join) > 0 {
			return c.wrong("backend", "only Raft nodes join each other; leave --bootstrap and --join out")
		}
		if flag := c.joinTokenFlag(); flag != "" {
			return c.wrong(flag, "only Raft nodes join each other; nodes over a Redis need no more than its URL, so leave it out")
		}
		return nil
	}
	if c.Data == "" {
		return c.wrong("data", "a Raft node needs a folder of its own; give --data DIR")
	}
	if c.Replace && c.Bootstrap {
		return c.wrong("replace", "a node takes the place of a member of its cluster, and --bootstrap begins a new one; leave --bootstrap out")
	}
	if c.Replace && len(c.Join) == 0 {
		return c.wrong("replace", "the members must be asked; give their addresses with --join")
	}
	switch flag := c.joinTokenFlag(); {
	case flag == "":
	case c.JoinToken != "" && c.JoinTokenFile != "":
		return c.wrong("join-token", "stands beside --join-token-file; give one of the two")
	case c.Bootstrap:
		return c.wrong(flag, "lets a node into a cluster, and --bootstrap begins one; leave one of the two out")
	case len(c.Join) == 0:
		return c.wrong(flag, "is shown to a member; give addresses of members with --join")
	}
	if c.Bootstrap && c.Nonvoter {
		return c.wrong("nonvoter", "the first node of a cluster must have a vote; leave --nonvoter or --bootstrap out")
	}
	if c.LeaderLease > c.Heartbeat {
		return c.wrong("raft-leader-lease", "must be at most --raft-heartbeat, "+c.Heartbeat.String()+": two nodes could lead at once for longer")
	}
	for _, address := range c.Join {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return c.wrong("join", "must be Raft addresses of members as HOST:PORT, separated by commas")
		}
	}
	if c.RaftListen == "" {
		derived, err := address.OffsetPort(c.Listen, RaftPortOffset)
		if err != nil {
			return c.wrong("listen", "leaves no port for Raft at its port + 10; give --raft-listen")
		}
		c.RaftListen = derived
	}
	if err := c.checkListener("raft-listen", c.RaftListen); err != nil {
		return err
	}
	if host, _, _ := net.SplitHostPort(c.RaftListen); c.Advertise == "" && address.IsUnspecified(host) {
		return c.wrong("advertise", "must say under which host others reach this node, since it listens on all addresses")
	}
	return nil
}

// joinTokenFlag is the flag by which a join token is given; empty if none is.
func (c *Config) joinTokenFlag() string {
	switch {
	case c.JoinToken != "":
		return "join-token"
	case c.JoinTokenFile != "":
		return "join-token-file"
	}
	return ""
}

// Joins reports whether a join token is given.
func (c *Config) Joins() bool { return c.joinTokenFlag() != "" }

func (c *Config) checkDev() error {
	if c.Backend == "memory" && c.Nodes != 1 {
		if c.Given("nodes") {
			return c.wrong("nodes", "a node in memory is alone; leave --nodes out, or use --backend raft")
		}
		c.Nodes = 1
	}
	return nil
}

func (c *Config) checkClient() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return c.wrong("tls-cert", "goes with --tls-key; give both or none")
	}
	for _, one := range address.Split(c.Addr) {
		scheme, rest, ok := strings.Cut(one, "://")
		if ok && scheme != "http" && scheme != "https" {
			return c.wrong("addr", "begins with "+scheme+"://; write http:// or https://, or leave it out")
		}
		if !ok {
			rest = one
		}
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return c.wrong("addr", "must be addresses as HOST:PORT, separated by commas, for instance 127.0.0.1:7070")
		}
	}
	if len(address.Split(c.Addr)) == 0 {
		return c.wrong("addr", "must name at least one node as HOST:PORT")
	}
	return nil
}

// ValidNodeName keeps names to what is safe as a name of a folder and in logs.
func ValidNodeName(name string) bool {
	if name == "" || len(name) > 64 || name == "." || name == ".." {
		return false
	}
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		default:
			return false
		}
	}
	return true
}
