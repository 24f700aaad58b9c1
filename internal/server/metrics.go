package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/record"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// metrics of a Server; docs/metrics.md is their contract. None has a label of
// which there may be many: no session, no agent, no pool.
type metrics struct {
	requests   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	outcomes   *prometheus.CounterVec
	byOutcome  map[v1.Outcome]prometheus.Counter // of those that most calls have
	slots      *prometheus.CounterVec
	rates      *prometheus.CounterVec
	sessions   prometheus.Counter
	lapsed     prometheus.Counter
	signals    *prometheus.CounterVec
	refused    *prometheus.CounterVec
	overQuota  *prometheus.CounterVec
	turns      prometheus.Counter
	killed     prometheus.Counter
	approvals  *prometheus.CounterVec
	stopped    prometheus.Gauge
	waiting    prometheus.Gauge
	waited     prometheus.Histogram
	evaluation prometheus.Histogram
	decisions  *prometheus.CounterVec
	scans      *prometheus.CounterVec
	byDecision sync.Map // of [2]string to prometheus.Counter: those of decisions, without looking for the labels each time
	events     *prometheus.CounterVec
	cut        prometheus.Counter
	compiled   prometheus.Counter
	premises   prometheus.Counter
	panics     prometheus.Counter
	auditLines prometheus.Counter
	auditLost  prometheus.Counter

	auditFailing prometheus.Gauge
}

// Buckets in seconds, from what a memory store takes to what a caller waits.
var (
	latencyBuckets    = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	waitBuckets       = []float64{.001, .005, .01, .05, .1, .5, 1, 2, 5, 10, 30, 60, 300, 600}
	evaluationBuckets = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 1e-1, 1}
)

func newMetrics(r *prometheus.Registry) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_requests_total", Help: "Requests answered, by service, method and code (ok, or the name of the error)."}, []string{"service", "method", "code"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gov_request_duration_seconds", Help: "Time from request to answer, waits included.", Buckets: latencyBuckets}, []string{"service", "method"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_call_outcomes_total", Help: "Answers of BeginCall and EndCall, by outcome; repeats count again."}, []string{"outcome"}),
		slots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_slot_outcomes_total", Help: "Answers of AcquireSlot and ReleaseSlot, by outcome; repeats count again."}, []string{"outcome"}),
		rates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_rate_outcomes_total", Help: "Answers of TakeRate, by outcome; repeats count again."}, []string{"outcome"}),
		sessions: counter("gov_sessions_created_total", "Sessions created through this node."),
		lapsed:   counter("gov_calls_lapsed_total", "Calls whose lease ran out. Each is counted by the node that put in order what found it. They count as executed."),
		overQuota: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_quota_refused_total", Help: "Requests that were refused because their namespace had as much as it may, by quota."}, []string{"quota"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_access_refused_total", Help: "Requests that were not let in, by reason: UNAUTHENTICATED or PERMISSION_DENIED."}, []string{"reason"}),
		signals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_signals_total", Help: "Signals taken by this node: stop, continue, kill, or custom."}, []string{"signal"}),
		approvals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_approvals_total", Help: "Approvals that were asked for at this node (requested), and those that a vote or a cancellation at this node decided: approved, denied, cancelled."}, []string{"state"}),
		killed:  counter("gov_sessions_killed_total", "Sessions that this node closed because of a KILL."),
		stopped: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gov_stopped_requests", Help: "Requests that this node holds until a STOP is over, or an approval is decided."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gov_waiting_requests", Help: "Requests that wait for a slot at this node."}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gov_wait_duration_seconds", Help: "Time that requests waited for a slot, however the wait ended.", Buckets: waitBuckets}),
		evaluation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gov_policy_evaluation_seconds", Help: "Time to judge one call, of BeginCall or Evaluate, or one text.", Buckets: evaluationBuckets}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_decisions_total", Help: "Decisions taken down, by action and by the category of a refusal."}, []string{"action", "category"}),
		scans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_scans_total", Help: "Texts scanned, by what they are and by action."}, []string{"kind", "action"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gov_events_total", Help: "Governance events that occurred, by type."}, []string{"type"}),
		cut:        counter("gov_followers_cut_total", "Followers of events that were cut because they fell behind what is kept."),
		compiled:   counter("gov_policies_compiled_total", "Policies compiled because the node did not have them."),
		premises:   counter("gov_premise_retries_total", "Commands ordered again because what they took for granted had changed."),
		turns:      counter("gov_sessions_delayed_total", "Sessions that waited for their turn, because their namespace began so many."),
		panics:     counter("gov_handler_panics_total", "Requests that ended in a panic of their handler."),
		auditLines: counter("gov_audit_lines_total", "Lines written to the audit log."),
		auditLost:  counter("gov_audit_write_failures_total", "Writes to the audit log that were lost; each may have held several lines."),

		auditFailing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gov_audit_failing", Help: "1 while the audit log cannot be written: the latest write failed, or one hangs. Else 0."}),
	}
	for kind := session.SignalKind(0); kind <= session.Kill; kind++ {
		m.signals.WithLabelValues(signalLabel(kind)) // there from the start
	}
	for _, state := range []string{"requested", "approved", "denied", "cancelled"} {
		m.approvals.WithLabelValues(state) // there from the start
	}
	m.byOutcome = map[v1.Outcome]prometheus.Counter{}
	for _, o := range []v1.Outcome{v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY, v1.Outcome_OUTCOME_ENDED} {
		m.byOutcome[o] = m.outcomes.WithLabelValues(outcomeLabel(o))
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.latency, m.outcomes, m.slots, m.rates, m.sessions, m.lapsed, m.signals, m.killed, m.approvals, m.stopped, m.waiting, m.waited, m.evaluation,
		m.decisions, m.scans, m.events, m.cut, m.compiled, m.premises, m.refused, m.overQuota, m.turns, m.panics, m.auditLines, m.auditLost, m.auditFailing,
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("server: metrics: %w", err)
		}
	}
	for _, reason := range []string{fault.ReasonUnauthenticated, fault.ReasonForbidden} { // there from the start, for alerts
		m.refused.WithLabelValues(reason)
	}
	for _, name := range quota.Names {
		m.overQuota.WithLabelValues(name)
	}
	return m, nil
}

// watch shows how much a journal holds, and when a certificate ends.
func (m *metrics) watch(r *prometheus.Registry, j *record.Journal, certificate func() *tls.Certificate) error {
	for _, g := range []struct {
		name, help string
		read       func() int
	}{
		{"gov_journal_records", "Decisions and ends of calls that this node can explain and replay to followers.", func() int { n, _, _ := j.State(); return n }},
		{"gov_journal_bytes", "Bytes that they hold, about.", func() int { _, n, _ := j.State(); return n }},
		{"gov_certificate_expires_seconds", "When the certificate of this node ends, in Unix time; 0 where it has none.", func() int {
			if certificate == nil {
				return 0
			}
			return int(certificate().Leaf.NotAfter.Unix())
		}},
		{"gov_followers", "Followers of events that are connected to this node.", func() int { _, _, n := j.State(); return n }},
	} {
		err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help}, func() float64 { return float64(g.read()) }))
		if err != nil {
			return fmt.Errorf("server: metrics: %w", err)
		}
	}
	return nil
}

// decision counts a decision. Actions and categories are words of the engine
// and of package words.
func (m *metrics) decision(d *engine.Decision) {
	key := [2]string{d.Action, d.Category}
	c, ok := m.byDecision.Load(key)
	if !ok {
		c, _ = m.byDecision.LoadOrStore(key, m.decisions.WithLabelValues(d.Action, d.Category))
	}
	c.(prometheus.Counter).Inc()
}

// request notes one answer. The procedure is /package.Service/Method.
func (m *metrics) request(procedure string, err error, start time.Time) {
	service, method := methodOf(procedure)
	code := "ok"
	if err != nil {
		code = fault.Of(err).Code.String()
	}
	m.requests.WithLabelValues(service, method, code).Inc()
	m.latency.WithLabelValues(service, method).Observe(time.Since(start).Seconds())
}

func methodOf(procedure string) (service, method string) {
	service, method, _ = strings.Cut(strings.TrimPrefix(procedure, "/govnode.v1."), "/")
	return service, method
}

func (m *metrics) outcome(o v1.Outcome) {
	c, ok := m.byOutcome[o]
	if !ok {
		c = m.outcomes.WithLabelValues(outcomeLabel(o))
	}
	c.Inc()
}

func (m *metrics) slotOutcome(o v1.Outcome) { m.slots.WithLabelValues(outcomeLabel(o)).Inc() }

func (m *metrics) rateOutcome(o v1.Outcome) { m.rates.WithLabelValues(outcomeLabel(o)).Inc() }

// outcomeLabels are made once, since every answer is counted under one.
var outcomeLabels = func() map[v1.Outcome]string {
	labels := make(map[v1.Outcome]string, len(v1.Outcome_name))
	for n, name := range v1.Outcome_name {
		labels[v1.Outcome(n)] = strings.ToLower(strings.TrimPrefix(name, "OUTCOME_"))
	}
	return labels
}()

func outcomeLabel(o v1.Outcome) string { return outcomeLabels[o] }

// signal counts a signal.
func (m *metrics) signal(kind session.SignalKind) {
	m.signals.WithLabelValues(signalLabel(kind)).Inc()
}

// signalLabel is one for all signals that are events alone.
func signalLabel(kind session.SignalKind) string {
	switch kind {
	case session.Stop:
		return "stop"
	case session.Continue:
		return "continue"
	case session.Kill:
		return "kill"
	}
	return "custom"
}

// promLog passes what the metrics page cannot show to the log.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) { l.log.Error("metrics", slog.String("error", fmt.Sprint(v...))) }
