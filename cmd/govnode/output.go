package main

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

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// printJSON prints a message as protojson has it, zero values included, so that
// a script finds every field.
func printJSON(w io.Writer, m proto.Message) error {
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

// A table prints lines in columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, head ...any) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(head...)
	return t
}

func (t table) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			_, _ = io.WriteString(t.w, "\t")
		}
		text := printable(fmt.Sprint(cell))
		if text == "" {
			text = "-"
		}
		_, _ = io.WriteString(t.w, text)
	}
	_, _ = io.WriteString(t.w, "\n")
}

func (t table) flush() error { return t.w.Flush() }

// printable writes out what a terminal would obey instead of show: names come
// from whoever calls the service.
func printable(text string) string {
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

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// since prints a duration as an operator reads it.
func since(d *durationpb.Duration) string {
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

// word is the name of an enum value without the prefix of its type, in small
// letters: admitted for OUTCOME_ADMITTED.
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value.String(), prefix), "_", " "))
}

// outputFlag adds -o to a command that needs no node, and checks it.
func outputFlag(cmd *cobra.Command, output *string, allowed ...string) func() error {
	words := allowed[0]
	for _, a := range allowed[1:] {
		words += "|" + a
	}
	cmd.Flags().StringVarP(output, "output", "o", allowed[0], "how to print the answer, "+words)
	return func() error {
		if !slices.Contains(allowed, *output) {
			return usagef("output: %q (flag --output): must be one of %s", *output, words)
		}
		return nil
	}
}

// writeJSON prints a value that is no message of the API.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
