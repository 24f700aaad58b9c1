package sim

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// standstill is for how long nothing happens before that is told.
const standstill = time.Minute

// inVirtualTime runs a test in virtual time, which goes on when everybody waits for it or
// for each other. It stands still for good where somebody wants a lock whose holder waits:
// a request does so for no longer than it wants to be answered, and so this is an error of
// what is tested. The process then ends, and prints who waits so.
func inVirtualTime(t *testing.T, run func(t *testing.T)) { watched(t, standstill, run) }

func watched(t *testing.T, standstill time.Duration, run func(t *testing.T)) {
	var beats atomic.Int64
	over, ends := make(chan struct{}), sync.Once{}
	end := func() { ends.Do(func() { close(over) }) } // what is behind run is not watched
	defer end()
	go func() { // outside, where time goes on
		for last := int64(-1); ; {
			select {
			case <-over:
				return
			case <-time.After(standstill):
			}
			next := beats.Load()
			if next == last {
				fmt.Fprintf(os.Stderr, "virtual time has stood still for %v: somebody wants a lock whose holder waits\n%s\n", standstill, hindering())
				os.Exit(2)
			}
			last = next
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		defer close(done)
		go func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(100 * time.Millisecond):
					beats.Add(1)
				}
			}
		}()
		defer end()
		run(t)
	})
}

// A request that wants a lock whose holder waits makes a run fail, and is named.
func TestStandstillIsTold(t *testing.T) {
	const env = "GOVNODE_L1_STANDSTILL"
	if os.Getenv(env) != "" {
		watched(t, 500*time.Millisecond, func(t *testing.T) {
			var mu sync.Mutex
			go func() {
				mu.Lock()
				defer mu.Unlock()
				time.Sleep(time.Hour)
			}()
			time.Sleep(time.Minute)
			wantsTheLock(&mu)
		})
		return
	}
	out, err := testProcess(t.Context(), "^TestStandstillIsTold$", env+"=1")
	require.Error(t, err)
	require.Contains(t, out, "virtual time has stood still for 500ms")
	require.Contains(t, out, "wantsTheLock")
}

func wantsTheLock(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
}

// hindering are the goroutines of virtual time that wait for something else than time and
// each other.
func hindering() string {
	stacks := make([]byte, 64<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var b strings.Builder
	for one := range strings.SplitSeq(string(stacks), "\n\n") {
		head, _, _ := strings.Cut(one, "\n")
		if strings.Contains(head, "synctest bubble") && !strings.Contains(head, "(durable)") {
			b.WriteString(one + "\n\n")
		}
	}
	return b.String()
}
