package processes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A segment is a network of namespaces: one interface for each node, whose other
// end is a file that this process reads and writes.
type segment struct {
	skies
	places
	prefix string // of the names of namespaces and of the interface of clients
	subnet string

	mu    sync.Mutex
	rng   *rand.Rand
	ports []*port
	at    map[[6]byte]*port // by the address of who is there
}

// A port is one end of the switch.
type port struct {
	name string
	file *os.File
}

func newSwitch(seed uint64) (*segment, error) {
	// Two runs at a time are on networks of their own.
	pid := os.Getpid()
	s := &segment{
		prefix: fmt.Sprintf("gn%d", pid), subnet: fmt.Sprintf("10.%d.%d.", 128+pid/256%64, pid%256),
		rng: rand.New(rand.NewPCG(seed, 7)), at: map[[6]byte]*port{},
	}
	return s, s.plug(Clients, "", s.subnet+"254")
}

// Place implements Network.
func (s *segment) Place(node string) (listen, advertise string, command []string, err error) {
	n, anew := s.number(node)
	space, address := fmt.Sprintf("%s-%d", s.prefix, n), fmt.Sprintf("%s%d", s.subnet, n)
	if anew {
		if err := ip("netns", "add", space); err != nil {
			return "", "", nil, err
		}
		if err := s.plug(node, space, address); err != nil {
			return "", "", nil, err
		}
	}
	return address, address, []string{"ip", "netns", "exec", space}, nil
}

// Hold implements Network.
func (s *segment) Hold(w Weather, links ...Link) func() { return s.hold(w, links) }

// plug makes an interface in a namespace, or in that of this process, and serves
// its other end.
func (s *segment) plug(name, space, address string) error {
	dev := "eth0"
	if space == "" {
		dev = s.prefix
	}
	file, err := tap(space, dev)
	if err != nil {
		return wrap("an interface for "+name, err)
	}
	in := func(args ...string) []string {
		if space == "" {
			return args
		}
		return append([]string{"-n", space}, args...)
	}
	for _, args := range [][]string{{"addr", "add", address + "/24", "dev", dev}, {"link", "set", dev, "up"}, {"link", "set", "lo", "up"}} {
		if err := ip(in(args...)...); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	p := &port{name, file}
	s.mu.Lock()
	s.ports = append(s.ports, p)
	s.mu.Unlock()
	go s.serve(p) // ends when the file is closed
	return nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("processes: ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// tap makes an interface in a namespace; "" is that of this process.
func tap(space, dev string) (file *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if space != "" {
			runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine, and nobody else gets into the namespace
			var ns *os.File
			if ns, err = os.Open("/var/run/netns/" + space); err != nil {
				return
			}
			defer func() { _ = ns.Close() }()
			if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return
			}
		}
		var fd int
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		var request *unix.Ifreq
		if request, err = unix.NewIfreq(dev); err == nil {
			request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err != nil {
			_ = unix.Close(fd)
			return
		}
		file = os.NewFile(uintptr(fd), dev)
	}()
	<-done
	return file, err
}

// serve passes on what comes in at a port.
func (s *segment) serve(p *port) {
	b := make([]byte, 64<<10)
	for {
		n, err := p.file.Read(b)
		if err != nil {
			return
		}
		if n >= 14 {
			s.pass(p, b[:n])
		}
	}
}

// pass passes a frame on to who it is for, or to everybody.
func (s *segment) pass(from *port, frame []byte) {
	s.mu.Lock()
	s.at[[6]byte(frame[6:12])] = from
	to := s.ports
	if one := s.at[[6]byte(frame[:6])]; one != nil {
		to = []*port{one}
	}
	luck := s.rng.Float64()
	s.mu.Unlock()
	for _, p := range to {
		if p == from {
			continue
		}
		w := s.on(Link{from.name, p.name})
		switch {
		case luck < w.Loss:
		case w.Delay > 0:
			late := append([]byte(nil), frame...)
			time.AfterFunc(w.Delay, func() { _, _ = p.file.Write(late) }) // a cable says nothing of a frame that is lost
		default:
			_, _ = p.file.Write(frame)
		}
	}
}

// Close removes the namespaces and the interfaces.
func (s *segment) Close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.ports {
		err = errors.Join(err, p.file.Close())
	}
	for i := range s.names {
		err = errors.Join(err, ip("netns", "delete", fmt.Sprintf("%s-%d", s.prefix, i+1)))
	}
	return err
}
