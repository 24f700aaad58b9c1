package access

import (
	"strings"
)

// The text of a token is gn_NAMESPACE.ID.SECRET: the node finds its record by the
// first two, and people see which one it is.

// TokenPrefix begins the text of every token, so that scanners for secrets find it.
const TokenPrefix = "gn_"

// Bounds of the parts of a token.
const (
	MinTokenID, MaxTokenID   = 4, 32
	MinSecretText, MaxSecret = 22, 128
	maxToken                 = len(TokenPrefix) + 64 + 1 + MaxTokenID + 1 + MaxSecret
)

// splitToken takes the text of a token apart; ok is false where it is none.
func splitToken(text string) (ns, id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, TokenPrefix)
	if !ok || len(text) > maxToken {
		return "", "", "", false
	}
	i := strings.LastIndexByte(rest, '.')
	if i < 0 {
		return "", "", "", false
	}
	rest, secret = rest[:i], rest[i+1:]
	if i = strings.LastIndexByte(rest, '.'); i < 1 {
		return "", "", "", false
	}
	ns, id = rest[:i], rest[i+1:]
	return ns, id, secret, TokenIDProblem(id) == "" && len(secret) >= MinSecretText && len(secret) <= MaxSecret
}

// TokenIDProblem says what is wrong with the id of a token, or nothing.
func TokenIDProblem(id string) string {
	if len(id) < MinTokenID || len(id) > MaxTokenID {
		return "has to have 4 to 32 small letters and digits"
	}
	for i := range len(id) {
		if c := id[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "has to have 4 to 32 small letters and digits"
		}
	}
	return ""
}
