package bench

import (
	"sync"
	"time"
)

// A Process is one that takes part in a run: the client, a node, a peer.
type Process struct {
	Name string
	PID  int
}

// Client is the name of the process that the callers run in.
const Client = "client"

// A ProcessUse is what one process used while a load was measured.
type ProcessUse struct {
	Name string `json:"name"`
	// User and System are seconds of CPU, of all threads. Linux splits their sum
	// by samples, so the sum is exact and the two are not.
	User   float64 `json:"user_seconds"`
	System float64 `json:"system_seconds"`
	// Memory is what was resident at the end, in bytes.
	Memory int64 `json:"rss_bytes"`
	// Ended says that the process was not there any more, so that nothing of
	// the above is known.
	Ended bool `json:"ended,omitempty"`
}

// CPU is seconds of CPU.
func (u ProcessUse) CPU() float64 { return u.User + u.System }

// perOp returns microseconds of CPU for each operation of a run.
func (r Run) perOp(seconds float64) float64 { return seconds * 1e6 / float64(max(r.Ops, 1)) }

// CPUPerOp returns microseconds of CPU for each operation, of all processes.
func (r Run) CPUPerOp() float64 { return r.perOp(r.cpu()) }

// CoresBusy is how many cores all processes used on average.
func (r Run) CoresBusy() float64 { return r.cpu() / max(r.Duration.Seconds(), 1e-9) }

func (r Run) cpu() (sum float64) {
	for _, p := range r.Processes {
		sum += p.CPU()
	}
	return sum
}

// A ProcessMeter measures what processes use while a load is measured.
type ProcessMeter struct {
	processes []Process
	read      func(pid int) (usage, error)
	timers    []*time.Timer
	mu        sync.Mutex
	from, to  []usage
}

// A usage is what a process has used since it began.
type usage struct {
	user, system float64 // seconds
	memory       int64
	known        bool
}

// WatchProcesses begins to watch processes for a load that is put on them now:
// what they use before its warm-up is over does not count. It knows how on Linux
// alone, and is without results elsewhere.
func WatchProcesses(processes []Process, l Load) *ProcessMeter {
	return watchProcesses(processes, l, readProcess)
}

func watchProcesses(processes []Process, l Load, read func(int) (usage, error)) *ProcessMeter {
	m := &ProcessMeter{processes: processes, read: read}
	m.timers = append(m.timers,
		time.AfterFunc(l.Warmup, func() { m.note(&m.from) }),
		time.AfterFunc(l.Warmup+l.Duration, func() { m.note(&m.to) }))
	return m
}

func (m *ProcessMeter) note(at *[]usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.processes {
		u, err := m.read(p.PID)
		u.known = err == nil
		*at = append(*at, u)
	}
}

// Stop returns what was used. It is called when the load is over, and returns
// nothing for a load that was broken off before.
func (m *ProcessMeter) Stop() []ProcessUse {
	if m.timers[1].Stop() && len(m.first()) > 0 {
		m.note(&m.to) // the load was over a little before its time
	}
	m.timers[0].Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []ProcessUse
	for i, p := range m.processes {
		if i >= len(m.from) || i >= len(m.to) {
			return nil
		}
		from, to := m.from[i], m.to[i]
		u := ProcessUse{Name: p.Name, Ended: true}
		if from.known && to.known {
			u = ProcessUse{Name: p.Name, User: to.user - from.user, System: to.system - from.system, Memory: to.memory}
		}
		all = append(all, u)
	}
	return all
}

func (m *ProcessMeter) first() []usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.from
}
