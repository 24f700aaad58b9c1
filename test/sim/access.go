package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/alone"
)

const (
	goneToken  = alone.Prefix + "gone" // revoked behind the copy
	leftToken  = alone.Prefix + "left"
	sinceToken = alone.Prefix + "since" // made behind the copy
)

// A lateAccess is who may do what in a namespace that nobody else uses, part of which is
// changed behind the copy of a state that is restored then.
type lateAccess struct {
	*worker
	asked     govnodev1connect.AccessServiceClient // whoever makes the changes
	namespace string
	sure      bool // all of it was acknowledged
	epoch     uint64
}

func (w *worker) lateAccess(rng *rand.Rand) *lateAccess {
	return &lateAccess{w, w.accessAt(w.fleet.hosts[rng.IntN(len(w.fleet.hosts))]), fmt.Sprintf("late-%d", rng.Uint64()), true, 0}
}

func (w *worker) accessAt(h *host) govnodev1connect.AccessServiceClient {
	return govnodev1connect.NewAccessServiceClient(w.http, "http://"+h.apiAddress())
}

// ask asks once: what is asked twice may come late.
func (l *lateAccess) ask(ctx context.Context, do func(ctx context.Context) error) {
	if l.sure {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		l.sure = do(ctx) == nil
	}
}

func (l *lateAccess) makes(ctx context.Context, id string) {
	secret := sha256.Sum256([]byte(id))
	l.ask(ctx, func(ctx context.Context) error {
		_, err := l.asked.CreateToken(ctx, &v1.CreateTokenRequest{
			RequestId: newID(), Client: l.name, Namespace: l.namespace, TokenId: id, SecretSha256: secret[:], Roles: []v1.Role{v1.Role_ROLE_AGENT},
		})
		return err
	})
}

func (l *lateAccess) before(ctx context.Context) { l.makes(ctx, goneToken); l.makes(ctx, leftToken) }

// since revokes a token, makes one, denies a subject and sets a quota.
func (l *lateAccess) since(ctx context.Context) {
	l.ask(ctx, func(ctx context.Context) error {
		_, err := l.asked.RevokeToken(ctx, &v1.RevokeTokenRequest{RequestId: newID(), Client: l.name, Namespace: l.namespace, TokenId: goneToken})
		return err
	})
	l.makes(ctx, sinceToken)
	l.ask(ctx, func(ctx context.Context) error {
		_, err := l.asked.DenySubject(ctx, &v1.DenySubjectRequest{RequestId: newID(), Client: l.name, Namespace: l.namespace, Subject: "cert:since", Reason: "why"})
		return err
	})
	l.ask(ctx, func(ctx context.Context) error {
		_, err := l.asked.PutQuotas(ctx, &v1.PutQuotasRequest{RequestId: newID(), Client: l.name, Namespace: l.namespace, Quotas: &v1.Quotas{Sessions: 7}})
		return err
	})
	l.ask(ctx, func(ctx context.Context) error {
		res, err := l.asked.ListTokens(ctx, &v1.ListTokensRequest{Namespace: l.namespace})
		l.epoch = res.GetEpoch()
		return err
	})
}

// stays holds each node to what there was before the restore.
func (l *lateAccess) stays(ctx context.Context) {
	if !l.sure {
		return
	}
	for _, h := range l.fleet.hosts {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		list, err := l.accessAt(h).ListTokens(ctx, &v1.ListTokensRequest{Namespace: l.namespace})
		quotas, fails := l.accessAt(h).GetQuotas(ctx, &v1.GetQuotasRequest{Namespace: l.namespace})
		cancel()
		if err != nil || fails != nil {
			continue
		}
		var tokens, denied []string
		for _, t := range list.Tokens {
			tokens = append(tokens, t.TokenId)
		}
		for _, d := range list.Denied {
			denied = append(denied, d.Subject+" "+d.Reason)
		}
		got := fmt.Sprint(tokens, denied, quotas.Quotas.GetSessions())
		if want := fmt.Sprint([]string{leftToken, sinceToken}, []string{"cert:since why"}, 7); got != want || list.Epoch <= l.epoch {
			l.recorder.broke("restore", "a restore leaves who may do what as the cluster knows it, %s with epoch %d, and %s has %s with epoch %d", want, l.epoch, h.name, got, list.Epoch)
		}
	}
}
