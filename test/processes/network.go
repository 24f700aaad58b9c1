package processes

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Clients is the name under which whoever is not a node is on the network.
const Clients = "clients"

// A Network is where nodes are, and what happens between them.
type Network interface {
	io.Closer
	// Place returns the address of a node's listeners, the one under which others
	// reach it, and what the command of a process at that place begins with.
	Place(node string) (listen, advertise string, command []string, err error)
	// Hold lets frames from some to others be lost or late, until release is
	// called. It is nil if this network cannot do that.
	Hold(w Weather, links ...Link) (release func())
}

// A Link is a way from one place to another.
type Link struct{ From, To string }

// Weather is what befalls a frame on a link.
type Weather struct {
	Loss  float64 // share that is lost; 1 is a cut
	Delay time.Duration
}

// Between returns the links between one place and others, out of it, into it or
// both.
func Between(one string, others []string, out, in bool) (links []Link) {
	for _, o := range others {
		if o == one {
			continue
		}
		if out {
			links = append(links, Link{one, o})
		}
		if in {
			links = append(links, Link{o, one})
		}
	}
	return links
}

// NewNetwork makes a network: of namespaces as root, else of proxies.
func NewNetwork(seed uint64) (Network, error) {
	if os.Getuid() == 0 {
		return newSwitch(seed)
	}
	return newProxies(), nil
}

// NewLoopback makes a network of proxies, also as root: nodes reach what listens
// on the loopback.
func NewLoopback() Network { return newProxies() }

// skies is the weather on links, of which several may hold at a time.
type skies struct {
	mu   sync.RWMutex
	over map[Link][]*Weather
}

func (s *skies) hold(w Weather, links []Link) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over = map[Link][]*Weather{}
	}
	for _, l := range links {
		s.over[l] = append(s.over[l], &w)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range links {
			s.over[l] = slices.DeleteFunc(s.over[l], func(x *Weather) bool { return x == &w })
		}
	})
}

func (s *skies) on(l Link) (w Weather) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, x := range s.over[l] {
		w.Loss, w.Delay = max(w.Loss, x.Loss), w.Delay+x.Delay
	}
	return w
}

// places gives nodes numbers in the order in which they come.
type places struct {
	mu    sync.Mutex
	names []string
}

func (p *places) number(node string) (n int, anew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.names, node); i >= 0 {
		return i + 1, false
	}
	p.names = append(p.names, node)
	return len(p.names), true
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("processes: %s: %w", what, err)
}
