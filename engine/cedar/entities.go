package cedar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cedar-policy/cedar-go/types"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// addEntities reads entities.json: a list of entities in Cedar's JSON format.
func (b *backend) addEntities(f engine.File) *engine.Problem {
	tree, err := value.Parse(f.Content)
	if err != nil {
		var at *value.SyntaxError
		errors.As(err, &at)
		return &engine.Problem{Line: lineOf(f.Content, at.Offset), Message: at.Reason}
	}
	if tree.Kind() != value.List {
		return &engine.Problem{Line: 1, Message: fmt.Sprintf("a list of Cedar entities is expected, not a %s", tree.Kind())}
	}
	i := 0
	for item := range tree.Items() {
		var e types.Entity
		if err := json.Unmarshal(item.AppendJSON(nil), &e); err != nil {
			return &engine.Problem{Field: fmt.Sprintf("[%d]", i), Message: err.Error()}
		}
		if _, ok := b.entities[e.UID]; ok {
			return &engine.Problem{Field: fmt.Sprintf("[%d].uid", i), Message: fmt.Sprintf("a second entity has the uid %s", e.UID)}
		}
		b.entities[e.UID] = e
		i++
	}
	return nil
}

// lineOf returns the line, from 1, of a byte.
func lineOf(text []byte, offset int64) int {
	return 1 + bytes.Count(text[:min(int(offset), len(text))], []byte("\n"))
}
