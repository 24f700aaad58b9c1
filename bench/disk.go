package bench

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A Disk is what the nodes of a cluster had on disk at the end of a load, all of
// them together, in bytes.
type Disk struct {
	Log       int64 `json:"log_bytes"`
	Snapshots int64 `json:"snapshot_bytes"`
	Audit     int64 `json:"audit_bytes"`
	// SnapshotsTaken is how many were finished while it was measured, and
	// SnapshotShare the share of that time in which at least one node was
	// writing one.
	SnapshotsTaken int     `json:"snapshots_taken,omitempty"`
	SnapshotShare  float64 `json:"snapshot_share,omitempty"`
}

// What lies in the folder of a node. All else is its log.
const (
	snapshotFolder  = "snapshots"
	unfinished      = ".tmp" // behind the name of a snapshot that is being written
	auditPrefix     = "audit"
	lookForSnapshot = 10 * time.Millisecond
)

// A DiskMeter watches the folders of nodes while a load is measured.
type DiskMeter struct {
	folders []string
	stop    chan struct{}
	done    sync.WaitGroup

	looks, busy int
	before      map[string]bool // finished when the measurement began
	finished    map[string]bool // ... and when it ended
	err         error
}

// WatchDisk begins to watch folders for a load that is put on their nodes now.
func WatchDisk(folders []string, l Load) *DiskMeter {
	m := &DiskMeter{folders: folders, stop: make(chan struct{})}
	if len(folders) > 0 {
		m.done.Go(func() { m.watch(l) })
	}
	return m
}

func (m *DiskMeter) watch(l Load) {
	select {
	case <-m.stop:
		return
	case <-time.After(l.Warmup):
	}
	over := time.After(l.Duration)
	tick := time.NewTicker(lookForSnapshot)
	defer tick.Stop()
	for {
		if m.look(); m.err != nil {
			return
		}
		select {
		case <-m.stop:
			return
		case <-over:
			return
		case <-tick.C:
		}
	}
}

// look notes which snapshots there are.
func (m *DiskMeter) look() {
	finished, writing := map[string]bool{}, false
	for _, folder := range m.folders {
		found, err := os.ReadDir(filepath.Join(folder, snapshotFolder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.err = err
			return
		}
		for _, f := range found {
			if strings.HasSuffix(f.Name(), unfinished) {
				writing = true
				continue
			}
			finished[filepath.Join(folder, f.Name())] = true
		}
	}
	m.looks++
	if writing {
		m.busy++
	}
	if m.before == nil {
		m.before, m.finished = finished, map[string]bool{}
	}
	for name := range finished { // old ones are removed meanwhile
		if !m.before[name] {
			m.finished[name] = true
		}
	}
}

// Stop returns what was found, when the load is over; nil where there are no
// folders to look into.
func (m *DiskMeter) Stop() (*Disk, error) {
	close(m.stop)
	m.done.Wait()
	if len(m.folders) == 0 || m.err != nil {
		return nil, m.err
	}
	d := &Disk{SnapshotsTaken: len(m.finished)}
	if m.looks > 0 {
		d.SnapshotShare = float64(m.busy) / float64(m.looks)
	}
	for _, folder := range m.folders {
		if err := d.add(folder); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// add adds what a folder holds. Nodes work in it: what vanishes meanwhile does
// not count.
func (d *Disk) add(folder string) error {
	return filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		within, _ := filepath.Rel(folder, path) // path lies in folder
		switch {
		case strings.HasPrefix(within, snapshotFolder+string(filepath.Separator)):
			d.Snapshots += info.Size()
		case strings.HasPrefix(within, auditPrefix):
			d.Audit += info.Size()
		default:
			d.Log += info.Size()
		}
		return nil
	})
}
