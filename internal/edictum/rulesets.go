package edictum

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// Rulesets: policies of the service, one for each name and environment. Their raw
// bytes are what SDKs verify and name by their hash.

const (
	rulesetFile = "ruleset.yaml"
	// signaturePrefix and assignmentPrefix begin the keys of values.
	signaturePrefix  = "edictum/signature/"
	assignmentPrefix = "edictum/assignment/"
)

// policyName is the name of the policy that a ruleset is. Neither of the two has a slash
// in it.
func policyName(env, name string) string { return policyPrefix(env) + name }

func policyPrefix(env string) string { return "edictum/" + env + "/" }

// signatureKey is under which the signature of the bytes with this hash is kept. Those of
// other bytes have other keys, so that a ruleset which is refused, or is put at the same
// time, takes no other's away.
func signatureKey(env, name, hash string) string {
	return signaturePrefix + env + "/" + name + "/" + hash
}

// A ruleset is one as the SDKs read it.
type ruleset struct {
	Name         string  `json:"name"`
	Version      int32   `json:"version"`
	Env          string  `json:"env"`
	YAML         string  `json:"yaml"`
	YAMLBytes    string  `json:"yaml_bytes"`
	RevisionHash string  `json:"revision_hash"`
	Signature    *string `json:"signature"`
	PublicKey    *string `json:"public_key"`
}

// A signature is what is kept of one.
type signature struct {
	Signature string `json:"signature"`
	PublicKey string `json:"public_key"`
}

// rulesets answers /v1/rulesets/NAME and /v1/rulesets/NAME/current.
func (q *request) rulesets() (any, error) {
	switch {
	case len(q.rest) == 2 && q.rest[1] == "current":
		if err := q.methods(http.MethodGet); err != nil {
			return nil, err
		}
		env, err := q.env()
		if err != nil {
			return nil, err
		}
		return q.current(env, q.rest[0])
	case len(q.rest) == 1 && q.rest[0] != "":
		if err := q.methods(http.MethodPut); err != nil {
			return nil, err
		}
		return q.putRuleset(q.rest[0])
	}
	return nil, refuse(http.StatusNotFound, "path: a ruleset is /v1/rulesets/NAME/current, and is put at /v1/rulesets/NAME")
}

// env is the environment that a request is about: that of its key, if it names none. A
// key that has one is bound to it.
func (q *request) env() (string, error) {
	env, own := q.URL.Query().Get("env"), q.key.Environment
	switch {
	case env == "":
		return cmp.Or(own, defaultEnvironment), nil
	case !identifier.MatchString(env):
		return "", refuse(http.StatusBadRequest, "env: %q is no name; use 1 to 128 letters, digits and . _ -", clip(env))
	case own != "" && env != own:
		return "", refuse(http.StatusForbidden, "env: the key is bound to the environment %q; leave env out, or use a key of %q", own, clip(env))
	}
	return env, nil
}

// current reads a ruleset.
func (q *request) current(env, name string) (*ruleset, error) {
	if !identifier.MatchString(name) {
		return nil, refuse(http.StatusBadRequest, "path: %q is no name of a ruleset; use 1 to 128 letters, digits and . _ -", clip(name))
	}
	p, err := q.api.GetPolicy(q.Context(), policyName(env, name))
	var objection *client.Error
	if errors.As(err, &objection) && objection.Reason == client.ReasonNotFound {
		return nil, refuse(http.StatusNotFound, "there is no ruleset %q in %q", clip(name), clip(env))
	}
	if err != nil {
		return nil, err
	}
	raw := ""
	for _, f := range p.GetFiles() {
		if f.GetPath() == rulesetFile {
			raw = f.GetContent()
		}
	}
	if raw == "" {
		return nil, refuse(http.StatusNotFound, "policy %q was not put here: it has no %s", p.GetName(), rulesetFile)
	}
	r := &ruleset{
		Name: name, Version: p.GetVersion(), Env: env, YAML: raw, YAMLBytes: base64.StdEncoding.EncodeToString([]byte(raw)), RevisionHash: hashOf(raw),
	}
	found, err := q.api.Get(q.Context(), signatureKey(env, name, r.RevisionHash))
	if err != nil {
		return nil, err
	}
	var s signature
	if found.Found && json.Unmarshal([]byte(found.Text), &s) == nil {
		r.Signature, r.PublicKey = &s.Signature, &s.PublicKey
	}
	return r, nil
}

func hashOf(raw string) string {
	sum := sha256.Sum256([]byte(raw))
	return hex.EncodeToString(sum[:])
}

// putRuleset makes a ruleset the current one, if it is sound and its signature, where
// it has one, is that of its bytes.
func (q *request) putRuleset(name string) (any, error) {
	if err := q.operator(); err != nil {
		return nil, err
	}
	env, err := q.env()
	if err != nil {
		return nil, err
	}
	if !identifier.MatchString(name) {
		return nil, refuse(http.StatusBadRequest, "path: %q is no name of a ruleset; use 1 to 128 letters, digits and . _ -", clip(name))
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	var texts [3]string
	for i, field := range []string{"yaml", "signature", "public_key"} {
		if texts[i], err = text(body, field, i == 0); err != nil {
			return nil, err
		}
	}
	raw, kept := texts[0], signature{Signature: texts[1], PublicKey: texts[2]}
	if (kept.Signature == "") != (kept.PublicKey == "") {
		return nil, refuse(http.StatusBadRequest, "signature: give it together with public_key, or neither")
	}
	if kept.Signature != "" {
		if err := kept.verify(raw); err != nil {
			return nil, err
		}
		b, err := json.Marshal(kept)
		if err != nil {
			return nil, err
		}
		// Before the ruleset, so that no reader finds that without it.
		if _, err := q.api.Set(q.Context(), signatureKey(env, name, hashOf(raw)), string(b), client.Write{}); err != nil {
			return nil, err
		}
	}
	_, err = q.api.PutPolicyTree(q.Context(), &v1.PutPolicyRequest{
		Name: policyName(env, name), Files: []*v1.TextFile{{Path: rulesetFile, Content: raw}},
	})
	var objection *client.Error
	if errors.As(err, &objection) && objection.Reason == client.ReasonInvalidPolicy {
		return nil, refuse(http.StatusUnprocessableEntity, "%s", messageOf(objection))
	}
	if err != nil {
		return nil, err
	}
	return q.current(env, name)
}

// verify checks an Ed25519 signature over raw bytes. Keys are hexadecimal or base64,
// as SDKs have them.
func (s *signature) verify(raw string) error {
	key, err := hex.DecodeString(s.PublicKey)
	if err != nil {
		key, err = base64.StdEncoding.DecodeString(s.PublicKey)
	}
	if err != nil || len(key) != ed25519.PublicKeySize {
		return refuse(http.StatusBadRequest, "public_key: it must be the %d bytes of an Ed25519 key, in hexadecimal or base64", ed25519.PublicKeySize)
	}
	sig, err := base64.StdEncoding.DecodeString(s.Signature)
	if err != nil || len(sig) != ed25519.SignatureSize {
		return refuse(http.StatusBadRequest, "signature: it must be %d bytes in base64", ed25519.SignatureSize)
	}
	if !ed25519.Verify(ed25519.PublicKey(key), []byte(raw), sig) {
		return refuse(http.StatusUnprocessableEntity, "signature: it is not that of this ruleset by this key")
	}
	return nil
}

// agents answers /v1/agents/ID/ruleset: which ruleset an agent is to have that asks
// for none.
func (q *request) agents() (any, error) {
	if len(q.rest) != 2 || q.rest[1] != "ruleset" || !identifier.MatchString(q.rest[0]) {
		return nil, refuse(http.StatusNotFound, "path: an assignment is /v1/agents/ID/ruleset")
	}
	if err := q.methods(http.MethodPut); err != nil {
		return nil, err
	}
	if err := q.operator(); err != nil {
		return nil, err
	}
	if !q.scope.has(q.rest[0]) {
		return nil, refuse(http.StatusForbidden, "path: %s is not in the scope of the token", clip(q.rest[0]))
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	name, err := text(body, "name", true)
	if err != nil {
		return nil, err
	}
	if !identifier.MatchString(name) {
		return nil, refuse(http.StatusBadRequest, "name: %q is no name of a ruleset", clip(name))
	}
	_, err = q.api.Set(q.Context(), assignmentPrefix+q.rest[0], name, client.Write{})
	return map[string]string{"agent_id": q.rest[0], "name": name}, err
}
