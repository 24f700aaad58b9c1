package edictum

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"example.com/govnode/client"
	"example.com/govnode/engine/value"
)

// Sessions: values and counters by key, as the SDKs' storage has them.

// sessions answers /v1/sessions/KEY, KEY/increment and batch. A key is the whole
// rest of the path, since names of tools may have slashes.
func (q *request) sessions() (any, error) {
	key := strings.Join(q.rest, "/")
	if q.Method != http.MethodGet && (strings.HasPrefix(key, assignmentPrefix) || strings.HasPrefix(key, signaturePrefix)) {
		return nil, refuse(http.StatusForbidden, "path: keys below %s and %s have methods of their own", assignmentPrefix, signaturePrefix)
	}
	counted, increments := strings.CutSuffix(key, "/increment")
	switch {
	case key == "":
		return nil, refuse(http.StatusNotFound, "path: the key is missing: /v1/sessions/KEY")
	case q.Method == http.MethodPost && key == "batch":
		return q.batch()
	case q.Method == http.MethodPost && increments && counted != "":
		return q.increment(counted)
	}
	if err := q.methods(http.MethodGet, http.MethodPut, http.MethodDelete); err != nil {
		return nil, err
	}
	switch q.Method {
	case http.MethodGet:
		var v client.Value
		var err error
		if !q.foreign(key) {
			v, err = q.api.Get(q.Context(), key)
		}
		if err == nil && !v.Found {
			err = refuse(http.StatusNotFound, "the key has no value")
		}
		return map[string]string{"value": v.Text}, err
	case http.MethodPut:
		body, err := q.body()
		if err != nil {
			return nil, err
		}
		set, err := text(body, "value", true)
		if err != nil {
			return nil, err
		}
		_, err = q.api.Set(q.Context(), key, set, client.Write{})
		return map[string]string{"value": set}, err
	}
	found, err := q.api.Delete(q.Context(), key, "")
	return map[string]any{"value": nil, "found": found}, err
}

// foreign reports whether a key holds the signature of a ruleset in an environment that the
// request does not reach. It is answered like one that holds nothing.
func (q *request) foreign(key string) bool {
	of, is := strings.CutPrefix(key, signaturePrefix)
	own := q.key.Environment
	return is && own != "" && !strings.HasPrefix(of, own+"/")
}

func (q *request) increment(key string) (any, error) {
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	amount, there := body.Get("amount")
	switch {
	case !there:
		amount = value.OfInt(1)
	case amount.Kind() != value.Number:
		return nil, refuse(http.StatusBadRequest, "amount: it must be a number")
	}
	sum, err := q.api.Increment(q.Context(), key, decimal(amount))
	return map[string]json.Number{"value": json.Number(sum)}, err
}

// decimal is a number as the API has it: 1.0 is what Python sends for 1.
func decimal(v value.Value) string {
	text := v.Repr()
	if whole, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" {
		return whole
	}
	return text
}

// most is how many keys the API reads at once.
const most = 1000

func (q *request) batch() (any, error) {
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	list, _ := body.Get("keys")
	if list.Kind() != value.List {
		return nil, refuse(http.StatusBadRequest, "keys: it must be a list of texts")
	}
	var keys []string
	for k := range list.Items() {
		if k.Kind() != value.String {
			return nil, refuse(http.StatusBadRequest, "keys: it must be a list of texts")
		}
		keys = append(keys, k.Str())
	}
	slices.Sort(keys)
	keys = slices.DeleteFunc(slices.Compact(keys), q.foreign)
	if len(keys) > most {
		return nil, refuse(http.StatusBadRequest, "keys: %d are more than %d", len(keys), most)
	}
	values := map[string]string{}
	if len(keys) > 0 {
		found, err := q.api.GetMany(q.Context(), keys...)
		if err != nil {
			return nil, err
		}
		for k, v := range found {
			values[k] = v.Text
		}
	}
	return map[string]any{"values": values}, nil
}
