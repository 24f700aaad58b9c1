package bench

import (
	"fmt"
	"math"
	"time"
)

// A Fit says how many agents a system can hold.
type Fit struct {
	CallsPerMinute float64       `json:"calls_per_minute"` // of one agent
	Hold           time.Duration `json:"hold"`             // of one call
	Throughput     float64       `json:"throughput"`       // operations a second that are reckoned with
	OpsPerCall     float64       `json:"ops_per_call"`
	Agents         int64         `json:"agents"`
	// OpenCalls is how many calls of all agents are open at a time, on average
	// (Little's law). Pools must have as many slots.
	OpenCalls int64 `json:"open_calls"`
	// PerAgent is how many calls one agent has open at a time, on average. An
	// agent that makes one call after another cannot have more than one.
	PerAgent float64 `json:"per_agent"`
}

// renewEvery is how often the client renews what it holds: a third of the lease
// of 30 s.
const renewEvery = 10 * time.Second

// FitAgents reckons how many agents fit, from a throughput in operations a
// second. A call costs its begin, its end, and a renewal every 10 s.
func FitAgents(throughput, callsPerMinute float64, hold time.Duration) (Fit, error) {
	switch {
	case throughput <= 0 || math.IsNaN(throughput) || math.IsInf(throughput, 0):
		return Fit{}, fmt.Errorf("throughput: %v: nothing was measured to reckon with", throughput)
	case callsPerMinute <= 0 || math.IsNaN(callsPerMinute) || math.IsInf(callsPerMinute, 0):
		return Fit{}, fmt.Errorf("calls-per-agent: %v: must be more than 0 calls a minute", callsPerMinute)
	case hold < 0:
		return Fit{}, fmt.Errorf("hold: %v: must not be negative", hold)
	}
	f := Fit{CallsPerMinute: callsPerMinute, Hold: hold, Throughput: throughput}
	f.OpsPerCall = 2 + float64(hold/renewEvery)
	perSecond := callsPerMinute / 60
	f.PerAgent = perSecond * hold.Seconds()
	f.Agents = int64(throughput / (perSecond * f.OpsPerCall))
	f.OpenCalls = int64(math.Ceil(float64(f.Agents) * f.PerAgent))
	return f, nil
}
