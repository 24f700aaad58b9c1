// Package tokens is how tokens are made, listed and revoked, subjects denied, and the
// quotas of a namespace set.
//
// It finds out nobody: that is package access. A secret never comes here: whoever makes
// a token draws it, and sends its hash.
package tokens
