package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// loadConfig loads settings as a command of a scope does.
func loadConfig(t *testing.T, on Scope, env map[string]string, args ...string) (*Config, error) {
	t.Helper()
	cmd := &cobra.Command{Use: "test"}
	c := Bind(cmd, on)
	require.NoError(t, cmd.ParseFlags(args))
	err := c.Load(cmd.Flags(), func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	})
	return c, err
}

// Every field of Config is one line of the table, and every line can be read:
// the default is allowed, the names are unique, the help says something.
func TestSettingsTable(t *testing.T) {
	fields := 0
	for i := range reflect.TypeFor[Config]().NumField() {
		if reflect.TypeFor[Config]().Field(i).IsExported() {
			fields++
		}
	}
	require.Len(t, settings, fields)
	flags, shorts, targets := map[string]bool{}, map[string]bool{}, map[any]bool{}
	for _, on := range []Scope{OnServe, OnDev, OnClient} {
		c, err := loadConfig(t, on, nil)
		require.NoError(t, err)
		for _, s := range settings {
			if s.on&on != 0 && s.may != "" {
				require.True(t, s.allows(c), "default of %s", s.flag)
			}
		}
	}
	c := &Config{}
	for _, s := range settings {
		require.False(t, flags[s.flag], s.flag)
		require.False(t, s.short != "" && shorts[s.short], s.short)
		require.False(t, targets[s.in(c)], "%s has the field of another", s.flag)
		flags[s.flag], shorts[s.short], targets[s.in(c)] = true, true, true
		require.Equal(t, strings.ToLower(s.flag), s.flag)
		require.NotEmpty(t, s.meaning, s.flag)
		require.NotZero(t, s.on, s.flag)
	}
}

// Both ends of every range, and what lies beyond them.
func TestSettingsEdges(t *testing.T) {
	for _, s := range settings {
		least, most, isRange := strings.Cut(s.may, "..")
		if !isRange {
			continue
		}
		t.Run(s.flag, func(t *testing.T) {
			for _, c := range []struct {
				text  string
				by    int
				right bool
			}{{least, 0, true}, {least, -1, false}, {most, 0, true}, {most, 1, false}} {
				config, err := loadConfig(t, s.on, nil, "--"+s.flag+"="+moved(t, s, c.text, c.by))
				require.NoError(t, err)
				require.Equal(t, c.right, s.allows(config), "%s moved by %d", c.text, c.by)
			}
		})
	}
}

// moved is a text of a range, moved by the smallest step of its type.
func moved(t *testing.T, s setting, text string, by int) string {
	if _, isDuration := s.in(&Config{}).(*time.Duration); isDuration {
		d, err := time.ParseDuration(text)
		require.NoError(t, err)
		return (d + time.Duration(by)).String()
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return strconv.Itoa(n + by)
}

// Flag over environment over file over default, for a setting of each type.
func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(file, []byte("listen: file:1\nbootstrap: true\nraft-queue: 3\nraft-heartbeat: 3s\njoin: [file:1, file:2]\n"), 0o600))
	for _, c := range []struct {
		flag, typed, env, inFile, byDefault string
	}{
		{"listen", "flag:1", "env:1", "file:1", "127.0.0.1:7070"},
		{"bootstrap", "false", "false", "true", "false"},
		{"raft-queue", "1", "2", "3", "4096"},
		{"raft-heartbeat", "1s", "2s", "3s", "500ms"},
		{"join", "flag:1,flag:2", "env:1", "file:1,file:2", ""},
	} {
		variable := "GOVNODE_" + strings.ToUpper(strings.ReplaceAll(c.flag, "-", "_"))
		for _, step := range []struct {
			want, source string
			env          map[string]string
			args         []string
		}{
			{c.typed, "flag --" + c.flag, map[string]string{variable: c.env}, []string{"--config", file, "--" + c.flag + "=" + c.typed}},
			{c.env, "environment " + variable, map[string]string{variable: c.env, "GOVNODE_CONFIG": file}, nil},
			{c.inFile, "file " + file, nil, []string{"--config", file}},
			{c.byDefault, "default", nil, nil},
		} {
			config, err := loadConfig(t, OnServe, step.env, step.args...)
			require.NoError(t, err)
			require.Equal(t, step.want, settingValue(find(t, c.flag).in(config)), c.flag)
			require.True(t, strings.HasPrefix(config.sources[c.flag], step.source), "%s: %s", c.flag, config.sources[c.flag])
		}
	}
}

func find(t *testing.T, flag string) setting {
	t.Helper()
	for _, s := range settings {
		if s.flag == flag {
			return s
		}
	}
	t.Fatalf("no setting %s", flag)
	return setting{}
}

func TestRedisPasswordIsNotShown(t *testing.T) {
	c, err := loadConfig(t, OnServe, nil, "--data=d", "--redis=redis://user:secret@127.0.0.1:6379")
	require.NoError(t, err)
	err = c.Check(OnServe)
	require.ErrorContains(t, err, "redis: ")
	require.NotContains(t, err.Error(), "secret")
	require.NotContains(t, c.shown(find(t, "redis")), "secret")
	c.Redis = "redis://user:secret@host:no-port"
	require.NotContains(t, c.shown(find(t, "redis")), "secret")
	require.NotContains(t, strings.Join(c.Args(OnServe), " "), "secret")
	require.Equal(t, []string{"GOVNODE_REDIS=" + c.Redis}, c.SecretEnv(OnServe))
}

func TestStrictNamespaces(t *testing.T) {
	c, err := loadConfig(t, OnServe, nil, "--strict-namespaces=a,b.c", "--data=d")
	require.NoError(t, err)
	require.NoError(t, c.Check(OnServe))
	require.Equal(t, []string{"a", "b.c"}, c.StrictNamespaces)
	for text, fine := range map[string]bool{"*": true, "a/b": false, "a,,b": false, strings.Repeat("x", 65): false} {
		c, err := loadConfig(t, OnServe, nil, "--strict-namespaces="+text, "--data=d")
		if err == nil {
			err = c.Check(OnServe)
		}
		if fine {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, "strict-namespaces", text)
		}
	}
}

// What belongs together is given together, and what would be ignored is refused.
func TestRedisSettingsBelongTogether(t *testing.T) {
	for args, wrong := range map[string]string{
		"--backend=redis": "redis: ",
		"--backend=redis --redis=redis://h --redis-cluster=a:1":                                              "",
		"--backend=redis --redis-sentinel=a:1":                                                               "redis-sentinel-master: ",
		"--backend=redis --redis-sentinel-master=m":                                                          "redis-sentinel: ",
		"--backend=redis --redis=redis://h --redis-sentinel-user=u":                                          "redis-sentinel-user: ",
		"--backend=redis --redis=redis://h --redis-sentinel-password=p":                                      "redis-sentinel-password: ",
		"--backend=redis --redis-sentinel=a:1 --redis-sentinel-master=m --redis-sentinel-password=password1": "",
		"--backend=redis --redis=redis://h --redis-tls-cert=c":                                               "redis-tls-key: ",
		"--backend=redis --redis=redis://h --redis-tls-key=k":                                                "redis-tls-cert: ",
		"--data=d --redis-cluster=a:1":                                                                       "redis-cluster: ",
		"--data=d --redis-tls":                                                                               "redis-tls: ",
		"--data=d --redis-quarantine=10s":                                                                    "redis-quarantine: ",
		"--data=d --redis-quarantine=61m":                                                                    "",
	} {
		c, err := loadConfig(t, OnServe, nil, strings.Fields(args)...)
		require.NoError(t, err)
		err = c.Check(OnServe)
		if wrong == "" {
			require.NoError(t, err, args)
			require.NotContains(t, c.shown(find(t, "redis-sentinel-password")), "password1")
		} else {
			require.ErrorContains(t, err, wrong, args)
			require.NotContains(t, err.Error(), "password1")
		}
	}
}

// Only a URL is shown in part: a password may look like one.
func TestNoPartOfAPasswordIsShown(t *testing.T) {
	for _, flag := range []string{"redis-sentinel-password", "token", "join-token"} {
		for _, secret := range []string{"hunter2", "//hunter2", "a://hunter2", "a://b:c@hunter2"} {
			c, err := loadConfig(t, onAll, nil, "--"+flag+"="+secret)
			require.NoError(t, err)
			require.Equal(t, "(not shown)", c.shown(find(t, flag)), secret)
		}
	}
}

// A join token belongs to a Raft node that joins, and is not shown in what is said of it.
func TestJoinTokenSettings(t *testing.T) {
	for args, wrong := range map[string]string{
		"--data=d --join=h:1 --join-token=gnj_a.secret":                     "",
		"--data=d --join=h:1 --join-token-file=f":                           "",
		"--data=d --join=h:1 --join-token-file=f --replace":                 "",
		"--data=d --join=h:1 --join-token=gnj_a.secret --join-token-file=f": "join-token: ",
		"--data=d --join-token=gnj_a.secret":                                "give addresses of members with --join",
		"--data=d --join-token-file=f":                                      "join-token-file: ",
		"--data=d --join=h:1 --bootstrap --join-token-file=f":               "--bootstrap begins one",
		"--backend=memory --join-token=gnj_a.secret":                        "only Raft nodes join each other",
		"--backend=redis --redis=redis://h:1 --join-token-file=f":           "need no more than its URL",
		"--data=d --admission=token":                                        "",
		"--data=d --admission=nobody":                                       "must be certificate or token",
	} {
		c, err := loadConfig(t, OnServe, nil, strings.Fields(args)...)
		if err == nil {
			err = c.Check(OnServe)
		}
		if wrong == "" {
			require.NoError(t, err, args)
			continue
		}
		require.ErrorContains(t, err, wrong, args)
		require.NotContains(t, err.Error(), "secret", args)
	}
}

// A node is secured altogether or not at all, and listens to strangers only where
// they have to show who they are.
func TestTLSSettingsBelongTogether(t *testing.T) {
	const with = "--data=d --tls-cert=c --tls-key=k "
	for args, wrong := range map[string]string{
		"--data=d --tls-cert=c":                                            "tls-key: ",
		"--data=d --tls-key=k":                                             "tls-cert: ",
		"--data=d --tls-ca=a":                                              "tls-ca: ",
		"--data=d --tls-client-auth=none":                                  "tls-client-auth: ",
		with:                                                               "know each other by their certificates",
		with + "--tls-ca=a":                                                "",
		with + "--tls-ca=a --tls-client-auth=some":                         "must be none, optional or require",
		with + "--tls-ca=a --cluster-name=Prod":                            "cluster-name: ",
		with + "--backend=memory":                                          "",
		with + "--backend=memory --tls-client-auth=require":                "needs --tls-ca",
		with + "--tls-ca=a --listen=192.0.2.1:1":                           "nobody who connects is asked who they are; make certificates",
		"--data=d --auth=tokens --listen=192.0.2.1:1":                      "and without certificates everybody on the way reads the tokens; make certificates",
		with + "--tls-ca=a --listen=192.0.2.1:1 --insecure":                "",
		with + "--tls-ca=a --raft-listen=192.0.2.1:1":                      "",
		"--data=d --raft-listen=192.0.2.1:1":                               "nobody who connects is asked",
		with + "--tls-ca=a --listen=192.0.2.1:1 --tls-client-auth=require": "--auth tokens",
		with + "--tls-ca=a --listen=192.0.2.1:1 --auth=tokens":             "",
	} {
		c, err := loadConfig(t, OnServe, nil, strings.Fields(args)...)
		require.NoError(t, err)
		if err = c.Check(OnServe); wrong == "" {
			require.NoError(t, err, args)
		} else {
			require.ErrorContains(t, err, wrong, args)
		}
	}
	for args, want := range map[string]string{with + "--tls-ca=a": "optional", with + "--backend=memory": "none", "--data=d": ""} {
		c, err := loadConfig(t, OnServe, nil, strings.Fields(args)...)
		require.NoError(t, err)
		require.NoError(t, c.Check(OnServe))
		require.Equal(t, want, c.TLSClientAuth)
	}
}

// Addresses may say how they are reached.
func TestAddresses(t *testing.T) {
	for args, wrong := range map[string]string{
		"--addr=https://h:1,http://h:2,h:3": "",
		"--addr=ftp://h:1":                  "begins with ftp://",
		"--addr=https://h":                  "must be addresses as HOST:PORT",
		"--tls-cert=c":                      "goes with --tls-key",
		"--tls-ca=a":                        "",
	} {
		c, err := loadConfig(t, OnClient, nil, strings.Fields(args)...)
		require.NoError(t, err)
		if err = c.Check(OnClient); wrong == "" {
			require.NoError(t, err, args)
		} else {
			require.ErrorContains(t, err, wrong, args)
		}
	}
}
