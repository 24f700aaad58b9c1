package server

import (
	"context"
	"encoding/hex"
	"strings"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Content hashes of tools: how they are put, deleted and listed, and how a call
// finds them.

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
func (s policyService) PutHash(ctx context.Context, req *v1.PutHashRequest) (*v1.PutHashResponse, error) {
	f := &input.Fields{}
	f.Text("tool", req.Tool, input.Caps.Tool)
	hash := checkHash(f, "hash", req.Hash)
	cmd := &session.PutHash{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Tool: req.Tool, Hash: hash}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.change(ctx, cmd, requestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.audit.hashPut(traceOf(ctx), cmd)
	return &v1.PutHashResponse{Hash: &v1.ToolHash{Tool: req.Tool, Hash: hash}, Index: a.Index}, nil
}

// DeleteHash takes a registration back; one that is not there is gone already.
func (s policyService) DeleteHash(ctx context.Context, req *v1.DeleteHashRequest) (*v1.DeleteHashResponse, error) {
	f := &input.Fields{}
	f.Text("tool", req.Tool, input.Caps.Tool)
	cmd := &session.PutHash{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Tool: req.Tool}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.change(ctx, cmd, requestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.audit.hashPut(traceOf(ctx), cmd)
	return &v1.DeleteHashResponse{Index: a.Index}, nil
}

// ListHashes returns the registered hashes in the order of their tools.
func (s policyService) ListHashes(ctx context.Context, req *v1.ListHashesRequest) (*v1.ListHashesResponse, error) {
	f := &input.Fields{}
	read := readOf(f, req.Consistency)
	page := pageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.list(ctx, session.KindHash, page, read, nil)
	if err != nil {
		return nil, err
	}
	out := &v1.ListHashesResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		out.Hashes = append(out.Hashes, &v1.ToolHash{Tool: e.Key.Name(), Hash: e.Record.(*session.Hash).Hash})
	}
	return out, nil
}

// contentHash looks up what is registered for a tool. What cannot be read is put
// into failed: whoever asked must not decide without it.
func (s *Server) contentHash(ctx context.Context, ns string, failed *error) func(string) (string, bool) {
	return func(tool string) (string, bool) {
		found, err := s.store.Get(ctx, session.HashKey(ns, tool), storage.Nearby)
		if err != nil {
			*failed = fault.OfRead(err)
			return "", false
		}
		h, ok := found.Record.(*session.Hash)
		if !ok || h == nil {
			return "", false
		}
		return h.Hash, true
	}
}
