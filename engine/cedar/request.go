package cedar

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cedar-policy/cedar-go/types"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// requestOf maps a call to a Cedar request as the reference does:
// Agent::"<agent id>" does Action::"<ToolName>" to Resource::"default", in the
// context of the call.
func requestOf(in engine.BackendInput) (types.Request, error) {
	agent := in.AgentID
	if agent == "" {
		agent = "anonymous"
	}
	ctx, err := recordOf(in.Context)
	if err != nil {
		return types.Request{}, fmt.Errorf("the context has no form in Cedar: %w", err)
	}
	return types.Request{
		Principal: types.NewEntityUID("Agent", types.String(agent)),
		Action:    types.NewEntityUID("Action", types.String(pascalCase(in.Tool))),
		Resource:  types.NewEntityUID("Resource", "default"),
		Context:   ctx,
	}, nil
}

// pascalCase joins the words of a snake_case name, each with a capital and the
// rest in lower case, as Python's str.capitalize has it: readURL is Readurl.
func pascalCase(name string) string {
	var out strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		first, size := utf8.DecodeRuneInString(word)
		if size == 0 {
			continue
		}
		out.WriteRune(unicode.ToTitle(first))
		out.WriteString(strings.ToLower(word[size:]))
	}
	return out.String()
}

// recordOf maps a map. Cedar has no null; a key that holds it is left out.
func recordOf(v value.Value) (types.Record, error) {
	record := make(types.RecordMap, v.Len())
	for key, item := range v.All() {
		if item.Kind() == value.Null {
			continue
		}
		c, err := valueOf(item)
		if err != nil {
			return types.Record{}, fmt.Errorf("%q: %w", key, err)
		}
		record[types.String(key)] = c
	}
	return types.NewRecord(record), nil
}

func valueOf(v value.Value) (types.Value, error) {
	switch v.Kind() {
	case value.Bool:
		b, _ := v.AsBool()
		return types.Boolean(b), nil
	case value.String:
		s, _ := v.AsString()
		return types.String(s), nil
	case value.Number:
		return numberOf(v)
	case value.List:
		var items []types.Value
		for item := range v.Items() {
			if item.Kind() == value.Null {
				continue
			}
			c, err := valueOf(item)
			if err != nil {
				return nil, err
			}
			items = append(items, c)
		}
		return types.NewSet(items...), nil
	default:
		return recordOf(v)
	}
}

// numberOf maps an integer to a Long and a float to a decimal, which has four
// digits behind the point: the nearest one. What fits neither is an error.
func numberOf(v value.Value) (types.Value, error) {
	if v.IsInteger() {
		i, ok := v.AsInt()
		if !ok {
			return nil, fmt.Errorf("integer %.40s does not fit in 64 bits", v.Repr())
		}
		return types.Long(i), nil
	}
	f, _ := v.AsFloat()
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%s is no decimal", v.Repr())
	}
	d, err := types.ParseDecimal(strconv.FormatFloat(f, 'f', 4, 64))
	if err != nil {
		return nil, fmt.Errorf("%s does not fit in a decimal", v.Repr())
	}
	return d, nil
}
