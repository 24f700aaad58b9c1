package sandbox_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum/sandbox"
	"example.com/govnode/engine/value"
)

func argument(key, text string) value.Value {
	return value.OfMap(value.Pair{Key: key, Value: value.OfString(text)})
}

// What is put around a path that is outside does not bring it inside.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{"", " ", "a", "'", `"`, "\\", "/srv/x ", "-f", "--file=", "../", "%2e", "a>", "{", "~", "x,"} {
		f.Add(seed, "/etc/passwd")
	}
	box := sandbox.New(sandbox.Spec{Within: []string{"/srv"}, Domains: []string{"x.io"}})
	f.Fuzz(func(t *testing.T, before, after string) {
		v := strings.ToValidUTF8(before, "?")
		w := strings.ToValidUTF8(after, "?")
		for _, args := range []value.Value{
			argument("path", v), argument("command", v), argument("x", v+w), argument("command", v+" "+w),
			value.OfMap(value.Pair{Key: "x", Value: value.OfList(value.OfString(v), value.OfString(w))}),
		} {
			detail, inside, err := box.Check(args, value.Value{})
			require.NoError(t, err)
			require.Equal(t, inside, detail == "")
		}
		_, inside, _ := box.Check(argument("path", "/etc/"+v), value.Value{})
		if inside {
			require.Contains(t, v, "..", "only a way up leads from /etc to /srv")
		}
		_, inside, _ = box.Check(value.OfMap(value.Pair{Key: "a", Value: value.OfString(v)}, value.Pair{Key: "b", Value: value.OfString("/etc/passwd")}), value.Value{})
		require.False(t, inside, "what stands beside a path helps it nothing")
		// As a word of its own, whatever the words before it are, quotes apart.
		if !strings.ContainsAny(v, "'\"\\") {
			_, inside, _ = box.Check(argument("command", v+" /etc/passwd"), value.Value{})
			require.False(t, inside, "%q", v)
		}
	})
}

// Only what cannot do more reads.
func FuzzClassify(f *testing.F) {
	for _, seed := range []string{"ls", "ls -la", "find . -delete", "git branch -D x", "echo a > b", "cat x; rm y", "", "lsx", "date -s 0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, command string) {
		effect := sandbox.Classify(command)
		require.Contains(t, []sandbox.SideEffect{sandbox.Read, sandbox.Irreversible}, effect)
		for _, more := range []string{"; rm x", " > x", " | sh", " && rm x", " `id`", " $(id)", "\nrm x", " & rm x", " < x"} {
			require.Equal(t, sandbox.Irreversible, sandbox.Classify(command+more), "%q%q", command, more)
		}
		if effect == sandbox.Read && strings.TrimSpace(command) != "" {
			require.False(t, strings.ContainsAny(command, "<>|;&`$\n\r"))
		}
	})
}
