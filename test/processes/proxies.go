package processes

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Ports of every node, at its own address.
const (
	APIPort  = 7070
	RaftPort = 7080
)

// proxies is a network on the loopback: each node listens at one address and is
// reached at another, where a proxy is. Nobody can tell who connects, so that a
// link counts for everybody at its other end.
type proxies struct {
	skies
	places
	listen, advertise string // what addresses begin with

	mu        sync.Mutex
	listeners []net.Listener
}

// networks counts those of this process, each of which has addresses of its own.
var networks atomic.Int32

func newProxies() *proxies {
	n := int(networks.Add(1)-1) % 127
	of := 1 + os.Getpid()%250
	return &proxies{listen: fmt.Sprintf("127.%d.%d.", of, 2*n), advertise: fmt.Sprintf("127.%d.%d.", of, 2*n+1)}
}

// Place implements Network.
func (x *proxies) Place(node string) (listen, advertise string, command []string, err error) {
	n, anew := x.number(node)
	listen, advertise = fmt.Sprint(x.listen, n), fmt.Sprint(x.advertise, n)
	if !anew {
		return listen, advertise, nil, nil
	}
	for _, port := range []int{APIPort, RaftPort} {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", advertise, port))
		if err != nil {
			return "", "", nil, wrap("a proxy", err)
		}
		x.mu.Lock()
		x.listeners = append(x.listeners, l)
		x.mu.Unlock()
		go x.serve(node, l, fmt.Sprintf("%s:%d", listen, port))
	}
	return listen, advertise, nil, nil
}

// anybody is at the other end of each link.
const anybody = "*"

// Hold implements Network. It can do what befalls one node alone, and no loss of
// a share.
func (x *proxies) Hold(w Weather, links ...Link) func() {
	if w.Loss > 0 && w.Loss < 1 {
		return nil
	}
	for _, one := range []string{links[0].From, links[0].To} {
		all := map[Link]bool{}
		for _, l := range links {
			switch one {
			case l.From:
				all[Link{one, anybody}] = true
			case l.To:
				all[Link{anybody, one}] = true
			default:
				all = nil
			}
			if all == nil {
				break
			}
		}
		if all != nil {
			return x.hold(w, slices.Collect(maps.Keys(all)))
		}
	}
	return nil
}

func (x *proxies) serve(node string, l net.Listener, to string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			there, err := net.DialTimeout("tcp", to, time.Second)
			if err != nil {
				return
			}
			defer func() { _ = there.Close() }()
			ended := make(chan struct{}, 2)
			go x.copy(there, c, Link{anybody, node}, ended)
			go x.copy(c, there, Link{node, anybody}, ended)
			<-ended
		}()
	}
}

// copy passes bytes on, late, or not while the link is cut.
func (x *proxies) copy(to, from net.Conn, l Link, ended chan<- struct{}) {
	defer func() { ended <- struct{}{} }()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		for w := x.on(l); err == nil && w.Loss == 1; w = x.on(l) {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(x.on(l).Delay)
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// Close ends the proxies; connections end with their nodes.
func (x *proxies) Close() (err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}
