package gate

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/fault"
)

// A Memory refuses what would make the state grow while the process is
// near its memory limit (GOMEMLIMIT): a node that answers "later" keeps the
// slots and sessions that it has, one that is killed for its memory does not
// come back before somebody gives it more. It is about this node, and is no
// part of the state: other nodes may take what this one refuses.
//
// Without a limit it does nothing.
type Memory struct {
	limit   int64 // bytes; 0: none
	inUse   func() memoryUse
	collect func()
	log     *slog.Logger

	shedding atomic.Bool
	used     atomic.Uint64 // bytes, as of the last look
	refused  prometheus.Counter

	stop  chan struct{}
	once  sync.Once // closes stop
	ended sync.WaitGroup
}

const (
	// shedAt and admitAt are hundredths of the memory limit: what is in use
	// from which on new work is refused, and below which it is taken again. The
	// rest is for what cannot be refused: the log, a snapshot, answers, and
	// what came in since the last collection, which alone tells what is in use.
	shedAt, admitAt = 70, 60
	// memoryCheck is how often the memory is looked at.
	memoryCheck = 100 * time.Millisecond
	// collectAfter is how long a node that refuses work lets its garbage be: it
	// would not learn otherwise that what it had to keep is gone.
	collectAfter = 2 * time.Second
)

// memoryUse is what a look at the memory finds.
type memoryUse struct {
	bytes       uint64 // that no collection would free, as of the last one
	collections uint64
}

// NewMemory watches the memory of the process until it is closed.
func NewMemory(r *prometheus.Registry, log *slog.Logger) (*Memory, error) {
	g := &Memory{
		inUse: readMemory, collect: runtime.GC, log: log, stop: make(chan struct{}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "gov_memory_refused_total", Help: "Operations refused because the node was near its memory limit."}),
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		g.limit = limit
	}
	if err := g.register(r); err != nil {
		return nil, err
	}
	if g.limit > 0 {
		g.ended.Go(g.watch)
	}
	return g, nil
}

func (g *Memory) register(r *prometheus.Registry) error {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	for _, c := range []prometheus.Collector{
		g.refused,
		gauge("gov_memory_limit_bytes", "Memory limit of the process; 0 if it has none.", func() float64 { return float64(g.limit) }),
		gauge("gov_memory_used_bytes", "Memory in use that a collection would not free, as of the last one; 0 without a limit.", func() float64 { return float64(g.used.Load()) }),
		gauge("gov_memory_shedding", "1 while new work is refused because the node is near its memory limit, else 0.", func() float64 {
			if g.shedding.Load() {
				return 1
			}
			return 0
		}),
	} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("server: metrics: %w", err)
		}
	}
	return nil
}

func (g *Memory) watch() {
	t := time.NewTicker(memoryCheck)
	defer t.Stop()
	var last memoryUse
	since := time.Now()
	for {
		select {
		case <-g.stop:
			return
		case <-t.C:
		}
		use := g.inUse()
		g.look(use)
		if use.collections != last.collections || !g.shedding.Load() {
			last, since = use, time.Now()
		} else if time.Since(since) >= collectAfter {
			g.collect()
		}
	}
}

// look decides whether new work is taken.
func (g *Memory) look(use memoryUse) {
	g.used.Store(use.bytes)
	percent := float64(use.bytes) * 100 / float64(g.limit)
	attrs := []any{"used", use.bytes, "limit", g.limit}
	switch shedding := g.shedding.Load(); {
	case !shedding && percent >= shedAt:
		g.Shed(true)
		g.log.Warn("near the memory limit: new sessions, calls, slots, policies and values are refused until some are gone; end some, or give the node more memory (GOMEMLIMIT)", attrs...)
	case shedding && percent < admitAt:
		g.Shed(false)
		g.log.Info("no longer near the memory limit: new work is taken again", attrs...)
	}
}

// Sheds reports whether new work is refused.
func (g *Memory) Sheds() bool { return g.shedding.Load() }

// Shed sets whether new work is refused.
func (g *Memory) Shed(yes bool) { g.shedding.Store(yes) }

// Admit refuses an operation that would make the state grow while there is no
// room for it.
func (g *Memory) Admit() error {
	if !g.Sheds() {
		return nil
	}
	g.refused.Inc()
	return fault.New(connect.CodeResourceExhausted, fault.ReasonOverloaded,
		"this node is near its memory limit and takes nothing new; this request was not looked at, send it again with the same id in "+fault.ShedRetry.String()+", or to another node").Later(fault.ShedRetry).With("limit", strconv.FormatInt(g.limit, 10))
}

// A RestoreGate reads a snapshot that is to replace the state, and refuses it
// when it turns out that both would not fit: the present state stays until the
// other is read. Stores read a snapshot to its end before they change anything.
type RestoreGate struct {
	guard   *Memory
	from    io.Reader
	read    uint64
	Refused error // nil unless it was
}

// Restoring is a snapshot on its way into the state.
func (g *Memory) Restoring(from io.Reader) *RestoreGate {
	return &RestoreGate{guard: g, from: from}
}

// Read implements io.Reader.
func (r *RestoreGate) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.read += uint64(n)
	// A state takes more than its snapshot does: half as much again at least.
	if limit := r.guard.limit; limit > 0 && r.guard.used.Load()+r.read*3/2 > uint64(limit) {
		r.guard.refused.Inc()
		r.Refused = fault.New(connect.CodeResourceExhausted, fault.ReasonOverloaded,
			"the snapshot does not fit into the memory limit of this node beside the state that it would replace; nothing was changed. Restore it to a new cluster, or give the nodes more memory (GOMEMLIMIT) until it is done").With("limit", strconv.FormatInt(limit, 10))
		return n, r.Refused
	}
	return n, err
}

// Close ends the watch.
func (g *Memory) Close() {
	g.once.Do(func() { close(g.stop) })
	g.ended.Wait()
}

// readMemory asks the runtime. What is in use is the live heap, and everything
// that the limit counts beside the heap.
func readMemory() memoryUse {
	samples := make([]runtimemetrics.Sample, len(memorySamples))
	for i, name := range memorySamples {
		samples[i].Name = name
	}
	runtimemetrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	bytes := value(0) + value(1) - min(value(1), value(2)+value(3)+value(4)+value(5))
	return memoryUse{bytes: bytes, collections: value(6)}
}

var memorySamples = [...]string{
	"/gc/heap/live:bytes",
	"/memory/classes/total:bytes",
	"/memory/classes/heap/objects:bytes",
	"/memory/classes/heap/unused:bytes",
	"/memory/classes/heap/free:bytes",
	"/memory/classes/heap/released:bytes",
	"/gc/cycles/total:gc-cycles",
}
