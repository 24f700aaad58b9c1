package client

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"

	"example.com/govnode/client/internal/ids"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Sessions: how one is created, read and closed.

// A Session says how to create a session (adapter contract 3.5).
type Session struct {
	ID           string // drawn if empty
	Agent        string // must be set
	Policy       string // name; its newest tree is pinned for good
	PolicyDigest string // pins this tree instead
	IdleTTL      time.Duration
	Parent       string // id of another session
	Attributes   map[string]string
	// Secret has a secret drawn that calls of the session bring; nobody else's are
	// admitted, whatever token they have. See OpenSession.Secret.
	Secret bool
}

// An OpenSession is a session that calls are begun in. It is safe for
// concurrent use.
type OpenSession struct {
	c      *Client
	id     string
	secret string // that its calls bring; empty: they need none
}

// CreateSession starts a session. What it needs of the policy is fixed at that
// moment.
func (c *Client) CreateSession(ctx context.Context, s Session) (*OpenSession, error) {
	if err := ids.Check("Session.ID", s.ID); err != nil {
		return nil, err
	}
	if (s.Policy == "") == (s.PolicyDigest == "") {
		return nil, errors.New("client: Session: set one of Policy and PolicyDigest")
	}
	ref := &govnodev1.PolicyRef{Ref: &govnodev1.PolicyRef_Name{Name: s.Policy}}
	if s.PolicyDigest != "" {
		ref.Ref = &govnodev1.PolicyRef_Digest{Digest: s.PolicyDigest}
	}
	req := &govnodev1.CreateSessionRequest{
		SessionId: s.ID, AgentId: s.Agent, Policy: ref, IdleTtl: optional(s.IdleTTL),
		ParentSessionId: s.Parent, Attributes: s.Attributes,
	}
	secret := ""
	if s.Secret {
		var err error
		if secret, err = c.drawSecret(); err != nil {
			return nil, err
		}
		sum := sha256.Sum256([]byte(secret))
		req.SessionTokenSha256 = sum[:]
	}
	_, err := change(ctx, c, "CreateSession", &req.SessionId, func(ctx context.Context, n *node) (*govnodev1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &OpenSession{c: c, id: req.GetSessionId(), secret: secret}, nil
}

// Session returns a session that exists already, under its id. Nothing is
// asked of the service.
func (c *Client) Session(id string) *OpenSession { return &OpenSession{c: c, id: id} }

// SessionWith is Session for one that was created with a secret.
func (c *Client) SessionWith(id, secret string) *OpenSession {
	return &OpenSession{c: c, id: id, secret: secret}
}

// Secret is what calls of the session bring, for another process that makes some;
// empty if they need none. The service knows its hash alone.
func (s *OpenSession) Secret() string { return s.secret }

// drawSecret draws 256 bits.
func (c *Client) drawSecret() (string, error) {
	var b [32]byte
	if _, err := io.ReadFull(c.cfg.Entropy, b[:]); err != nil {
		return "", fmt.Errorf("client: Entropy: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b[:]), nil
}

// ID returns the id of the session.
func (s *OpenSession) ID() string { return s.id }

// Read returns the session as it stands, after every change that was
// acknowledged before. It is a message of govnode/v1.
func (s *OpenSession) Read(ctx context.Context) (*govnodev1.Session, error) {
	res, err := read(ctx, s.c, "GetSession", func(ctx context.Context, n *node) (*govnodev1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &govnodev1.GetSessionRequest{SessionId: s.id})
	})
	return res.GetSession(), err
}

// Close ends the session, and returns how many leases of it ended. A session that
// is closed already stays as it is.
func (s *OpenSession) Close(ctx context.Context) (released int, err error) {
	id := s.id
	res, err := change(ctx, s.c, "CloseSession", &id, func(ctx context.Context, n *node) (*govnodev1.CloseSessionResponse, error) {
		return n.sessions.CloseSession(ctx, &govnodev1.CloseSessionRequest{SessionId: id})
	})
	return int(res.GetReleased()), err
}

// change sends a request whose id stands in a field of it, and is drawn if that
// is empty.
func change[Res any](ctx context.Context, c *Client, name string, id *string, ask func(context.Context, *node) (Res, error)) (res Res, err error) {
	if err := c.enter(); err != nil {
		return res, fmt.Errorf("%s: %w", name, err)
	}
	defer c.leave()
	op := operation{name: name}
	if err := c.identify(&op, id); err != nil {
		return res, err
	}
	return send(ctx, c, op, func(e *errand) (Res, error) {
		return alone(e, func(ctx context.Context) (Res, error) { return ask(ctx, e.node) })
	})
}

// read sends a request that changes nothing.
func read[Res any](ctx context.Context, c *Client, name string, ask func(context.Context, *node) (Res, error)) (Res, error) {
	return readAfter(ctx, c, name, 0, ask)
}

// readAfter is read where a node may hold its answer back for as long as wait.
func readAfter[Res any](ctx context.Context, c *Client, name string, wait time.Duration, ask func(context.Context, *node) (Res, error)) (res Res, err error) {
	if err := c.enter(); err != nil {
		return res, fmt.Errorf("%s: %w", name, err)
	}
	defer c.leave()
	return send(ctx, c, operation{name: name, reads: true, wait: wait}, func(e *errand) (Res, error) {
		return alone(e, func(ctx context.Context) (Res, error) { return ask(ctx, e.node) })
	})
}
