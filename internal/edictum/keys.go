package edictum

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Keys, by which it is known who asks. They stand in a file, by their hashes.

// A Role says what the holder of a key may do.
type Role string

// The roles. An agent counts, asks and tells; it decides no approval and puts no
// ruleset. An operator may do both.
const (
	Agent    Role = "agent"
	Operator Role = "operator"
)

// A Key is who asks.
type Key struct {
	Name        string `yaml:"name"`        // under which an operator votes
	Hash        string `yaml:"hash"`        // sha256: and 64 hexadecimal digits, of the key
	Namespace   string `yaml:"namespace"`   // "default" if empty
	Environment string `yaml:"environment"` // of rulesets, the only one that it reaches; if empty any, and "production" where none is named
	Role        Role   `yaml:"role"`        // agent if empty
}

// Keys are those of one file. They do not change.
type Keys struct{ byHash map[string]Key }

const (
	keyPrefix          = "gnk_"
	defaultEnvironment = "production"
)

// NewKey draws a key, and returns it with its hash.
func NewKey() (key, hash string) {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(b)
	return key, HashOf(key)
}

// HashOf is what a file of keys holds of a key.
func HashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// LoadKeys reads a file of keys: YAML, a list under "keys".
func LoadKeys(path string) (*Keys, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := ParseKeys(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// A keyFile is what a file of keys holds.
type keyFile struct {
	Keys []Key `yaml:"keys"`
}

// ParseKeys reads what a file of keys holds.
func ParseKeys(b []byte) (*Keys, error) {
	var file keyFile
	d := yaml.NewDecoder(strings.NewReader(string(b)))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		return nil, fmt.Errorf("keys: %w; the file holds a list under keys, each with name, hash, namespace, environment and role", err)
	}
	if len(file.Keys) == 0 {
		return nil, errors.New("keys: there is none; make one with `govnode edictum key`")
	}
	k := &Keys{byHash: map[string]Key{}}
	for i, key := range file.Keys {
		if err := key.complete(); err != nil {
			return nil, fmt.Errorf("keys[%d].%w", i, err)
		}
		if _, there := k.byHash[key.Hash]; there {
			return nil, fmt.Errorf("keys[%d].hash: it stands here twice; each key has one entry", i)
		}
		k.byHash[key.Hash] = key
	}
	return k, nil
}

// identifier is what the SDKs take for a name.
var identifier = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)

func (k *Key) complete() error {
	if k.Namespace == "" {
		k.Namespace = "default"
	}
	if k.Role == "" {
		k.Role = Agent
	}
	switch {
	case !identifier.MatchString(k.Name):
		return fmt.Errorf("name: %q is no name; use 1 to 128 letters, digits and . _ -", k.Name)
	case !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(k.Hash):
		return errors.New("hash: it is no sha256: and 64 hexadecimal digits; `govnode edictum key` prints one")
	case !regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`).MatchString(k.Namespace):
		return fmt.Errorf("namespace: %q is no name; use 1 to 64 letters, digits and . _ -", k.Namespace)
	case k.Environment != "" && !identifier.MatchString(k.Environment):
		return fmt.Errorf("environment: %q is no name; use 1 to 128 letters, digits and . _ -", k.Environment)
	case k.Role != Agent && k.Role != Operator:
		return fmt.Errorf("role: %q is neither agent nor operator", k.Role)
	}
	return nil
}

// of finds the key of a request. What is compared is the hash, so that the time it
// takes tells nothing of a key.
func (k *Keys) of(header string) (Key, bool) {
	if k == nil { // nobody has one
		return Key{}, false
	}
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Key{}, false
	}
	key, known := k.byHash[HashOf(strings.TrimSpace(token))]
	return key, known
}
