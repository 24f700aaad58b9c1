package wire

import (
	"unique"
)

// Names keeps one copy of what many records name. The nil Names only looks
// names up. It is bounded, for names come from clients; beyond the bound it
// costs time and changes nothing.
type Names struct {
	names map[string]unique.Handle[string]
	empty unique.Handle[string]
}

const maxNames = 1 << 16

// NewNames returns Names that keeps none yet.
func NewNames() *Names {
	return &Names{names: map[string]unique.Handle[string]{}, empty: unique.Make("")}
}

func (t *Names) handle(b []byte) unique.Handle[string] {
	if t == nil {
		return unique.Make(string(b))
	}
	if len(b) == 0 {
		return t.empty
	}
	if h, ok := t.names[string(b)]; ok {
		return h
	}
	h := unique.Make(string(b))
	if len(t.names) < maxNames {
		t.names[h.Value()] = h
	}
	return h
}
