package redact

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/value"
)

// Redaction by the scan finds what the expressions alone would.

// redactPlain is Redact by the expressions alone.
func redactPlain(text string) string {
	for _, p := range piiPatterns {
		text = p.re.ReplaceAllLiteralString(text, "[REDACTED:"+p.Name+"]")
	}
	return text
}

// checkRedact holds the scan to the expressions: it may name a kind too many,
// never one too few, and nothing of it shows in the result.
func checkRedact(t *testing.T, text string) {
	t.Helper()
	may := piiCandidates(text)
	for kind, p := range piiPatterns {
		if p.re.MatchString(text) {
			require.True(t, may.has(piiKind(kind)), "%s is in %q", p.Name, text)
		}
	}
	require.Equal(t, redactPlain(text), Text(text), "%q", text)
	checkFind(t, text)
}

// checkFind holds that of what is wanted nothing is left, and that of what is not
// wanted nothing is said.
func checkFind(t *testing.T, text string) {
	t.Helper()
	for _, wanted := range []func(Class) bool{
		func(Class) bool { return true }, func(Class) bool { return false },
		func(c Class) bool { return c == Credentials }, func(c Class) bool { return c == PersonalData },
	} {
		redacted, found, ok := Find(text, wanted)
		require.Equal(t, len(found) > 0, redacted != text, "%q", text)
		for _, f := range found {
			require.True(t, wanted(f.Class))
			require.Positive(t, f.Count)
		}
		if !ok {
			continue // who asked denies
		}
		for kind, p := range piiPatterns {
			require.False(t, wanted(classOf(piiKind(kind))) && p.re.MatchString(redacted), "%s is left of %q in %q", p.Name, text, redacted)
		}
	}
}

// What is found is counted by kind, and of its class.
func TestFind(t *testing.T) {
	all := func(Class) bool { return true }
	redacted, found, ok := Find("a@b.co wrote to c@d.org: password=x, sk-abcdefghijklmnopqrst, 123-45-6789", all)
	require.True(t, ok)
	require.Equal(t, "[REDACTED:email] wrote to [REDACTED:email]: [REDACTED:credential] [REDACTED:access_key], [REDACTED:ssn]", redacted)
	require.Equal(t, []Found{{Credentials, "access_key", 1}, {Credentials, "credential", 1}, {PersonalData, "email", 2}, {PersonalData, "ssn", 1}}, found)
	classes := map[string]Class{"jwt": Credentials, "private_key": Credentials, "bearer": Credentials, "access_key": Credentials, "credential": Credentials,
		"email": PersonalData, "card": PersonalData, "ssn": PersonalData}
	require.Len(t, piiPatterns, len(classes))
	for kind, p := range piiPatterns {
		require.Equal(t, classes[p.Name], classOf(piiKind(kind)), p.Name)
	}
}

// A text that goes on changing is not called clean.
func TestFindGivesUp(t *testing.T) {
	text := "123-45-6789"
	for range 4 * maxPasses {
		text += "password=123-45-6789"
	}
	redacted, _, ok := Find(text, func(Class) bool { return true })
	if ok {
		require.Equal(t, redactPlain(redacted), redacted)
	}
}

// piiSamples hold each pattern, and what is nearly one.
var piiSamples = []string{
	"eyJhbGciOiJI.eyJzdWIiOi.c2ln", "eyJhbGciOiJI.eyJzdWIiOi", "eyJhbGci.eyJzdWIi", "xeyJhbGciOiJI.eyJzdWIiOi", "eyJhbGciOiJI.eyJz",
	"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----MII", "----BEGIN PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----",
	"Bearer abcdefgh", "bEARER\t~~~~====", "bearer abcdefg", "forbearer abcdefgh", "bearerabcdefgh",
	"AKIAABCDEFGHIJKLMNOP", "ASIA0123456789ABCDEF", "AKIAABCDEFGHIJKLMNO", "xAKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOPQ",
	"ghp_abcdefghijklmnopqrst", "gho_ABCDEFGHIJ0123456789x", "ghx_abcdefghijklmnopqrst", "aghp_abcdefghijklmnopqrst", "sk-abcdefghijklmnopqrst", "task-abcdefghijklmnopqrst", "sk-short",
	"password=hunter2", "PassWord : \"a b\"", "paſſword=x", "toKen=x", "passwd='x y'", "my_secret:x", "'secret' : x", "api_key=x", "API-KEY=x", "apikey\" = x", "ap_key=x", "secret\":x", "secret ' : x", "word: x", "monkey: x", "token=", "token = \n\t",
	"jane.doe@example.org", "a@b.co", "a@b.c", "@example.org", "a@", "é@b.co", "a@é.co", "a@.co",
	"4111111111111111", "4222222222222", "5500000000000004", "5600000000000004", "41111111111111112", "411111111111111", "x4111111111111111", "4111111111111111x",
	"123-45-6789", "123 45 6789", "123.45.6789", "123456789", "123\n456789", "123-45-67890", "0123-45-6789", "x123-45-6789", "123-45-6789x", "123--45-6789", "123-45-678",
	// Only the mark of what is found first makes these what they are then.
	"123-45-6789password=x", "123-45-6789secret:y z", "a@b.cotoken=x",
}

func TestRedactIsWhatTheExpressionsSay(t *testing.T) {
	for _, s := range piiSamples {
		checkRedact(t, s)
		checkRedact(t, "é"+s+"é")
		checkRedact(t, "\xff"+s+"\xff")
	}
	glue := []string{"", " ", "_", "-", ".", ":", "=", "\"", "'", "\n", "a", "Z", "7", "é", "ſ", "\u212a", "\xe2", "@", "key", "b", "-----"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		var b strings.Builder
		for range 1 + r.IntN(4) {
			s := piiSamples[r.IntN(len(piiSamples))]
			if r.IntN(3) == 0 { // a part of it
				from := r.IntN(len(s))
				s = s[from : from+r.IntN(len(s)-from)+1]
			}
			b.WriteString(s)
			b.WriteString(glue[r.IntN(len(glue))])
		}
		checkRedact(t, b.String())
	}
}

func FuzzRedact(f *testing.F) {
	for _, s := range piiSamples {
		f.Add(s)
	}
	f.Fuzz(checkRedact)
}

// Every kind has samples that hold it, or the tests above hold the scan to
// nothing.
func TestEveryKindIsInTheSamples(t *testing.T) {
	for _, p := range piiPatterns {
		hits, misses := 0, 0
		for _, s := range piiSamples {
			if p.re.MatchString(s) {
				hits++
			} else if piiCandidates(s) == 0 {
				misses++
			}
		}
		require.Positive(t, hits, p.Name)
		require.Greater(t, misses, len(piiSamples)/4, p.Name)
	}
}

// plainText is a kilobyte of what arguments mostly are: nothing to redact, and
// yet quotes, colons, numbers and dates.
var plainText = strings.Repeat(`{"path":"docs/read-me.md","limit":10,"since":"2026-11-21T10:33:00Z","monkey":true,"note":"the task takes a while; ask for it"} `, 8)

func TestRedactOfPlainTextAllocatesNothing(t *testing.T) {
	require.Zero(t, piiCandidates(plainText))
	require.Equal(t, plainText, Text(plainText))
	v := parse(t, `{"path":"docs/read-me.md","limit":10,"list":["a",{"b":[15,true,null]}],"token_count":12345678}`)
	require.Equal(t, v.JSON(), Value(v).JSON())
	require.Zero(t, testing.AllocsPerRun(100, func() {
		Text(plainText)
		Value(v)
	}))
}

// What is redacted in a tree stands beside what is not, in its place.
func TestRedactValueInPlace(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":1,"b":"jane@example.org","c":[1,2]}`:       `{"a":1,"b":"[REDACTED:email]","c":[1,2]}`,
		`["x",["y",4111111111111111],"z"]`:               `["x",["y","[REDACTED:card]"],"z"]`,
		`{"a":{"dbPassword":{"x":1},"k":null},"z":true}`: `{"a":{"dbPassword":"[REDACTED]","k":null},"z":true}`,
		`{"a":1,"jane@example.org":2,"z":3}`:             `{"a":1,"[REDACTED:email]":2,"z":3}`,
		`[1234567,99999999,123456789,-123456789]`:        `[1234567,99999999,"[REDACTED:ssn]","-[REDACTED:ssn]"]`,
		`[123.456789,1e3]`:                               `["[REDACTED:ssn]",1e3]`,
		`{"token":"x","token_count":5,"token_ok":true}`:  `{"token":"[REDACTED]","token_count":5,"token_ok":true}`,
		`{"secret":null,"x":"plain"}`:                    `{"secret":null,"x":"plain"}`,
	} {
		require.Equal(t, want, Value(parse(t, in)).JSON(), in)
	}
}

// mayNameSecret leaves out no key that names a secret, in whatever letters.
func TestMayNameSecret(t *testing.T) {
	text := value.OfString("x")
	secret := 0
	check := func(key string) {
		words := strings.Fields(string(appendWords(nil, key)))
		for i, w := range words {
			if secretWords[w] || w == "token" || i > 0 && w == "key" {
				require.True(t, mayNameSecret(key), key)
				secret++
			}
		}
		require.Equal(t, secretKey(key, text), secretKey(key, text) && mayNameSecret(key))
	}
	for w := range secretWords {
		for _, format := range []string{"%s", "my_%s", "%s.x", "x-%s-y", "é%s", "a %s"} {
			check(fmt.Sprintf(format, w))
			check(fmt.Sprintf(format, strings.ToUpper(w)))
		}
	}
	for _, key := range []string{"accessToken", "TOKEN", "to\u212aen", "api\u212aey", "privateKey", "x.access_key", "secret key", "cook\u0130e"} {
		check(key)
	}
	require.Greater(t, secret, 100)
	for _, key := range []string{"path", "limit", "tool_name", "monk", "count", "k", ""} {
		require.False(t, mayNameSecret(key), key)
	}
}

func BenchmarkRedact(b *testing.B) {
	for name, text := range map[string]string{"plain": plainText, "one": plainText + "jane@example.org"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				Text(text)
			}
		})
	}
	b.Run("expressions", func(b *testing.B) {
		b.SetBytes(int64(len(plainText)))
		for b.Loop() {
			redactPlain(plainText)
		}
	})
}

func BenchmarkRedactValue(b *testing.B) {
	v := parse(b, `{"path":"docs/readme.md","limit":10,"command":"ls -l","environment":"production","token_count":120}`)
	b.ReportAllocs()
	for b.Loop() {
		Value(v)
	}
}

func parse(tb testing.TB, json string) value.Value {
	v, err := value.Parse([]byte(json))
	require.NoError(tb, err)
	return v
}

// What stands under each name of a secret is taken out, however the name is written, and
// what has only a part of one is not.
func TestNamesOfSecrets(t *testing.T) {
	text, number := value.OfString("x"), value.OfInt(1)
	for _, word := range []string{
		"password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization", "apikey", "cookie",
		"api_key", "private_key", "access_key", "secret_key",
	} {
		for _, key := range []string{word, strings.ToUpper(word), "my_" + word, word + "_of_mine", "my-" + word, "my." + word, strings.ReplaceAll(word, "_", "-"), strings.ReplaceAll(word, "_k", "K"), "my " + word} {
			require.True(t, secretKey(key, text), key)
			require.True(t, secretKey(key, number), key)
			require.False(t, secretKey(key, value.Value{}), key)
		}
	}
	for _, key := range []string{"token", "access_token", "tokenOf", "my-token", "TOKEN"} {
		require.True(t, secretKey(key, text), key)
		require.True(t, secretKey(key, value.OfMap()), key)
		require.False(t, secretKey(key, number), key)
		require.False(t, secretKey(key, value.OfBool(true)), key)
	}
	for _, key := range []string{"key", "public_key", "sort_key", "key_api", "passwords", "tokens", "cookies", "secretary", "keyboard", "api", "api_of_key", "pass", ""} {
		require.False(t, secretKey(key, text), key)
	}
}
