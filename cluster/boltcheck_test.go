package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// A file that bbolt has written is whole, however it was written; one that is
// not is never walked in circles.
func TestCheckBolt(t *testing.T) {
	path := filepath.Join(tempDir(t), "f.db")
	require.NoError(t, checkBolt(path), "there is none")
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 16 {
		o := bbolt.Options{NoFreelistSync: round%2 == 0, NoSync: true}
		db, err := bbolt.Open(path, 0o600, &o)
		require.NoError(t, err)
		for range 5 {
			require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists(fmt.Append(nil, "bucket", rng.IntN(3)))
				if err != nil {
					return err
				}
				inner, err := b.CreateBucketIfNotExists([]byte("inner"))
				if err != nil {
					return err
				}
				for range rng.IntN(60) {
					k := fmt.Append(nil, "key", rng.IntN(400))
					if rng.IntN(3) == 0 {
						err = b.Delete(k)
					} else {
						err = b.Put(k, make([]byte, rng.IntN(1+5000*rng.IntN(2))))
					}
					if err != nil {
						return err
					}
				}
				return inner.Put([]byte("k"), make([]byte, rng.IntN(100)))
			}))
		}
		require.NoError(t, db.Close())
		require.NoError(t, checkBolt(path))
	}
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	found := 0
	for range 200 {
		b := append([]byte(nil), whole...)
		page := rng.IntN(len(b) / 4096)
		for range 1 + rng.IntN(4) {
			b[page*4096+rng.IntN(64)] = byte(rng.Uint32())
		}
		if rng.IntN(4) == 0 {
			b = b[:rng.IntN(len(b))]
		}
		require.NoError(t, os.WriteFile(path, b, 0o600))
		if err := checkBolt(path); err != nil {
			found++
			require.ErrorIs(t, err, errDamaged)
			require.ErrorContains(t, err, "--replace")
		}
	}
	require.NotZero(t, found)
}
