package record

import (
	"fmt"
	"strconv"
	"testing"
)

// BenchmarkAdd is what it costs to keep a record, where one is dropped for each that
// comes: of one namespace alone, of many by turns, and of one busy one beside many
// that hold what is theirs.
func BenchmarkAdd(b *testing.B) {
	const ids = 1 << 16
	names := make([]string, ids)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	for _, c := range []struct {
		name       string
		namespaces int
		busy       bool
	}{{"alone", 1, false}, {"by turns", 1000, false}, {"one busy", 1000, true}} {
		b.Run(c.name, func(b *testing.B) {
			j := journaled(DefaultJournalRecords, DefaultJournalBytes).Journal
			namespaces := make([]string, c.namespaces)
			for i := range namespaces {
				namespaces[i] = fmt.Sprintf("team-%d", i)
			}
			add := func(i, ns int) {
				r := allowed(names[i%ids], BareRecord)
				r.NS = namespaces[ns%c.namespaces]
				j.Add(r)
			}
			for i := range 2 * DefaultJournalRecords {
				add(i, i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i++; c.busy {
					add(i, 0)
				} else {
					add(i, i)
				}
			}
		})
	}
}
