package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// What a Redis says, or another node through it, is read as it was written, or not
// at all.

func FuzzEpoch(f *testing.F) {
	f.Add(epoch{state: epochOpen, id: "a", generation: 3, replid: "b", runid: "c", until: 5, since: 6}.String())
	f.Add("2  a 0 b c 0 0")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseEpoch(text)
		if err != nil {
			return
		}
		again, err := parseEpoch(e.String())
		require.NoError(t, err)
		again.text = text
		require.Equal(t, e, again)
	})
}

func FuzzTold(f *testing.F) {
	k := session.CounterKey("n", "k")
	value := wire.AppendValue(nil, k, wire.Stamp("0123456789abcdef"), 7, session.Pack(k, &session.Counter{Value: session.Value{N: 5}}).Head)
	p := &place{d: &domain{r: &Store{cfg: Config{monotonic: func() time.Duration { return 0 }}}}}
	name := p.Record(k)
	f.Add("\x00\x00\x00" + string(rune(len(name))) + name + "\x00\x00\x00" + string(rune(len(value))) + string(value))
	f.Add("\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, message string) {
		for _, x := range readTold(p, message) {
			require.True(t, strings.Contains(message, p.Record(x.key)) || strings.Contains(message, string(x.key)))
			require.NotNil(t, x.entry)
		}
	})
}
