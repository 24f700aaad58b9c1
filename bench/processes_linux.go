package bench

import "github.com/prometheus/procfs"

// What a process has used, as Linux tells it.

// ticks is how many units of CPU time the kernel counts in a second, on all
// architectures that Go runs on.
const ticks = 100

// readProcess returns what a process has used so far.
func readProcess(pid int) (usage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return usage{}, err
	}
	s, err := p.Stat()
	if err != nil {
		return usage{}, err
	}
	return usage{user: float64(s.UTime) / ticks, system: float64(s.STime) / ticks, memory: int64(s.ResidentMemory())}, nil
}
