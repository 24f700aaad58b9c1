package docs

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// anything stands for what differs from run to run.
const anything = "…"

// lineMatches compares a line that is shown with one that was printed. Runs of
// spaces are equal, since the width of a column depends on what stands in it.
func lineMatches(shown, printed string) bool {
	var re strings.Builder
	for i, part := range strings.Split(strings.Join(strings.Fields(shown), " "), anything) {
		if i > 0 {
			re.WriteString(".*")
		}
		re.WriteString(regexp.QuoteMeta(part))
	}
	return regexp.MustCompile("^" + re.String() + "$").MatchString(strings.Join(strings.Fields(printed), " "))
}

// compareText finds every line that is shown among those that were printed, in
// their order.
func compareText(shown, printed string) error {
	lines := strings.Split(printed, "\n")
	for _, want := range strings.Split(strings.TrimSpace(shown), "\n") {
		if strings.TrimSpace(want) == "" {
			continue
		}
		i := slices.IndexFunc(lines, func(line string) bool { return lineMatches(want, line) })
		if i < 0 {
			return fmt.Errorf("the line %q is not printed, or not there; this is:\n%s", want, printed)
		}
		lines = lines[i+1:]
	}
	return nil
}

// values reads the JSON values in a text, whatever stands between them.
func values(text string) (list []any) {
	for text != "" {
		start := strings.IndexAny(text, "{[")
		if start < 0 {
			break
		}
		text = text[start:]
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		var v any
		if d.Decode(&v) != nil {
			text = text[1:]
			continue
		}
		list = append(list, v)
		text = text[d.InputOffset():]
	}
	return list
}

// parse reads a block that holds JSON values and nothing else.
func parse(text string) (list []any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	for {
		var v any
		switch err := d.Decode(&v); {
		case err == io.EOF && len(list) > 0:
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("this is no JSON: %w", err)
		}
		list = append(list, v)
	}
}

// compareJSON finds every value that is shown among those that were printed, in
// their order.
func compareJSON(shown, printed string) error {
	want, err := parse(shown)
	if err != nil {
		return err
	}
	got := values(printed)
	for i, w := range want {
		var last error
		at := slices.IndexFunc(got, func(g any) bool {
			last = contains(g, w, "value")
			return last == nil
		})
		if at < 0 {
			return fmt.Errorf("value %d is not printed, or not there (%w); this is:\n%s", i+1, last, printed)
		}
		got = got[at+1:]
	}
	return nil
}

// contains reports where something that is shown is not what was printed. An
// object may have more fields than are shown.
func contains(got, want any, at string) error {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: shown is an object, printed %v", at, got)
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			v, ok := object[k]
			if !ok {
				return fmt.Errorf("%s.%s: shown, and not printed", at, k)
			}
			if err := contains(v, want[k], at+"."+k); err != nil {
				return err
			}
		}
		return nil
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fmt.Errorf("%s: shown is a list of %d, printed %v", at, len(want), got)
		}
		for i := range want {
			if err := contains(list[i], want[i], fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
		return nil
	}
	if !lineMatches(fmt.Sprint(want), fmt.Sprint(got)) {
		return fmt.Errorf("%s: shown is %v, printed %v", at, want, got)
	}
	return nil
}
