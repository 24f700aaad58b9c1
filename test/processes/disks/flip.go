package disks

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// A Flip is a bit that was turned.
type Flip struct {
	File string
	Byte int64
	Bit  int
}

func (f Flip) String() string { return fmt.Sprintf("bit %d of byte %d of %s", f.Bit, f.Byte, f.File) }

// FlipIn turns one bit of a file below a folder whose node is not running: of
// any byte that is not 0, as what was never written is not read either.
func FlipIn(folder string, wanted func(path string) bool, rng *rand.Rand) (Flip, error) {
	var files []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 && wanted(path) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return Flip{}, err
	}
	if len(files) == 0 {
		return Flip{}, fmt.Errorf("disks: nothing to flip in %s", folder)
	}
	path := files[rng.IntN(len(files))]
	b, err := os.ReadFile(path)
	if err != nil {
		return Flip{}, err
	}
	var used []int64
	for i, c := range b {
		if c != 0 {
			used = append(used, int64(i))
		}
	}
	if len(used) == 0 {
		return Flip{}, fmt.Errorf("disks: nothing to flip in %s", path)
	}
	f := Flip{File: path, Byte: used[rng.IntN(len(used))], Bit: rng.IntN(8)}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return Flip{}, err
	}
	_, err = file.WriteAt([]byte{b[f.Byte] ^ 1<<f.Bit}, f.Byte)
	if close := file.Close(); err == nil {
		err = close
	}
	return f, err
}
