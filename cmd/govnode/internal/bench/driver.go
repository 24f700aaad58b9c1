package bench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"example.com/govnode/bench"
)

// A benchDriver drives callers, in this process or in another.
type benchDriver struct {
	drive  func(context.Context, bench.Load, func(bench.Second)) (bench.Run, error)
	verify func(context.Context) (bench.Audit, error)
	stop   func() error
	// processes are those that do the work, and the one that asks for it.
	processes func(context.Context) []bench.Process
	// folders are where nodes that were started here keep their data.
	folders []string
	// snapshots, if not nil, sees to it that snapshots are taken during a load,
	// until it is told to stop. It returns how many were, if the folders do not
	// tell.
	snapshots func(context.Context) (stop func() (taken int, err error))
}

// driverOf drives a target in this process.
func driverOf(t bench.Target) *benchDriver {
	return &benchDriver{
		drive: func(ctx context.Context, l bench.Load, p func(bench.Second)) (bench.Run, error) {
			return bench.Drive(ctx, t, l, p)
		},
		verify:    t.Verify,
		stop:      t.Close,
		processes: alsoSelf(func(context.Context) []bench.Process { return nil }),
	}
}

// alsoSelf adds this process, as the client.
func alsoSelf(others func(context.Context) []bench.Process) func(context.Context) []bench.Process {
	return func(ctx context.Context) []bench.Process {
		return append([]bench.Process{{Name: bench.Client, PID: os.Getpid()}}, others(ctx)...)
	}
}

// over ends the system under the target after the target.
func (d *benchDriver) over(stop func() error) *benchDriver {
	first := d.stop
	d.stop = func() error { return errors.Join(first(), stop()) }
	return d
}

// measured drives a load and adds what each process and the disk had to do with
// it.
func (d *benchDriver) measured(ctx context.Context, l bench.Load, progress func(bench.Second)) (bench.Run, error) {
	processes, disk := bench.WatchProcesses(d.processes(ctx), l), bench.WatchDisk(d.folders, l)
	stop := func() (int, error) { return 0, nil }
	if d.snapshots != nil {
		stop = d.snapshots(ctx)
	}
	run, err := d.drive(ctx, l, progress)
	run.Processes = processes.Stop()
	used, diskErr := disk.Stop()
	run.Disk = used
	taken, saveErr := stop()
	if err := errors.Join(err, diskErr, saveErr); err != nil {
		return run, err
	}
	if d.snapshots == nil {
		return run, nil
	}
	if taken > 0 { // one after another
		run.Disk.SnapshotsTaken, run.Disk.SnapshotShare = taken, 1
	}
	if run.Disk.SnapshotsTaken == 0 {
		return run, fmt.Errorf("no snapshot was taken in %v: give a longer --duration", l.Duration)
	}
	return run, nil
}
