package durable

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metrics"
)

// BenchmarkSeal is what the checksum of an entry costs, by its size.
func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{200, 8 << 10, 256 << 10} {
		l := &raft.Log{Index: 1, Term: 1, Data: bytes.Repeat([]byte("x"), size), Extensions: []byte("12345678")}
		stored := sealEntry(l)
		b.Run(fmt.Sprintf("store/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sealEntry(l)
			}
		})
		b.Run(fmt.Sprintf("read/%d", size), func(b *testing.B) {
			for b.Loop() {
				read := *stored
				if err := openEntry(1, &read); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpenLog is what looking at a whole log costs, for each megabyte.
func BenchmarkOpenLog(b *testing.B) {
	for _, store := range []string{BoltDB, WAL} {
		b.Run(store, func(b *testing.B) {
			cfg := &Options{Dir: b.TempDir(), Logger: hclog.NewNullLogger(), Segment: SegmentSize, LogStore: store, Metrics: &metrics.NoOpCollector{}}
			s, err := Open(*cfg)
			if err != nil {
				b.Fatal(err)
			}
			const batches, size = 64, 4000
			for i := range uint64(batches) {
				var logs []*raft.Log
				for k := range uint64(16) {
					logs = append(logs, entryAt(i*16+k+1, 1, size/5))
				}
				if err := s.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(batches * 16 * size)
			for b.Loop() {
				s, err := Open(*cfg)
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
