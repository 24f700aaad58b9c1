package edictum

import (
	"regexp"
	"slices"
	"strings"

	"example.com/govnode/engine/value"
)

// What records and messages do not show.

var secretKeys = map[string]bool{
	"password": true, "secret": true, "token": true, "api_key": true, "apikey": true, "authorization": true, "auth": true,
	"credentials": true, "private_key": true, "privatekey": true, "access_token": true, "refresh_token": true,
	"client_secret": true, "connection_string": true, "database_url": true, "db_password": true, "ssh_key": true,
	"passphrase": true, "api_tokens": true, "db_passwords": true, "user_credentials": true, "oauth_secrets": true,
	"encryption_keys": true, "jwt_tokens": true,
}

var secretParts = map[string]bool{
	"token": true, "tokens": true, "key": true, "keys": true, "secret": true, "secrets": true, "password": true,
	"passwords": true, "credential": true, "credentials": true,
}

var safeKeys = map[string]bool{
	"max_tokens": true, "num_tokens": true, "input_tokens": true, "output_tokens": true, "total_tokens": true,
	"completion_tokens": true, "prompt_tokens": true, "cached_tokens": true, "reasoning_tokens": true, "audio_tokens": true,
	"cache_tokens": true, "sort_keys": true, "index_keys": true,
}

var secretAtStart = regexp.MustCompile(`^(?:sk-[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{20,}\.|ghp_[A-Za-z0-9]{36}|xox[bpas]-[A-Za-z0-9-]{10,})`)

// textParts are what is taken out of texts: what stands in the second group, if there
// are two, and all of it else.
var textParts = []*regexp.Regexp{
	regexp.MustCompile(`(export\s+\w*(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)\w*=)(\S+)`),
	regexp.MustCompile(`(-p\s*|--password[= ])(\S+)`),
	regexp.MustCompile(`(://[^:@/\s]*:)(\S+)(@)`),
}

// secretsAnywhere are secrets by their form, wherever they stand in a text.
var secretsAnywhere = regexp.MustCompile(`sk-[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}|eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_.-]*|ghp_[A-Za-z0-9]{36}|xox[bpas]-[A-Za-z0-9-]{10,}`)

const (
	mostOfArgument = 1000
	mostOfRecord   = 32768
)

// RedactArgs returns arguments as a record may hold them.
func RedactArgs(args value.Value) value.Value {
	out := redactIn(args)
	if len(out.JSON()) > mostOfRecord {
		return value.OfMap(value.Pair{Key: "_redacted", Value: value.OfString("the arguments are too large for a record")})
	}
	return out
}

func redactIn(v value.Value) value.Value {
	switch v.Kind() {
	case value.String:
		s, _ := v.AsString()
		return value.OfString(cut(redactText(s), mostOfArgument))
	case value.List:
		var items []value.Value
		for item := range v.Items() {
			items = append(items, redactIn(item))
		}
		return value.OfList(items...)
	case value.Map:
		var pairs []value.Pair
		for k, item := range v.All() {
			if secretKey(k) {
				item = value.OfString(redacted)
			} else {
				item = redactIn(item)
			}
			pairs = append(pairs, value.Pair{Key: k, Value: item})
		}
		return value.OfMap(pairs...)
	}
	return v
}

// secretKey reports whether what stands under a key is not shown.
func secretKey(key string) bool {
	key = strings.ToLower(key)
	if safeKeys[key] {
		return false
	}
	if secretKeys[key] {
		return true
	}
	parts := strings.FieldsFunc(key, func(r rune) bool { return r == '_' || r == '-' })
	return slices.ContainsFunc(parts, func(p string) bool { return secretParts[p] })
}

// redactText takes secrets out of a text of the arguments.
func redactText(s string) string {
	if secretAtStart.MatchString(s) {
		return redacted
	}
	for _, p := range textParts {
		s = p.ReplaceAllString(s, "${1}"+redacted+"${3}")
	}
	return s
}

// RedactText takes what stands where secrets do out of a command or a path.
func RedactText(s string) string { return redactText(s) }

// redactOutput takes secrets out of an output, wherever they stand.
func redactOutput(s string) string {
	s = secretsAnywhere.ReplaceAllString(s, redacted)
	for _, p := range textParts {
		s = p.ReplaceAllString(s, "${1}"+redacted+"${3}")
	}
	return s
}
