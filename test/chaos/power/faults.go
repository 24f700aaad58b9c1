package power

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"example.com/govnode/test/processes/disks"
)

// others are what else befalls a disk.
var others = []fault{
	{"flush fails", func(n *nemesis) error { return n.fails(disks.NoFlush, "input/output error") }},
	{"write fails", func(n *nemesis) error { return n.fails(disks.NoWrite, "input/output error") }},
	{"no room, by the kernel", func(n *nemesis) error { return n.fails(disks.NoRoom, "no space left on device") }},
	{"full disk", (*nemesis).full},
	{"slow disk", (*nemesis).slow},
	{"hanging disk", (*nemesis).hangs},
	{"hanging disk of the leader", func(n *nemesis) error { return n.hang(n.leader()) }},
	{"turned bit", (*nemesis).flip},
	{"turned bit", (*nemesis).flip},
	{"turned bit", (*nemesis).flip},
	{"turned bit", (*nemesis).flip},
	{"turned bit", (*nemesis).flip},
	{"turned bit", (*nemesis).flip},
}

// endsWithin is how long a node may take to end after its disk has failed.
const endsWithin = 15 * time.Second

// saysWhy waits until a process ends by itself, with a sentence.
func saysWhy(x *node, sentence string) error {
	p := x.running()
	select {
	case <-p.ended:
	case <-time.After(endsWithin):
		return fmt.Errorf("%s goes on with a disk that failed: %s", x.name, p.output())
	}
	if said := p.output(); !strings.Contains(said, "cluster: disk: ") || !strings.Contains(said, sentence) {
		return fmt.Errorf("%s ended and does not say that of its disk %q: %s", x.name, sentence, said)
	}
	return p.surprise(x.name)
}

// fails lets the disk of a node fail, which ends it.
func (n *nemesis) fails(t disks.Tampering, sentence string) error {
	x := n.any()
	x.running().expect()
	if err := x.running().tamper(t); err != nil {
		return broken{err}
	}
	if err := saysWhy(x, sentence); err != nil {
		return err
	}
	x.running().leave()
	return n.restart(x)
}

// full leaves no room on the disk of a node. It goes on as long as its log finds
// room in the file that it has, and ends then.
func (n *nemesis) full() error {
	x := n.any()
	x.running().expect()
	release, err := x.disk.Fill()
	if err != nil {
		return broken{err}
	}
	select {
	case <-x.running().ended:
		if err := saysWhy(x, "no space left on device"); err != nil {
			return err
		}
	case <-time.After(5 * time.Second):
		if err := n.whole(); err != nil {
			return err
		}
		if err := x.running().kill(); err != nil {
			return broken{err}
		}
	}
	if err := release(); err != nil {
		return broken{err}
	}
	return n.restart(x)
}

// slow lets each flush of a node take 300 ms for a while, which it must stand.
func (n *nemesis) slow() error {
	x := n.leader()
	if err := x.running().tamper(disks.Slow); err != nil {
		return broken{err}
	}
	n.work(3000)
	x.running().leave()
	return n.whole()
}

func (n *nemesis) hangs() error { return n.hang(n.any()) }

// hang lets the disk of a node hang. It gives it up and ends.
func (n *nemesis) hang(x *node) error {
	p := x.running()
	p.expect()
	if err := p.tamper(disks.Hanging); err != nil {
		return broken{err}
	}
	const sentence = "has taken longer than"
	for end := time.Now().Add(diskTimeout + endsWithin); !strings.Contains(p.output(), sentence); {
		if time.Now().After(end) {
			return fmt.Errorf("%s goes on with a disk that hangs: %s", x.name, p.output())
		}
		n.work(20)
	}
	// A process whose flush hangs in the kernel cannot end before that.
	p.leave()
	if err := saysWhy(x, sentence); err != nil {
		return err
	}
	return n.restart(x)
}

// flip turns a bit in a file of a node that is down. The node serves, or refuses
// with a sentence; what it serves is judged with all the rest. One that refuses
// gets a new disk.
func (n *nemesis) flip() error {
	x := n.any()
	if err := x.running().kill(); err != nil {
		return broken{err}
	}
	where, err := disks.FlipIn(filepath.Join(x.disk.Folder(), "data"), func(path string) bool { return filepath.Base(path) != "audit.jsonl" }, n.rng)
	if err != nil {
		return broken{err}
	}
	n.log("%s: %v", x.name, where)
	p, err := x.start()
	if err != nil {
		return err
	}
	p.expect()
	if err = ready(x); err == nil {
		n.report.Faults["turned bit, and it served"]++
		// It may still find it, when it reads that.
		n.work(500)
	}
	select {
	case <-p.ended:
	default:
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.expected = false
		return nil
	}
	if said := p.output(); !strings.Contains(said, "--replace") {
		return fmt.Errorf("%s refuses %v and does not say what to do: %s", x.name, where, said)
	}
	if err := p.surprise(x.name); err != nil {
		return err
	}
	n.report.Faults["turned bit, and it refused"]++
	return n.replace(x)
}
