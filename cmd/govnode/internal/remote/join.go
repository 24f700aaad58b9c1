package remote

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"

	"example.com/govnode/cmd/govnode/internal/config"
)

// joinPrefix begins the text of every join token. It is not that of other tokens: a
// join token is shown to nobody as it stands.
const joinPrefix = "gnj_"

// A JoinToken lets one node join. Its text is gnj_ID.SECRET.AUTHORITY, and without the
// last part where the cluster has no TLS.
type JoinToken struct {
	ID, Secret string
	// Authority is the fingerprint of who vouches for the nodes of the cluster: so the
	// secret goes to these alone. Empty without TLS.
	Authority []byte
}

// String is the text of the token.
func (t JoinToken) String() string {
	text := joinPrefix + t.ID + "." + t.Secret
	if len(t.Authority) > 0 {
		text += "." + base64.RawURLEncoding.EncodeToString(t.Authority)
	}
	return text
}

// Bearer is what a node shows to a member.
func (t JoinToken) Bearer() string { return "gn_$cluster." + t.ID + "." + t.Secret }

var errNoJoinToken = errors.New("is none; give what govnode token create --join has printed")

// ParseJoinToken reads the text of a token.
func ParseJoinToken(text string) (t JoinToken, err error) {
	rest, ok := strings.CutPrefix(text, joinPrefix)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return JoinToken{}, errNoJoinToken
	}
	t = JoinToken{ID: parts[0], Secret: parts[1]}
	if len(parts) == 3 {
		t.Authority, err = base64.RawURLEncoding.Strict().DecodeString(parts[2])
		if err != nil || len(t.Authority) != sha256.Size {
			return JoinToken{}, errNoJoinToken
		}
	}
	return t, nil
}

// JoinText is the text of the join token that is set; the error names the setting.
func JoinText(c *config.Config) (string, error) {
	if c.JoinToken != "" {
		return c.JoinToken, nil
	}
	return readToken("join-token-file", c.JoinTokenFile)
}
