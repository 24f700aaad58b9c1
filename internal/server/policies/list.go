package policies

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// How policies are read, listed and deleted, and, behind that, the content hashes
// of tools.

// GetPolicy returns a tree with its files.
func (s *Service) GetPolicy(ctx context.Context, req *v1.GetPolicyRequest) (*v1.GetPolicyResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	name, digest := nameOrDigest(f, req.GetName(), req.GetDigest())
	if f.Err != nil {
		return nil, f.Err
	}
	ns := input.Namespace(ctx)
	var version int32
	var found storage.Found
	var r *session.Policy
	// The name may go on to another tree before the one that it pointed to is read, which
	// then may be gone.
	for again := name != ""; r == nil; again = false {
		var err error
		if name != "" {
			if found, err = s.Store.Get(ctx, session.NameKey(ns, name), read); err != nil {
				return nil, fault.OfRead(err)
			}
			n, ok := found.Record.(*session.Name)
			if !ok || n == nil || n.Digest == (session.Digest{}) {
				return nil, fault.NotFound("name", "there is no policy %q; store it with PutPolicy", name)
			}
			digest, version = n.Digest, n.Version
		}
		if found, err = s.Store.Get(ctx, session.PolicyKey(ns, digest), read); err != nil {
			return nil, fault.OfRead(err)
		}
		if r, _ = found.Record.(*session.Policy); r == nil && !again {
			return nil, fault.NotFound("digest", "there is no policy with the digest %s; store it with PutPolicy", digest)
		}
	}
	tree, err := engine.DecodeTree(r.Tree)
	if err != nil {
		return nil, policyError(err)
	}
	pins, _, err := s.Store.ReadAll(ctx, session.PinsKeys(ns, digest), read)
	if err != nil {
		return nil, err
	}
	out := &v1.Policy{Name: name, Version: version, Digest: digest.String(), Pinned: pinned(pins)}
	for _, file := range tree.Files() {
		out.Files = append(out.Files, &v1.TextFile{Path: file.Path, Content: string(file.Content)})
	}
	return &v1.GetPolicyResponse{Policy: out, AppliedIndex: found.Index}, nil
}

// DigestOf returns the tree that a name points to.
func (s *Service) DigestOf(ctx context.Context, ns, field, name string) (session.Digest, error) {
	found, err := s.Store.Get(ctx, session.NameKey(ns, name), storage.Latest)
	if err != nil {
		return session.Digest{}, fault.OfRead(err)
	}
	n, ok := found.Record.(*session.Name)
	if !ok || n == nil || n.Digest == (session.Digest{}) {
		return session.Digest{}, fault.NotFound(field, "there is no policy %q; store it with PutPolicy", name)
	}
	return n.Digest, nil
}

// Asked returns the policy that a name points to now or, without a name, that of a
// digest. The name may go on to another tree before the one that it pointed to is read,
// which then may be gone.
func (s *Service) Asked(ctx context.Context, ns, name string, d session.Digest) (p *engine.Policy, of session.Digest, err error) {
	if name == "" {
		p, err = s.Evaluated(ctx, ns, d)
		return p, d, err
	}
	for range 2 {
		if d, err = s.DigestOf(ctx, ns, "policy.name", name); err != nil {
			return nil, d, err
		}
		if p, err = s.Evaluated(ctx, ns, d); err == nil || fault.Of(err).Reason != fault.ReasonNotFound {
			break
		}
	}
	return p, d, err
}

func nameOrDigest(f *input.Fields, name, digest string) (string, session.Digest) {
	switch {
	case digest != "":
		return "", f.Digest("digest", digest)
	case name != "":
		f.ID("name", name)
		return name, session.Digest{}
	}
	f.Refuse("name", "is required; give a name or a digest, as ListPolicies shows them")
	return "", session.Digest{}
}

// pinned counts the live sessions that pin a tree by the parts of that count.
func pinned(parts []session.Record) (n int32) {
	for _, r := range parts {
		if p, ok := r.(*session.Pins); ok && p != nil {
			n += int32(p.N)
		}
	}
	return n
}

// ListPolicies returns every tree under each of its names; a tree that no name
// points to any more is there with an empty one.
func (s *Service) ListPolicies(ctx context.Context, req *v1.ListPoliciesRequest) (*v1.ListPoliciesResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.Store.List(ctx, session.KindPolicy, page, read, nil)
	if err != nil {
		return nil, err
	}
	out := &v1.ListPoliciesResponse{NextPageToken: next, AppliedIndex: view.Index}
	if out.Policies, err = s.rows(ctx, entries, view); err != nil {
		return nil, err
	}
	return out, nil
}

// rows are trees, each under all its names. What the names point to and how many pin the
// trees is read beside what was listed: else a name that goes on to another tree meanwhile
// would be nowhere.
func (s *Service) rows(ctx context.Context, entries []session.Entry, view storage.View) (rows []*v1.Policy, err error) {
	if len(entries) == 0 {
		return nil, nil
	}
	ns := input.Namespace(ctx)
	var keys []session.Key
	for _, e := range entries {
		r := e.Record.(*session.Policy)
		for _, name := range r.Names {
			keys = append(keys, session.NameKey(ns, name))
		}
		keys = append(keys, session.PinsKeys(ns, r.Pin.Digest)...)
	}
	beside, err := s.Store.ReadBeside(ctx, view, keys)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		r, named := e.Record.(*session.Policy), false
		names, pins := beside[:len(r.Names)], beside[len(r.Names):len(r.Names)+session.PinParts]
		beside = beside[len(r.Names)+session.PinParts:]
		for i, name := range r.Names {
			if n, ok := names[i].(*session.Name); ok && n != nil && n.Digest == r.Pin.Digest {
				rows, named = append(rows, &v1.Policy{Name: name, Version: n.Version, Digest: r.Pin.Digest.String(), Pinned: pinned(pins)}), true
			}
		}
		if !named {
			rows = append(rows, &v1.Policy{Digest: r.Pin.Digest.String(), Pinned: pinned(pins)})
		}
	}
	return rows, nil
}

// DeletePolicy removes a name, or a tree with all its names. A tree that live
// sessions pin stays, and its names with it.
func (s *Service) DeletePolicy(ctx context.Context, req *v1.DeletePolicyRequest) (*v1.DeletePolicyResponse, error) {
	f := &input.Fields{}
	name, digest := nameOrDigest(f, req.GetName(), req.GetDigest())
	cmd := session.DeletePolicy{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Name: name, Digest: digest}
	if f.Err != nil {
		return nil, f.Err
	}
	if err := inScope(ctx, name); err != nil {
		return nil, err
	}
	a, err := s.Store.ChangeOn(ctx, func(stale *session.Result) (session.Command, error) {
		if stale != nil && stale.Names != nil {
			cmd.Digest, cmd.Names = stale.Digest, stale.Names
		} else if err := s.resolve(ctx, &cmd); err != nil {
			return nil, err
		}
		next := cmd
		return &next, nil
	}, func(res *session.Result) error {
		switch {
		case res.Code == session.NotFound && name != "":
			return fault.NotFound("name", "there is no policy %q", name)
		case res.Code == session.NotFound:
			return fault.NotFound("digest", "there is no policy with the digest %s", cmd.Digest)
		case res.Code == session.PolicyPinned:
			return fault.OfResult(res, "digest "+cmd.Digest.String())
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	return &v1.DeletePolicyResponse{Index: a.Index}, nil
}

// resolve fills in what the command takes for granted: what the name points
// to, and all names of that tree.
func (s *Service) resolve(ctx context.Context, cmd *session.DeletePolicy) error {
	if cmd.Name != "" {
		digest, err := s.DigestOf(ctx, cmd.NS, "name", cmd.Name)
		switch {
		case err == nil:
			cmd.Digest = digest
		case cmd.By.Request == "":
			return err
		default:
			// It may be gone because this very request removed it. The
			// command then finds its own answer before it looks at any tree.
			cmd.Digest = sha256.Sum256(nil)
		}
	}
	found, err := s.Store.Get(ctx, session.PolicyKey(cmd.NS, cmd.Digest), storage.Latest)
	if err != nil {
		return fault.OfRead(err)
	}
	cmd.Names = nil
	if r, ok := found.Record.(*session.Policy); ok && r != nil {
		cmd.Names = slices.Clone(r.Names)
	}
	return nil
}

// checkHash checks a content hash: SHA-256 in hexadecimal. It returns the form in
// which it is kept.
func checkHash(f *input.Fields, field, text string) string {
	h := strings.ToLower(strings.TrimPrefix(text, "sha256:"))
	if b, err := hex.DecodeString(h); err != nil || len(b) != 32 {
		f.Refuse(field, "must be the SHA-256 of the tool, 64 hexadecimal digits")
	}
	return h
}

// PutHash registers the content hash of a tool (adapter contract 5.5).
func (s *Service) PutHash(ctx context.Context, req *v1.PutHashRequest) (*v1.PutHashResponse, error) {
	f := &input.Fields{}
	f.Tool("tool", req.Tool)
	hash := checkHash(f, "hash", req.Hash)
	cmd := &session.PutHash{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Tool: req.Tool, Hash: hash}
	if f.Err != nil {
		return nil, f.Err
	}
	if err := ofAll(ctx); err != nil {
		return nil, err
	}
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	if a.First() {
		s.HashPut(order.TraceOf(ctx), cmd)
	}
	return &v1.PutHashResponse{Hash: &v1.ToolHash{Tool: req.Tool, Hash: hash}, Index: a.Index}, nil
}

// DeleteHash takes a registration back; one that is not there is gone already.
func (s *Service) DeleteHash(ctx context.Context, req *v1.DeleteHashRequest) (*v1.DeleteHashResponse, error) {
	f := &input.Fields{}
	f.Tool("tool", req.Tool)
	cmd := &session.PutHash{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Tool: req.Tool}
	if f.Err != nil {
		return nil, f.Err
	}
	if err := ofAll(ctx); err != nil {
		return nil, err
	}
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	if a.First() {
		s.HashPut(order.TraceOf(ctx), cmd)
	}
	return &v1.DeleteHashResponse{Index: a.Index}, nil
}

// ListHashes returns the registered hashes in the order of their tools.
func (s *Service) ListHashes(ctx context.Context, req *v1.ListHashesRequest) (*v1.ListHashesResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.Store.List(ctx, session.KindHash, page, read, nil)
	if err != nil {
		return nil, err
	}
	out := &v1.ListHashesResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		out.Hashes = append(out.Hashes, &v1.ToolHash{Tool: e.Key.Name(), Hash: e.Record.(*session.Hash).Hash})
	}
	return out, nil
}

// Hashes are the registered content hashes of a namespace, for one who judges by them.
type Hashes struct {
	// Epoch is by which of them is judged, the premise of a call: as long as it stands, no
	// hash is another one than it was when it was looked up.
	Epoch uint64
	// Err is why something could not be read: who judges must not decide without it.
	Err error

	s    *Service
	ctx  context.Context
	ns   string
	read storage.Read
}

// Hashes returns those of a namespace. See comes before the first is looked up.
func (s *Service) Hashes(ns string) Hashes { return Hashes{s: s, ns: ns} }

// See finds by which hashes is judged from here on, and under which context they are read.
func (h *Hashes) See(ctx context.Context, read storage.Read) {
	h.ctx, h.read, h.Err = ctx, read, nil
	h.Epoch = session.HashesOf(h.get(session.SignalsKey(h.ns)))
}

// Of looks up what is registered for a tool.
func (h *Hashes) Of(tool string) (hash string, ok bool) {
	if h.Epoch == 0 { // none was ever registered
		return "", false
	}
	x, _ := h.get(session.HashKey(h.ns, tool)).(*session.Hash)
	if x == nil {
		return "", false
	}
	return x.Hash, true
}

func (h *Hashes) get(k session.Key) session.Record {
	found, err := h.s.Store.Get(h.ctx, k, h.read)
	if err != nil {
		h.Err = fault.OfRead(err)
		return nil
	}
	return found.Record
}
