package redis

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage"

	"example.com/govnode/storage/redis/internal/wire"
)

// metrics are what a node counts, beside the gauges that are read when they
// are asked for. docs/metrics.md is their contract.
type metrics struct {
	commands      *prometheus.CounterVec
	roundCommands prometheus.Histogram
	exchanges     *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
	reloads       prometheus.Counter
	epochs        prometheus.Counter
	faults        prometheus.Counter
	recoveries    *prometheus.CounterVec
	damaged       prometheus.Counter
	settled       prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		commands: counters("gov_redis_commands_total", "Commands answered, by result: ok, invalid, unavailable (not applied), unknown (may have been applied).", "result"),
		roundCommands: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gov_redis_round_commands", Help: "Commands that one round answered.", Buckets: prometheus.ExponentialBuckets(1, 2, 13)}),
		exchanges: counters("gov_redis_exchanges_total", "Scripts run in Redis for commands and reads, by script and result.", "script", "result"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gov_redis_exchange_seconds", Help: "Time of one such exchange with Redis.", Buckets: prometheus.ExponentialBuckets(1e-4, 2, 16)}, []string{"script"}),
		reloads:    counter("gov_redis_script_loads_total", "Scripts sent in full because Redis did not have them."),
		epochs:     counter("gov_redis_epoch_changes_total", "Times that this node found other data than it knew, or data in another state."),
		faults:     counter("gov_redis_faults_total", "Losses of acknowledged changes that this node was the first to notice. Each begins a quarantine, or leaves half of a restore that has to be repeated."),
		damaged:    counter("gov_redis_damaged_total", "Damaged records that this node has set aside."),
		settled:    counter("gov_redis_settled_total", "Records that came up as due and were looked at by this node."),
		recoveries: counters("gov_redis_recoveries_total", "Quarantines that this node ended, or tried to.", "result"),
	}
}

// register gives the metrics to the registry, with the gauges of the store.
func (m *metrics) register(registry *prometheus.Registry, r *Store) error {
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	for _, c := range []prometheus.Collector{
		m.commands, m.roundCommands, m.exchanges, m.seconds, m.reloads, m.epochs, m.faults, m.recoveries, m.damaged, m.settled,
		gauge("gov_redis_quarantine", "Data sets in quarantine, in which nothing is admitted: 1 for all of a Redis, or one for each namespace of a Redis Cluster.", func() float64 { return float64(r.inState(epochShut)) }),
		gauge("gov_redis_quarantine_seconds", "Longest time until one of them ends.", func() float64 { return r.shutFor().Seconds() }),
		gauge("gov_redis_refused", "1 while the settings of Redis do not allow what govnode promises, else 0.", func() float64 {
			if r.refused.Load() != nil {
				return 1
			}
			return 0
		}),
		gauge("gov_redis_aside", "Damaged records that are set aside, until somebody brings them back or drops them.", func() float64 { n, _ := r.housed(); return float64(n) }),
		gauge("gov_redis_due", "Records that were due when this node last looked, and are not settled yet: the backlog of housekeeping.", func() float64 { _, n := r.housed(); return float64(n) }),
		gauge("gov_redis_silent_seconds", "Longest time for which Redis has not answered this node, which asks every 250 ms.", func() float64 { return r.silent().Seconds() }),
		gauge("gov_redis_log_time_seconds", "Log time.", func() float64 { return latest(r.allDomains()).Seconds() }),
		gauge("gov_redis_cache_bytes", "Bytes that the records in the cache take, about.", func() float64 { _, n := r.cache.held(); return float64(n) }),
		gauge("gov_redis_cache_records", "Records in the cache.", func() float64 { n, _ := r.cache.held(); return float64(n) }),
	} {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// inState counts the domains in a state.
func (r *Store) inState(state string) (n int) {
	for _, d := range r.allDomains() {
		if g := d.gate.Load(); g != nil && g.epoch != nil && g.epoch.state == state {
			n++
		}
	}
	return n
}

// housed sums up what housekeeping has found: records set aside, and those due.
func (r *Store) housed() (asides, due int64) {
	for _, d := range r.allDomains() {
		asides, due = asides+d.asides.Load(), due+d.backlog.Load()
	}
	return asides, due
}

func (r *Store) shutFor() (longest time.Duration) {
	for _, d := range r.allDomains() {
		if g := d.gate.Load(); g != nil && g.epoch != nil && g.epoch.state == epochShut {
			now, _ := d.clock.now()
			longest = max(longest, g.epoch.until-now)
		}
	}
	return longest
}

func (r *Store) silent() (longest time.Duration) {
	for _, d := range r.allDomains() {
		longest = max(longest, d.clock.silent())
	}
	return longest
}

// held returns how many records a cache has and what they take.
func (c *cache) held() (records, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items), c.size
}

// answered counts the answers to commands.
func (m *metrics) answered(answers []storage.Answer) {
	for _, a := range answers {
		result := "ok"
		switch {
		case a.Outcome == storage.Applied:
		case a.Outcome == storage.Unknown:
			result = "unknown"
		case errors.Is(a.Err, storage.ErrInvalid):
			result = "invalid"
		default:
			result = "unavailable"
		}
		m.commands.WithLabelValues(result).Inc()
	}
}

// unwatched marks exchanges that no command and no read asked for: the beat of
// each node, and what puts data in place. They would hide the others.
type unwatched struct{}

func unwatch(ctx context.Context) context.Context { return context.WithValue(ctx, unwatched{}, true) }

// A scriptWatch counts and times the scripts that a client runs.
type scriptWatch struct{ m *metrics }

// DialHook implements redis.Hook.
func (w scriptWatch) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (w scriptWatch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmd)
		w.ran(ctx, cmd, err, time.Since(began))
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (w scriptWatch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			w.ran(ctx, cmd, cmd.Err(), time.Since(began))
		}
		return err
	}
}

// ran counts a command if it ran one of the scripts.
func (w scriptWatch) ran(ctx context.Context, cmd redis.Cmder, err error, took time.Duration) {
	args := cmd.Args()
	if len(args) < 2 || ctx.Value(unwatched{}) != nil {
		return
	}
	script := scriptOf(args)
	if script == "" {
		return
	}
	if args[0] == "eval" {
		w.m.reloads.Inc()
	} else if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return // it is sent in full next
	}
	w.m.exchanges.WithLabelValues(script, scriptResult(cmd, err)).Inc()
	w.m.seconds.WithLabelValues(script).Observe(took.Seconds())
}

// scriptOf names the script that a command runs, if it does.
func scriptOf(args []any) string {
	switch args[0] {
	case "evalsha":
		return scriptNames[args[1]]
	case "eval":
		return scriptTexts[args[1]]
	}
	return ""
}

var (
	scriptNames = map[any]string{wire.LoadScript.Hash: wire.LoadScript.Name, wire.SwapScript.Hash: wire.SwapScript.Name}
	scriptTexts = map[any]string{wire.LoadScript.Text: wire.LoadScript.Name, wire.SwapScript.Text: wire.SwapScript.Name}
)

// scriptResult is the word with which a script answers, or what kept it from
// that: refused by Redis, or broken off so that nobody knows.
func scriptResult(cmd redis.Cmder, err error) string {
	switch {
	case err != nil && notSent(err):
		return "refused"
	case err != nil:
		return "broken"
	}
	if c, ok := cmd.(interface{ Slice() ([]any, error) }); ok {
		if reply, err := c.Slice(); err == nil && len(reply) > 0 {
			switch word, _ := reply[0].(string); word {
			case wire.ReplyOK, wire.ReplyLost, wire.ReplyFrozen, wire.ReplyEpoch, wire.ReplyServer, wire.ReplyAbsent, wire.ReplyBehind, wire.ReplyHalf, wire.ReplyMore:
				return word
			}
		}
	}
	return "other"
}
