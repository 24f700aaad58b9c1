package bench

import (
	"sync/atomic"
	"time"
)

// A cpuMeter measures how many cores this process uses between two times.
type cpuMeter struct {
	span       time.Duration
	used, last atomic.Int64 // nanoseconds
}

func newCPUMeter(from, to time.Time) *cpuMeter {
	m := &cpuMeter{span: to.Sub(from)}
	time.AfterFunc(time.Until(from), func() { m.last.Store(cpuTime()) })
	time.AfterFunc(time.Until(to), func() { m.used.Store(cpuTime() - m.last.Load()) })
	return m
}

func (m *cpuMeter) cores() float64 {
	used := m.used.Load()
	if used == 0 { // the callers were done before the timer was
		used = cpuTime() - m.last.Load()
	}
	return float64(used) / float64(m.span)
}
