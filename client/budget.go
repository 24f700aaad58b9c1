package client

import (
	"sync"
	"time"
)

// A Budget bounds how often requests are sent again: by a bucket of tokens
// that starts full, of which each repetition takes one. A repetition that finds
// it empty waits for the next token or its deadline. The renewal of leases is
// outside of it: it has a pace of its own.
type Budget struct {
	// Ratio is how many tokens each operation adds. 0.1 if 0.
	Ratio float64
	// Burst is how many tokens the bucket holds. 100 if 0.
	Burst float64
	// PerSecond is how many tokens come with time, so that a process that
	// does little can recover. 1 if 0.
	PerSecond float64
}

type bucket struct {
	Budget

	mu     sync.Mutex
	tokens float64
	at     time.Time // when tokens was right
}

func newBucket(b Budget, now time.Time) *bucket {
	return &bucket{Budget: b, tokens: b.Burst, at: now}
}

// earn notes that an operation was begun.
func (b *bucket) earn() {
	b.mu.Lock()
	b.tokens = min(b.Burst, b.tokens+b.Ratio)
	b.mu.Unlock()
}

// take takes a token and returns 0, or returns how long the next one needs.
func (b *bucket) take(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.Burst, b.tokens+b.PerSecond*now.Sub(b.at).Seconds())
	b.at = now
	if b.tokens >= 1 {
		b.tokens--
		return 0
	}
	return time.Duration((1 - b.tokens) / b.PerSecond * float64(time.Second))
}
