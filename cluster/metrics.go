package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a node counts, beside the gauges that are read from it when
// they are asked for. The names are part of the product's contract.
type metrics struct {
	entries, commands, voided prometheus.Counter
	entryCommands             prometheus.Histogram
	applySeconds              prometheus.Histogram
	commitSeconds             prometheus.Histogram
	refused                   *prometheus.CounterVec
	forwarded, resent         prometheus.Counter
	rounds                    *prometheus.CounterVec
	snapshots                 *prometheus.CounterVec
	snapshotSeconds           prometheus.Histogram
	restores                  prometheus.Counter
	leaderships               prometheus.Counter
	appendSeconds             prometheus.Histogram
	checks                    *prometheus.CounterVec
	checkSeconds              prometheus.Histogram
	wal                       walMetrics
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func newMetrics() *metrics {
	return &metrics{
		entries:         counter("gov_raft_entries_applied_total", "Log entries applied to the state."),
		commands:        counter("gov_raft_commands_applied_total", "Commands in the log entries applied."),
		voided:          counter("gov_raft_entries_void_total", "Log entries of this leader that were stamped under an earlier leadership and changed nothing."),
		entryCommands:   histogram("gov_raft_entry_commands", "Commands in one log entry applied.", prometheus.ExponentialBuckets(1, 2, 12)),
		applySeconds:    histogram("gov_raft_apply_seconds", "Time to decode and apply one log entry.", prometheus.ExponentialBuckets(1e-5, 2, 16)),
		commitSeconds:   histogram("gov_raft_commit_seconds", "Time from proposing an entry until it was applied, on the leader.", prometheus.ExponentialBuckets(1e-4, 2, 16)),
		refused:         counters("gov_raft_refused_total", "Commands refused before they were proposed.", "reason"),
		forwarded:       counter("gov_raft_forwarded_total", "Commands sent to the leader by this node."),
		resent:          counter("gov_raft_resent_total", "Commands sent again because their outcome was unknown."),
		rounds:          counters("gov_raft_term_rounds_total", "Rounds in which the voters were asked for their term.", "result"),
		snapshots:       counters("gov_raft_snapshots_total", "Snapshots written.", "result"),
		snapshotSeconds: histogram("gov_raft_snapshot_seconds", "Time to write a snapshot.", prometheus.ExponentialBuckets(1e-3, 2, 16)),
		restores:        counter("gov_raft_restores_total", "Snapshots that replaced the state of this node."),
		leaderships:     counter("gov_raft_leaderships_total", "Times that this node became the leader."),
		appendSeconds:   histogram("gov_raft_append_seconds", "Time to append entries to the log and flush it, whatever keeps it.", prometheus.ExponentialBuckets(5e-5, 2, 18)),
		checks:          counters("gov_raft_state_checks_total", "Checks of this node's state against those of the other members.", "result"),
		checkSeconds:    histogram("gov_raft_state_check_seconds", "Time to make a digest of the state for such a check, rests included.", prometheus.ExponentialBuckets(1e-3, 2, 18)),
		wal:             newWALMetrics(),
	}
}

// register gives the metrics to the registry, with the gauges of the node.
func (m *metrics) register(r *prometheus.Registry, n *Node) error {
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	for _, c := range []prometheus.Collector{
		m.entries, m.commands, m.voided, m.entryCommands, m.applySeconds, m.commitSeconds, m.refused, m.forwarded,
		m.resent, m.rounds, m.snapshots, m.snapshotSeconds, m.restores, m.leaderships, m.appendSeconds, m.checks, m.checkSeconds,
		gauge("gov_raft_applied_index", "Index of the latest log entry applied.", func() float64 { return float64(n.fsm.applied()) }),
		gauge("gov_raft_term", "Raft term.", func() float64 { return float64(n.raft.CurrentTerm()) }),
		gauge("gov_raft_leader", "1 if this node leads and takes proposals, else 0.", func() float64 {
			if n.Leader() {
				return 1
			}
			return 0
		}),
		gauge("gov_raft_proposal_queue", "Commands that wait for a place in the log, or to be forwarded.", func() float64 { return float64(n.queued()) }),
		gauge("gov_raft_log_bytes", "Bytes of log applied since the last snapshot.", func() float64 { return float64(n.fsm.logged.since()) }),
		memberGauges{n},
		gauge("gov_raft_log_time_seconds", "Log time of the latest entry applied.", func() float64 { return n.fsm.now().Seconds() }),
	} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	if n.cfg.LogStore == LogWAL {
		for _, c := range m.wal {
			if err := r.Register(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// memberGauges are how this node sees the other members. They are made when they
// are asked for, since members come and go.
type memberGauges struct{ n *Node }

var (
	memberUp     = prometheus.NewDesc("gov_raft_member_up", "1 if this node has heard of another member within the last 3 s, else 0.", []string{"member"}, nil)
	memberSilent = prometheus.NewDesc("gov_raft_member_last_contact_seconds", "Time since this node heard of another member last.", []string{"member"}, nil)
	memberLag    = prometheus.NewDesc("gov_raft_member_lag_entries", "Log entries that another member is behind, on the leader.", []string{"member"}, nil)
)

// Describe implements prometheus.Collector.
func (memberGauges) Describe(to chan<- *prometheus.Desc) {
	to <- memberUp
	to <- memberSilent
	to <- memberLag
}

// Collect implements prometheus.Collector. What is not known is not told.
func (g memberGauges) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, member string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, member)
	}
	for _, p := range g.n.view() {
		if p.Node == g.n.cfg.ID {
			continue
		}
		up := 0.0
		if p.Up {
			up = 1
		}
		gauge(memberUp, up, p.Node)
		if !p.Known {
			continue
		}
		gauge(memberSilent, p.Silent.Seconds(), p.Node)
		if g.n.Leader() {
			gauge(memberLag, float64(p.Lag), p.Node)
		}
	}
}

// walMetrics are what a write-ahead log counts of itself, by the names that
// raft-wal has for them. What is not in it is not kept.
type walMetrics map[string]prometheus.Counter

func newWALMetrics() walMetrics {
	return walMetrics{
		"log_appends":             counter("gov_raft_wal_appends_total", "Appends to the write-ahead log, each flushed once."),
		"log_entries_written":     counter("gov_raft_wal_entries_written_total", "Entries appended to the write-ahead log."),
		"log_entry_bytes_written": counter("gov_raft_wal_bytes_written_total", "Bytes of the entries appended to the write-ahead log."),
		"log_entries_read":        counter("gov_raft_wal_entries_read_total", "Entries read from the write-ahead log."),
		"segment_rotations":       counter("gov_raft_wal_rotations_total", "Files of the write-ahead log that were full, so that the next was begun."),
		"head_truncations":        counter("gov_raft_wal_head_truncated_total", "Entries removed from the start of the write-ahead log because a snapshot stands for them."),
		"tail_truncations":        counter("gov_raft_wal_tail_truncated_total", "Entries removed from the end of the write-ahead log because another leader's took their place."),
	}
}

// IncrementCounter implements the Collector of raft-wal, whose count of what
// was truncated is below zero, wrapped around, where its last file was empty.
func (m walMetrics) IncrementCounter(name string, delta uint64) {
	if c, ok := m[name]; ok && int64(delta) > 0 {
		c.Add(float64(delta))
	}
}

// SetGauge implements the Collector of raft-wal.
func (walMetrics) SetGauge(string, uint64) {}

func (m *metrics) applied(commands int, took time.Duration) {
	m.entries.Inc()
	m.commands.Add(float64(commands))
	m.entryCommands.Observe(float64(commands))
	m.applySeconds.Observe(took.Seconds())
}

func (m *metrics) snapshot(took time.Duration, err error) {
	m.snapshots.WithLabelValues(result(err)).Inc()
	if err == nil {
		m.snapshotSeconds.Observe(took.Seconds())
	}
}

func (m *metrics) round(err error) { m.rounds.WithLabelValues(result(err)).Inc() }

func (m *metrics) restored() { m.restores.Inc() }

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
