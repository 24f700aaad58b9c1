package power

import (
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// Unflushed is a run of nodes whose disks have all that was there when the clients
// had worked for a moment, and later lose power together: what was acknowledged
// meanwhile is there only as far as the nodes have flushed it. A cluster that
// could not even start again would prove nothing.
func Unflushed(s Setting) (*Report, error) {
	return run(s, false, func(r *Rig, f *fleet) error {
		r.work(300 * time.Millisecond)
		for _, n := range r.Nodes {
			if out, err := exec.Command("sync", "--file-system", r.disks[n].Folder()).CombinedOutput(); err != nil {
				return Failure{fmt.Errorf("power: sync: %w: %s", err, out)}
			}
		}
		r.work(1500 * time.Millisecond)
		err := r.cutPower(r.Nodes...)
		f.cuts.Add(1)
		r.work(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if err == nil && len(f.broken) > 0 {
			err = errors.New("nothing is as it was, and clients would wait for it")
		}
		return err
	})
}
