package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The format of bbolt's files, as far as it is looked at. All numbers are those
// of the machine.
const (
	boltMagic  = 0xED0CDAED
	boltHead   = 16 // of a page: id, flags, count, overflow
	boltMeta   = 64 // behind it, with its checksum at the end
	boltElem   = 16 // of a page; those of both kinds are as long
	boltBranch = 0x01
	boltLeaf   = 0x02
	boltBucket = 0x01 // flag of an element: its value is a root, and perhaps a page
	boltDepth  = 64   // of pages and buckets; a tree of 2^64 entries has less
)

// checkBolt holds the tree of a file of bbolt against its format. bbolt takes a
// file for what it has written: on another one it runs in circles, or ends the
// process from a goroutine of its own.
func checkBolt(path string) (err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is made
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	c := boltCheck{f: f, size: info.Size(), seen: map[uint64]bool{}}
	wrong := c.check()
	if wrong == nil {
		return nil
	}
	// A file that another process is writing is not what it seems.
	err = guarded(func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
		if err != nil {
			return err
		}
		return db.Close()
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return err
	}
	return fmt.Errorf("%w: %s: %w; %s", errDamaged, path, wrong, adviceReplace)
}

type boltCheck struct {
	f    io.ReaderAt
	size int64
	page int64 // bytes
	seen map[uint64]bool
}

func (c *boltCheck) check() error {
	root, pages, err := c.meta()
	if err != nil {
		return err
	}
	if int64(pages) < 0 || int64(pages) > c.size/c.page {
		return fmt.Errorf("it ends before its page %d", pages)
	}
	return c.walk(root, 0)
}

// meta returns what the newer of the two heads that hold says: the page of the
// root, and how many pages there are.
func (c *boltCheck) meta() (root, pages uint64, err error) {
	var newest uint64
	err = errors.New("neither of its heads is whole")
	second := int64(os.Getpagesize())
	for i := range 2 {
		b, short := c.read(int64(i)*second, boltHead+boltMeta)
		if short != nil {
			continue
		}
		m, n := b[boltHead:], binary.NativeEndian
		sum := fnv.New64a()
		_, _ = sum.Write(m[:56]) // never fails
		if n.Uint32(m) != boltMagic || n.Uint64(m[56:]) != sum.Sum64() || n.Uint32(m[8:]) < boltHead+boltMeta {
			continue
		}
		if i == 0 {
			second = int64(n.Uint32(m[8:]))
		}
		if txid := n.Uint64(m[48:]); err != nil || txid > newest {
			newest, err = txid, nil
			c.page, root, pages = int64(n.Uint32(m[8:])), n.Uint64(m[16:]), n.Uint64(m[40:])
		}
	}
	return root, pages, err
}

// walk looks at a page and all below it.
func (c *boltCheck) walk(id uint64, depth int) error {
	if id < 2 || id >= uint64(c.size/c.page) || depth > boltDepth || c.seen[id] {
		return fmt.Errorf("page %d stands where none can be", id)
	}
	c.seen[id] = true
	at := int64(id) * c.page
	b, err := c.read(at, boltHead)
	if err != nil {
		return err
	}
	length := c.page * (1 + int64(binary.NativeEndian.Uint32(b[12:])))
	if got := binary.NativeEndian.Uint64(b); got != id || length > c.size-at {
		return fmt.Errorf("page %d is something else", id)
	}
	return c.elements(b, at, length, depth)
}

// elements looks at those of a page, which begins at that place and has that
// length.
func (c *boltCheck) elements(head []byte, at, length int64, depth int) error {
	n := binary.NativeEndian
	flags, count := n.Uint16(head[8:]), int64(n.Uint16(head[10:]))
	if flags != boltBranch && flags != boltLeaf || flags == boltBranch && count == 0 || boltHead+count*boltElem > length {
		return fmt.Errorf("the page at byte %d is something else", at)
	}
	b, err := c.read(at+boltHead, int(count*boltElem))
	if err != nil {
		return err
	}
	for i := range count {
		e, place := b[i*boltElem:], boltHead+i*boltElem // in the page, as its position counts from there
		if flags == boltBranch {
			if place+int64(n.Uint32(e))+int64(n.Uint32(e[4:])) > length {
				return fmt.Errorf("a key of the page at byte %d ends behind it", at)
			}
			if err := c.walk(n.Uint64(e[8:]), depth+1); err != nil {
				return err
			}
			continue
		}
		value := place + int64(n.Uint32(e[4:])) + int64(n.Uint32(e[8:]))
		size := int64(n.Uint32(e[12:]))
		if value+size > length {
			return fmt.Errorf("an entry of the page at byte %d ends behind it", at)
		}
		if n.Uint32(e)&boltBucket == 0 {
			continue
		}
		if err := c.bucket(at+value, size, depth); err != nil {
			return err
		}
	}
	return nil
}

// bucket looks at one: the page of its root, or 0 and the page itself.
func (c *boltCheck) bucket(at, size int64, depth int) error {
	const head = 16 // root, sequence
	b, err := c.read(at, head)
	if err != nil || size < head || depth > boltDepth {
		return fmt.Errorf("the bucket at byte %d is something else", at)
	}
	if root := binary.NativeEndian.Uint64(b); root != 0 {
		return c.walk(root, depth+1)
	}
	if b, err = c.read(at+head, boltHead); err != nil {
		return err
	}
	if binary.NativeEndian.Uint16(b[8:]) != boltLeaf {
		return fmt.Errorf("the bucket at byte %d is something else", at)
	}
	return c.elements(b, at+head, size-head, depth+1)
}

func (c *boltCheck) read(at int64, n int) ([]byte, error) {
	if at < 0 || at+int64(n) > c.size {
		return nil, errors.New("it is too short")
	}
	b := make([]byte, n)
	_, err := c.f.ReadAt(b, at)
	return b, err
}
