package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// How commands print: JSON, tables, and texts of others.

// PrintJSON prints a message as protojson has it, zero values included, so that
// a script finds every field.
func PrintJSON(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	// protojson varies its spaces on purpose; equal answers shall print alike.
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(w)
	return err
}

// A Table prints lines in columns.
type Table struct{ w *tabwriter.Writer }

// NewTable begins a table with its first line.
func NewTable(w io.Writer, head ...any) Table {
	t := Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.Row(head...)
	return t
}

// Row adds a line.
func (t Table) Row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = io.WriteString(t.w, "\t")
		}
		text := Printable(fmt.Sprint(cell))
		if text == "" {
			text = "-"
		}
		_, _ = io.WriteString(t.w, text)
	}
	_, _ = io.WriteString(t.w, "\n")
}

// Flush prints what was added.
func (t Table) Flush() error { return t.w.Flush() }

// Printable writes out what a terminal would obey instead of show: names come
// from whoever calls the service.
func Printable(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unprintable(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// PrintableJSON is Printable for JSON on one line, which it leaves JSON of the same
// meaning.
func PrintableJSON(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch high, low := utf16.EncodeRune(r); {
		case !unprintable(r):
			b.WriteRune(r)
		case r == '\t' || r == '\r' || r == '\n': // between values: texts have none as it stands
			b.WriteByte(' ')
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Say prints one line.
func Say(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintln(w, Printable(fmt.Sprintf(format, args...)))
	return err
}

// Since prints a duration as an operator reads it.
func Since(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	v := d.AsDuration()
	switch {
	case v >= time.Minute:
		return v.Round(time.Second).String()
	case v >= time.Second:
		return v.Round(100 * time.Millisecond).String()
	}
	return v.Round(time.Millisecond).String()
}

// Word is the name of an enum value without the prefix of its type, in small
// letters: admitted for OUTCOME_ADMITTED.
func Word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value.String(), prefix), "_", " "))
}

// Local makes a command that needs no node. Its -o, which is one of formats and the
// first of them if it is not given, is checked when run is called.
func Local(cmd *cobra.Command, formats []string, run func(cmd *cobra.Command, output string, args []string) error) *cobra.Command {
	words := strings.Join(formats, "|")
	output := cmd.Flags().StringP("output", "o", formats[0], "how to print the answer, "+words)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(formats, *output) {
			return Usagef("output: %q (flag --output): must be one of %s", *output, words)
		}
		return run(cmd, *output, args)
	}
	return cmd
}

// WriteJSON prints a value that is no message of the API.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
