package alone

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "example.com/govnode/proto/govnode/v1"
)

// texts keeps texts of all sorts, which come back as they were.
func texts(s *script) {
	all := []string{
		"", " ", "0", "-0", "007", "1.50", "+1", "1e3", ".5", "5.", "0x10", "1_000", "NaN", "null", "true", "[1]", `{"a":1}`, "\x00", "ü", "\u202e", "a\nb",
		"9223372036854775807", "9223372036854.775808", "-9223372036854.775808", "0.0000001", "00", "1 ", " 1", strings.Repeat("x", 3000), strings.Repeat("7", 40),
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	want, versions := map[string]string{}, map[string]string{}
	for i, text := range all[:6] {
		req := &v1.SetRequest{Key: fmt.Sprint(s.own, "-", i), Value: text, RequestId: s.id(), Client: s.own}
		set, ok := done(s, fmt.Sprintf("set %.40q", text), func(ctx context.Context, n *node) (*v1.SetResponse, error) { return n.counters.Set(ctx, req) })
		if !ok {
			return
		}
		want[req.Key] = text
		for key, version := range versions {
			s.wrong(version == set.Version, "%.40q has the version %q, as %.40q", text, version, want[key])
		}
		versions[req.Key] = set.Version
		got, ok := done(s, fmt.Sprintf("get %.40q", text), func(ctx context.Context, n *node) (*v1.GetResponse, error) {
			return n.counters.Get(ctx, &v1.GetRequest{Key: req.Key})
		})
		s.wrong(ok && (!got.Found || got.Value != text || got.Version != set.Version), "it is %.60q of version %q, want %.60q of %q", got.GetValue(), got.GetVersion(), text, set.Version)
	}
	many, ok := done(s, "get all", func(ctx context.Context, n *node) (*v1.BatchGetResponse, error) {
		return n.counters.BatchGet(ctx, &v1.BatchGetRequest{Keys: slices.Collect(maps.Keys(want))})
	})
	s.wrong(ok && (!maps.Equal(many.Values, want) || !maps.Equal(many.Versions, versions)), "values are %.200v, want %.200v", many, want)
	put := &v1.AppendRequest{Key: s.own, Items: all[6:12], Ttl: long, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "append", func(ctx context.Context, n *node) (*v1.AppendResponse, error) { return n.counters.Append(ctx, put) }); !ok {
		return
	}
	items, ok := done(s, "read the list", func(ctx context.Context, n *node) (*v1.RangeResponse, error) {
		return n.counters.Range(ctx, &v1.RangeRequest{Key: s.own})
	})
	if ok {
		var got []string
		for _, i := range items.Items {
			got = append(got, i.Value)
		}
		s.wrong(!slices.Equal(got, put.Items), "items are %.200q, want %.200q", got, put.Items)
	}
}
