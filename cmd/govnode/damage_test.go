package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster"
)

// serveOn starts the only node of a cluster on a folder.
func serveOn(t *testing.T, folder, store string) *process {
	t.Helper()
	return start(t, "serve", "--data", folder, "--log-store", store, "--bootstrap", "--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0")
}

// Whatever is wrong with the files of a folder, the node serves or says in a
// sentence what to do; it never ends with a stack trace.
func TestDamagedFolders(t *testing.T) {
	for _, store := range []string{cluster.LogBoltDB, cluster.LogWAL} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			testDamagedFolders(t, store)
		})
	}
}

func testDamagedFolders(t *testing.T, store string) {
	folder := filepath.Join(t.TempDir(), "data")
	node := serveOn(t, folder, store)
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	for i := range 20 {
		cli(t, nil, "pool", "put", fmt.Sprint("p", i), "--slots", "1", "--addr", api)
	}
	node.kill()

	const page = 4096
	type damage struct {
		name string
		do   func(b []byte) []byte
	}
	var damages []damage
	for _, i := range []int{0, 2, 3, 4, 6} {
		damages = append(damages, damage{fmt.Sprint("page ", i, " is full of ones"), func(b []byte) []byte {
			copy(b[min(i*page, len(b)):min((i+1)*page, len(b))], bytes.Repeat([]byte{0xff}, page))
			return b
		}})
	}
	damages = append(damages,
		damage{"zeros behind the first pages", func(b []byte) []byte { clear(b[min(2*page, len(b)):]); return b }},
		damage{"cut off in the middle", func(b []byte) []byte { return b[:len(b)/2] }},
		damage{"cut off behind the first pages", func(b []byte) []byte { return b[:min(2*page+100, len(b))] }},
		damage{"empty", func([]byte) []byte { return nil }},
	)
	var files []string
	require.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			path, err = filepath.Rel(folder, path)
			files = append(files, path)
		}
		return err
	}))
	require.NotEmpty(t, files)
	served, told := 0, 0
	for _, file := range files {
		for _, d := range damages {
			name := file + ": " + d.name
			bad := filepath.Join(t.TempDir(), "data")
			require.NoError(t, os.CopyFS(bad, os.DirFS(folder)))
			b, err := os.ReadFile(filepath.Join(bad, file))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(bad, file), d.do(b), 0o600))
			n := serveOn(t, bad, store)
			if _, err := n.await(nodeLine, 1); err == nil {
				served++
				n.kill()
			} else {
				told++
				require.Contains(t, n.printed(), "--replace", name)
			}
			require.NotContains(t, n.printed(), "goroutine ", name)
			require.NotContains(t, n.printed(), "panic:", name)
			require.NoError(t, os.RemoveAll(bad)) // a log of the other kind takes 64 MiB
		}
	}
	t.Logf("%d served, %d told what to do", served, told)
	require.NotZero(t, told)
}
