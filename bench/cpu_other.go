//go:build !unix

package bench

import "time"

// A cpuMeter measures nothing on systems that do not tell in one way.
type cpuMeter struct{}

func newCPUMeter(time.Time, time.Time) *cpuMeter { return &cpuMeter{} }

func (*cpuMeter) cores() float64 { return 0 }
