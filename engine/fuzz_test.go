package engine

import (
	"context"
	"os"
	slashpath "path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// within ends a fuzz target that takes unreasonably long, so that a slow input
// is found and kept like one that crashes.
func within(limit time.Duration, what string, do func()) {
	defer time.AfterFunc(limit, func() { panic(what + " takes longer than " + limit.String()) }).Stop()
	do()
}

// seedTrees are the trees of the conformance archives.
func seedTrees(f *testing.F, add func(files []txtar.File)) {
	f.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		f.Fatal("no archives to begin with")
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		add(txtar.Parse(content).Files)
	}
}

// FuzzLoad holds that no document crashes or stalls the loader, that what loads
// can be evaluated, and that a GovernancePolicy survives its round trip.
func FuzzLoad(f *testing.F) {
	seedTrees(f, func(files []txtar.File) {
		for _, file := range files {
			if strings.HasPrefix(file.Name, "tree/") {
				f.Add(string(file.Data), strings.HasSuffix(file.Name, ".json"))
			}
		}
	})
	f.Fuzz(func(t *testing.T, text string, json bool) {
		path := "policy.yaml"
		if json {
			path = "policy.json"
		}
		within(20*time.Second, "loading", func() {
			tree, err := source.NewTree([]source.File{{Path: path, Content: []byte(text)}})
			if err != nil {
				return
			}
			p, err := Compile(tree, WithLogger(discard))
			if err != nil {
				if err.(*source.LoadError).Problems[0].Path != path {
					t.Fatalf("the problem names no file: %v", err)
				}
				return
			}
			p.guardrails = nil // nothing is sent anywhere from a fuzz target
			p.Evaluate(context.Background(), call.Input{Tool: "t"})
			Lint(p)
			dict := p.governance.Dict().JSON()
			again, err := source.NewTree([]source.File{file("policy.json", dict)})
			if err != nil {
				return // escapes can make it too large
			}
			if back, err := Compile(again); err != nil || back.governance.Dict().JSON() != dict {
				t.Fatalf("the policy changed on its way through its mapping: %v\n%s", err, dict)
			}
		})
	})
}

// FuzzTree holds that no set of paths crashes discovery, that a path which
// climbs out never selects a policy, and that a chain is made of ancestors.
func FuzzTree(f *testing.F) {
	f.Add("src", "src/x", "*.go", true, false)
	f.Add("a/b", "a/../a/b/c", "a/*", false, true)
	f.Add("a", "..%2f..", "[!a]", true, true)
	f.Add("..", `\\x\..`, "**", false, false)
	f.Fuzz(func(t *testing.T, dir, path, scope string, inherit, strict bool) {
		yaml := func(name string) []byte {
			text := "name: " + name + "\nrules: []\n"
			if !inherit {
				text += "inherit: false\n"
			}
			if scope != "" {
				text += "scope: " + nodeYAML(scope) + "\n"
			}
			return []byte(text)
		}
		opts := []Option{WithLogger(discard)}
		if strict {
			opts = append(opts, WithStrict())
		}
		within(20*time.Second, "discovery", func() {
			tree, err := source.NewTree([]source.File{
				{Path: "governance.yaml", Content: []byte("name: root\nrules: []\n")},
				{Path: dir + "/governance.yaml", Content: yaml("mid")},
				{Path: dir + "/sub/governance.yml", Content: yaml("leaf")},
			})
			if err != nil {
				return
			}
			p, err := Compile(tree, opts...)
			if err != nil {
				return
			}
			d := p.Evaluate(context.Background(), call.Input{Context: value.OfMap(value.Pair{Key: "path", Value: value.OfString(path)})})
			clean, inside := slashpath.Clean(path), d.Category != CategoryPathEscape
			if !inside && d.Allowed {
				t.Fatalf("%q leaves the root and was judged: %+v", path, d)
			}
			if inside && (strings.HasPrefix(clean, "../") || clean == ".." || strings.HasPrefix(clean, "/")) {
				t.Fatalf("%q was judged as %q, which is outside", path, clean)
			}
			for _, name := range d.PolicyChain {
				if name == "mid" && clean != dir && !strings.HasPrefix(clean, dir+"/") {
					t.Fatalf("the document of %q applies to %q", dir, clean)
				}
			}
		})
	})
}

// nodeYAML quotes a text for YAML, which reads what JSON writes.
func nodeYAML(s string) string { return value.OfString(s).JSON() }
