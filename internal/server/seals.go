package server

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"example.com/govnode/internal/server/fault"
)

// Seals: where digests of arguments have a key, arguments and outputs that have to be kept
// are sealed, so that they stand in no file as they were sent. The key is part of the state:
// a seal keeps them from who looks through files and backups, and not from who takes a state
// apart.

const (
	sealMark = "sealed:1:" // before a text that is sealed, in base64
	unsealed = "(these arguments are sealed with the key of another state and cannot be shown)"
)

// A sealer seals what is kept. Its key may be one that it alone reads, to open what was
// sealed before chains were switched off.
type sealer struct {
	key *digestKey
	on  bool
}

// seal returns a text as it is kept. The same text is sealed to the same: a command that is
// sent again is the same command.
func (s *sealer) seal(ctx context.Context, ns, about, text string) (string, error) {
	if !s.on || text == "" {
		return text, nil
	}
	box, key := s.box(ctx, ns)
	if box == nil {
		return "", fault.NotApplied("the key of the state is not known yet")
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("nonce\x00" + about + "\x00" + text))
	nonce := mac.Sum(nil)[:box.NonceSize()]
	return sealMark + base64.RawStdEncoding.EncodeToString(box.Seal(nonce, nonce, []byte(text), nil)), nil
}

// open returns a text as it was before it was kept; false if that cannot be told.
func (s *sealer) open(ctx context.Context, ns, kept string) (text string, ok bool) {
	coded, sealed := strings.CutPrefix(kept, sealMark)
	if !sealed {
		return kept, true
	}
	b, err := base64.RawStdEncoding.DecodeString(coded)
	box, _ := s.box(ctx, ns)
	if err != nil || box == nil || len(b) < box.NonceSize() {
		return "", false
	}
	plain, err := box.Open(nil, b[:box.NonceSize()], b[box.NonceSize():], nil)
	return string(plain), err == nil
}

// show is open for people.
func (s *sealer) show(ctx context.Context, ns, kept string) string {
	if text, ok := s.open(ctx, ns, kept); ok {
		return text
	}
	return unsealed
}

// box is what seals in a namespace; nil while the key is not known.
func (s *sealer) box(ctx context.Context, ns string) (cipher.AEAD, []byte) {
	key := s.key.derived(ctx, "govnode.sealed.1", ns)
	if key == nil {
		return nil, nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // of a key whose length is right
	}
	box, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return box, key
}
