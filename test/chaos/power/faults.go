package power

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"example.com/govnode/test/processes"
	"example.com/govnode/test/processes/disks"
)

// A Fault befalls a running cluster, and leaves it whole. Its error says that the
// cluster did not do what it should, or is a Failure.
type Fault struct {
	Name string
	Do   func(*Rig) error
}

// Powers that are cut.
var (
	CutOne      = Fault{"power cut of one", func(r *Rig) error { return r.cutPower(r.some(1)...) }}
	CutLeader   = Fault{"power cut of the leader", func(r *Rig) error { return r.cutPower(r.leader()) }}
	CutMajority = Fault{"power cut of a majority", func(r *Rig) error { return r.cutPower(r.some(2)...) }}
	CutAll      = Fault{"power cut of all", func(r *Rig) error { return r.cutPower(r.some(3)...) }}
)

// Others are what else befalls a disk.
var Others = []Fault{
	{"flush fails", func(r *Rig) error { return r.fails(disks.NoFlush, "input/output error") }},
	{"write fails", func(r *Rig) error { return r.fails(disks.NoWrite, "input/output error") }},
	{"no room, says the kernel", func(r *Rig) error { return r.fails(disks.NoRoom, "no space left on device") }},
	{"full disk", (*Rig).full},
	{"slow disk", (*Rig).slow},
	{"hanging disk", func(r *Rig) error { return r.hangs(r.any()) }},
	{"hanging disk of the leader", func(r *Rig) error { return r.hangs(r.leader()) }},
	{"turned bit", (*Rig).flip}, // often one that nobody reads
	{"turned bit", (*Rig).flip},
	{"turned bit", (*Rig).flip},
	{"turned bit", (*Rig).flip},
}

// endsWithin is how long a node may take to end after its disk has failed.
const endsWithin = 15 * time.Second

// ends waits until a node ends by itself, with a sentence.
func ends(x *processes.Node, sentence string) error {
	for end := time.Now().Add(endsWithin); x.Runs(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s goes on with a disk that failed: %s", x.Name, x.Said())
		}
	}
	said, err := lastWords(x)
	if err == nil && (!strings.Contains(said, "cluster: disk: ") || !strings.Contains(said, sentence)) {
		err = fmt.Errorf("%s ended and does not say that of its disk %q: %s", x.Name, sentence, said)
	}
	return err
}

// fails lets the disk of a node fail, which ends it.
func (r *Rig) fails(t disks.Tampering, sentence string) error {
	x := r.any()
	if err := r.audits.Full(x, func() error {
		if err := r.tamper(x, t); err != nil {
			return err
		}
		defer r.leave(x)
		return ends(x, sentence)
	}); err != nil {
		return err
	}
	return r.restart(x)
}

// full leaves no room on the disk of a node. It goes on as long as its log finds
// room in the file that it has, and ends then.
func (r *Rig) full() error {
	x := r.any()
	if err := r.audits.Full(x, func() error { return r.fill(x) }); err != nil {
		return err
	}
	return r.restart(x)
}

func (r *Rig) fill(x *processes.Node) error {
	release, err := r.disks[x].Fill()
	if err != nil {
		return Failure{err}
	}
	for end := time.Now().Add(5 * time.Second); x.Runs() && time.Now().Before(end); {
		r.work(20 * time.Millisecond)
	}
	if x.Runs() {
		if err := r.Whole(); err != nil {
			return err
		}
		x.Kill()
	} else if err := ends(x, "no space left on device"); err != nil {
		return err
	}
	if err := release(); err != nil {
		return Failure{err}
	}
	return nil
}

// slow lets each flush of a node take 300 ms for a while, which it must stand.
func (r *Rig) slow() error {
	x := r.leader()
	if err := r.tamper(x, disks.Slow); err != nil {
		return err
	}
	r.work(3 * time.Second)
	r.leave(x)
	return r.Whole()
}

// hangs lets the disk of a node hang. It gives it up and ends. What hangs in the
// kernel keeps the process from ending until then.
func (r *Rig) hangs(x *processes.Node) error {
	if err := r.audits.Full(x, func() error { return r.hang(x) }); err != nil {
		return err
	}
	return r.restart(x)
}

func (r *Rig) hang(x *processes.Node) error {
	if err := r.tamper(x, disks.Hanging); err != nil {
		return err
	}
	const sentence = "has taken longer than"
	for end := time.Now().Add(diskTimeout + endsWithin); x.Runs() && !strings.Contains(x.Said(), sentence); r.work(20 * time.Millisecond) {
		if time.Now().After(end) {
			r.leave(x)
			return fmt.Errorf("%s goes on with a disk that hangs: %s", x.Name, x.Said())
		}
	}
	r.leave(x)
	return ends(x, sentence)
}

// flip turns a bit in a file of a node that is down. The node serves, or refuses
// with a sentence; what it serves is judged with all the rest. One that refuses
// gets a new disk.
func (r *Rig) flip() error {
	x := r.any()
	x.Kill()
	where, err := disks.FlipIn(filepath.Join(r.disks[x].Folder(), "data"), func(path string) bool { return filepath.Base(path) != "audit.jsonl" }, r.Rand)
	if err != nil {
		return Failure{err}
	}
	if err = r.restart(x); err == nil {
		r.work(500 * time.Millisecond) // it may still find it, when it reads that
	}
	if x.Runs() {
		if err == nil {
			r.Faults["turned bit, and it served"]++
			r.Log("%s serves with %v", x.Name, where)
		}
		return err
	}
	// Whoever waited until it was whole may have heard what it said.
	said, trace := lastWords(x)
	said += fmt.Sprint(err)
	if trace != nil || strings.Contains(said, "\ngoroutine ") || strings.Contains(said, "panic:") || !strings.Contains(said, "--replace") {
		return errors.Join(fmt.Errorf("%s refuses %v and does not say what to do: %s", x.Name, where, said), trace)
	}
	r.Faults["turned bit, and it refused"]++
	r.Log("%s refuses %v", x.Name, where)
	if err := r.audits.Lost(x); err != nil {
		return Failure{err}
	}
	if err := r.disks[x].Wipe(); err != nil {
		return Failure{err}
	}
	x.Wiped.Store(true)
	if err := r.Cluster.Start(x); err != nil {
		return Failure{err}
	}
	return r.Whole()
}
