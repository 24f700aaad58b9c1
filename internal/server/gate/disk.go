package gate

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/fault"
)

// A Disk refuses what would make the state grow while the disk of the log has little
// room left: a node that answers "later" goes on with what it has, one whose disk is full
// stops. What ends something or gives it back still has its place in the log.
//
// Without a look at the disk it does nothing.
type Disk struct {
	free    func() (uint64, error) // bytes; nil: not looked at
	reserve uint64
	log     *slog.Logger

	shedding atomic.Bool
	left     atomic.Uint64
	refused  prometheus.Counter

	stop  chan struct{}
	once  sync.Once
	ended sync.WaitGroup
}

// diskCheck is how often the disk is looked at.
const diskCheck = time.Second

// NewDisk watches the room on a disk until it is closed: below reserve bytes new work is
// refused, and from a quarter more on it is taken again.
func NewDisk(r *prometheus.Registry, log *slog.Logger, reserve uint64, free func() (uint64, error)) (*Disk, error) {
	g := &Disk{
		free: free, reserve: reserve, log: log, stop: make(chan struct{}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "gov_disk_refused_total", Help: "Operations refused because the disk of the log had little room left."}),
	}
	left := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gov_disk_free_bytes", Help: "Room on the disk of the log; 0 where it is not looked at."}, func() float64 { return float64(g.left.Load()) })
	for _, c := range []prometheus.Collector{g.refused, left} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("server: metrics: %w", err)
		}
	}
	if free != nil && reserve > 0 {
		g.look()
		g.ended.Go(g.watch)
	}
	return g, nil
}

func (g *Disk) watch() {
	t := time.NewTicker(diskCheck)
	defer t.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-t.C:
			g.look()
		}
	}
}

// look decides whether new work is taken. Where the room cannot be told, it stays as it
// is.
func (g *Disk) look() {
	left, err := g.free()
	if err != nil {
		return
	}
	g.left.Store(left)
	attrs := []any{"free", left, "reserve", g.reserve}
	switch shedding := g.shedding.Load(); {
	case !shedding && left < g.reserve:
		g.shedding.Store(true)
		g.log.Warn("the disk of the log has little room left: new sessions, calls, slots, policies and values are refused until there is more; make room, or lower --disk-reserve", attrs...)
	case shedding && left >= g.reserve+g.reserve/4:
		g.shedding.Store(false)
		g.log.Info("the disk of the log has room again: new work is taken again", attrs...)
	}
}

// Sheds reports whether new work is refused.
func (g *Disk) Sheds() bool { return g.shedding.Load() }

// Admit refuses new work while there is little room.
func (g *Disk) Admit() error {
	if !g.shedding.Load() {
		return nil
	}
	g.refused.Inc()
	return fault.New(connect.CodeResourceExhausted, fault.ReasonOverloaded,
		"the disk of this node has little room left, and it takes nothing new; nothing was applied, send it again with the same id in "+fault.ShedRetry.String()+", to another node too").Later(fault.ShedRetry)
}

// Close ends the watch.
func (g *Disk) Close() {
	g.once.Do(func() { close(g.stop) })
	g.ended.Wait()
}
