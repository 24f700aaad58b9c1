package alone

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "example.com/govnode/proto/govnode/v1"
)

// folders makes calls about paths under rules of folders, some of which are for some paths
// alone or cut off what is above: those of the folder and of all above it hold together, and
// the default is that of the lowest.
func folders(s *script) {
	pick := func(of ...string) string { return of[s.rng.IntN(len(of))] }
	type file struct {
		name, folder, scope, otherwise string
		cuts                           bool
		rules                          []*rule
	}
	var files []*file
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\n"},
	}}
	priorities := s.rng.Perm(9)
	for i, folder := range []string{"", "sub/", "sub/deep/"} {
		if i > 0 && s.rng.IntN(4) == 0 {
			continue
		}
		f := &file{name: fmt.Sprint("in-", i), folder: folder, otherwise: "allow"}
		text := &strings.Builder{}
		fmt.Fprintf(text, "name: %s\n", f.name)
		switch s.rng.IntN(4) {
		case 0:
			f.scope = pick("*.py", "sub/*", "*deep*", "?.txt")
			fmt.Fprintf(text, "scope: %q\n", f.scope)
		case 1:
			f.cuts = i > 0
			fmt.Fprintf(text, "inherit: %v\n", !f.cuts)
		}
		if s.rng.IntN(2) == 0 {
			f.otherwise = pick("allow", "deny")
			fmt.Fprintf(text, "defaults: {action: %s}\n", f.otherwise)
		}
		text.WriteString("rules:\n")
		for n := range 1 + s.rng.IntN(3) {
			name := fmt.Sprint("r", n) // which others have as well
			if s.rng.IntN(4) == 0 {
				name = fmt.Sprint("r", i, n)
			}
			r := &rule{name: name, field: "arguments.n", operator: pick("eq", "gte", "lt"), action: pick("allow", "deny", "ask"), value: s.rng.IntN(4), priority: priorities[3*i+n]}
			r.override = i > 0 && s.rng.IntN(3) > 0
			f.rules = append(f.rules, r)
			fmt.Fprintf(text, "  - {name: %s, condition: {field: %s, operator: %s, value: %d}, action: %s, priority: %d, override: %v}\n", r.name, r.field, r.operator, r.value, r.action, r.priority, r.override)
		}
		files = append(files, f)
		put.Files = append(put.Files, &v1.TextFile{Path: folder + "governance.yaml", Content: text.String()})
	}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	for range 12 {
		path := pick("a.py", "b.txt", "sub/a.py", "sub/b.txt", "sub/deep/a.py", "sub/deep/b.txt")
		var rules []*rule
		var chain []string
		otherwise := "allow"
		for _, f := range files { // from the root down
			if !strings.HasPrefix(path, f.folder) || f.scope != "" && !within(path, f.scope) {
				continue
			}
			if f.cuts {
				rules, chain = nil, nil
			}
			rules, otherwise, chain = over(rules, f.rules), f.otherwise, append(chain, f.name)
		}
		slices.SortFunc(rules, func(a, b *rule) int { return cmp.Compare(b.priority, a.priority) })
		n := s.rng.IntN(4)
		req := s.call("one")
		req.ArgumentsJson, req.ContextJson = fmt.Sprintf(`{"n": %d}`, n), fmt.Sprintf(`{"path": %q}`, path)
		want, by := says(rules, otherwise, map[string]any{"arguments.n": n})
		res := s.begin(req)
		if s.over {
			return
		}
		s.wrong(res.Outcome != want || res.Decision.GetMatchedRule() != by || !slices.Equal(res.Decision.GetPolicyChain(), chain) || (res.Decision.GetPolicy() == "folder-scoped") != (len(chain) > 0),
			"of %d in %s it says %v, want %v by %q of %v; the policy is %v", n, path, res, want, by, chain, put.Files)
	}
}

// overrides has rules of the same name in a folder and in the one above, of all actions: what is
// denied above stays so, what is asked for above is asked for at least, and what is not said to
// override does not.
func overrides(s *script) {
	actions := []string{"allow", "deny", "ask"}
	above, below := "name: above\nrules:\n", "name: below\nrules:\n"
	var want []v1.Outcome
	for _, override := range []bool{true, false} {
		for _, first := range actions {
			for _, second := range actions {
				n := len(want)
				rule := fmt.Sprintf("  - {name: r%d, condition: {field: arguments.n, operator: eq, value: %d}, priority: %d, action: ", n, n, s.rng.IntN(9))
				above += rule + first + "}\n"
				below += rule + fmt.Sprintf("%s, override: %v}\n", second, override)
				is := first
				if override && (first == "allow" || first == "ask" && second == "deny") {
					is = second
				}
				want = append(want, map[string]v1.Outcome{
					"allow": v1.Outcome_OUTCOME_ADMITTED, "deny": v1.Outcome_OUTCOME_DENIED_BY_POLICY, "ask": v1.Outcome_OUTCOME_APPROVAL_REQUIRED,
				}[is])
			}
		}
	}
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\n"},
		{Path: "governance.yaml", Content: above}, {Path: "sub/governance.yaml", Content: below},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	for n, want := range want {
		req := s.call("one")
		req.ArgumentsJson, req.ContextJson = fmt.Sprintf(`{"n": %d}`, n), `{"path": "sub/a.py"}`
		if res := s.begin(req); !s.over {
			s.wrong(res.Outcome != want, "rule r%d comes to %v, want %v; the policy is %v", n, res, want, put.Files)
		}
	}
}

// over is what the rules of a folder come to with those above: of the same name there is the
// one above, unless that allows and the one below overrides it. A deny that tries to override an
// ask stands beside it.
func over(above, below []*rule) []*rule {
	all := slices.Clone(above)
	for _, r := range below {
		has := func(x *rule) bool { return x.name == r.name }
		of := func(action string) bool {
			return slices.ContainsFunc(above, func(x *rule) bool { return has(x) && x.action == action })
		}
		switch {
		case !slices.ContainsFunc(above, has), r.override && r.action == "deny" && of("ask") && !of("deny"):
			all = append(all, r)
		case r.override && !of("ask") && !of("deny"):
			all = append(slices.DeleteFunc(all, has), r)
		}
	}
	return all
}

// within reports whether a path is one that a pattern is for, whose stars stand for anything.
func within(path, pattern string) bool {
	text := regexp.QuoteMeta(pattern)
	text = strings.ReplaceAll(strings.ReplaceAll(text, `\*`, ".*"), `\?`, ".")
	return regexp.MustCompile("^" + text + "$").MatchString(path)
}
