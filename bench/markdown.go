package bench

import (
	"fmt"
	"io"
	"strings"
)

// The results as tables in Markdown, and which of the goals they reach.

// A Named is a result and the name of its file.
type Named struct {
	Name string
	*Result
}

// A goal is a ratio that govnode is judged by. Where most is set the ratio must
// not be above must, otherwise not below it.
type goal struct {
	measure         string
	system, against string
	callers         int // 0 for any load
	value           func(Ratio) float64
	most            bool
	must, aim       float64
}

func throughputOf(r Ratio) float64 { return r.Throughput }
func p50Of(r Ratio) float64        { return r.P50 }
func p99Of(r Ratio) float64        { return r.P99 }

const (
	three = "govnode, 3 nodes"
	one   = "govnode, 1 node"
	etcd3 = "etcd, 3 nodes"
)

var goals = []goal{
	{"3 nodes, Exchange, 256 callers, vs etcd 3 nodes", three, etcd3, 256, throughputOf, false, 4, 8},
	{"same, 1,024 callers", three, etcd3, 1024, throughputOf, false, 10, 18},
	{"3 nodes vs Redis `appendfsync always`, 256 callers", three, redisName, 256, throughputOf, false, 1, 1.5},
	{"same, 1,024 callers", three, redisName, 1024, throughputOf, false, 2.5, 4.5},
	{"1 node vs the same Redis, 256 callers", one, redisName, 256, throughputOf, false, 1.6, 2.5},
	{"same, 1,024 callers", one, redisName, 1024, throughputOf, false, 3.5, 9},
	{"p50 at 256 callers, 3 nodes, vs etcd 3 nodes", three, etcd3, 256, p50Of, true, 0.3, 0.15},
	{"unary, 3 nodes, 256 clients, vs etcd 3 nodes", three + ", unary", etcd3, 256, throughputOf, false, 1, 1.3},
	{"one caller alone, 3 nodes, p50 vs etcd 3 nodes, boltdb", three, etcd3, 1, p50Of, true, 2, 1.3},
	{"same, wal", three + ", wal", etcd3, 1, p50Of, true, 1.3, 1},
	{"one hot pool instead of many (throughput kept)", three + ", hot-pool", three, 256, throughputOf, false, 0.6, 0.9},
	{"p99 during a snapshot of 1 M sessions vs without", three + ", during snapshots, 1,000,000 sessions", three + ", no snapshot, 1,000,000 sessions", 0, p99Of, true, 3, 1.5},
}

// reached describes what a ratio comes to.
func (g goal) reached(r Ratio) string {
	v := g.value(r)
	text := fmt.Sprintf("**%s**", times(v))
	if g.most && v > g.must || !g.most && v < g.must {
		text += ", misses"
	}
	if !r.Apart {
		text += "; rounds overlap"
	}
	return text
}

// find returns the ratio of a goal in the first result that has it.
func (g goal) find(results []Named) (Ratio, string, bool) {
	for _, n := range results {
		var a, b *Series
		for _, s := range n.Series {
			switch s.System {
			case g.against:
				a = s
			case g.system:
				b = s
			}
		}
		if a == nil || b == nil {
			continue
		}
		for _, r := range ratiosOf(a, b) {
			if l := r.Load; g.callers == 0 || l.Callers == g.callers && l.Rate == 0 && l.After == 0 {
				return r, n.Name, true
			}
		}
	}
	return Ratio{}, "", false
}

// WriteMarkdown prints tables for a README: the goals as far as there are
// results for them, and then all medians of each result.
func WriteMarkdown(w io.Writer, results []Named) error {
	out := &printer{w: w}
	cells(out, "measure", "must", "goal", "reached", "in")
	cells(out, "---", "--:", "--:", "---", "---")
	for _, g := range goals {
		reached, name := "not measured", ""
		if r, in, ok := g.find(results); ok {
			reached, name = g.reached(r), "`"+in+"`"
		}
		cells(out, g.measure, short(g.must), short(g.aim), reached, name)
	}
	for _, n := range results {
		n.writeMarkdown(out)
	}
	return out.err
}

// short prints a ratio that somebody has chosen.
func short(ratio float64) string { return fmt.Sprintf("%gx", ratio) }

func (n Named) writeMarkdown(out *printer) {
	out.say("")
	out.say("`%s`: %s, %s, %d CPUs, rounds: %d", n.Name, when(n.Started), n.Machine.Go, n.Machine.CPUs, n.rounds())
	out.say("")
	cells(out, "system", "load", "ops/s", "p50", "p99", "p99.9", "errors", "CPU/op", "memory", "log on disk")
	cells(out, "---", "---", "--:", "--:", "--:", "--:", "--:", "--:", "--:", "--:")
	for _, s := range n.Series {
		for _, m := range s.medians() {
			cells(out, s.System, m.Load, number(float64(int64(m.Throughput+0.5))), ms(m.Latency.P50), ms(m.Latency.P99), ms(m.Latency.P999),
				m.Errors, m.CPUCell(), m.memoryCell(), m.logCell())
		}
	}
}

func (r *Result) rounds() (most int) {
	for _, s := range r.Series {
		for _, p := range s.Points {
			most = max(most, len(p.Runs))
		}
	}
	return most
}

// CPUCell is the CPU of all processes for each operation, or empty where it is
// not known.
func (r Run) CPUCell() string {
	if len(r.Processes) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f µs", r.CPUPerOp())
}

// memoryCell is the memory of the largest process, the client apart: a node.
func (r Run) memoryCell() string {
	most := int64(0)
	for _, p := range r.Processes {
		if p.Name != Client {
			most = max(most, p.Memory)
		}
	}
	if most == 0 {
		return ""
	}
	return megabytes(most)
}

func (r Run) logCell() string {
	if r.Disk == nil {
		return ""
	}
	return megabytes(r.Disk.Log)
}

func megabytes(n int64) string { return Thousands(n>>20) + " MB" }

func cells(out *printer, all ...any) {
	var b strings.Builder
	b.WriteString("|")
	for _, c := range all {
		fmt.Fprintf(&b, " %v |", c)
	}
	out.say("%s", b.String())
}
