package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"

	"go.etcd.io/bbolt"
)

// checkBolt reads a bolt file as a whole and returns what is wrong with it.
//
// bbolt believes its pages. Where one bit of them has changed it panics, on a
// goroutine of its own at times, recurses without end, gives back an older page
// that still lies about, or leaves entries out without a word; so that is found
// out before. bbolt writes a page in one way alone, its parts behind each other
// without a gap, and of that nothing can change unseen: each page is held to it,
// to its place and to the order of the keys. What stands under the keys is
// sealed, and a sound page in the place of another one is noticed by what is
// missing then; see sealedLog and values.
func checkBolt(path string, o *bbolt.Options) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // it will be made
	}
	if err != nil {
		return err
	}
	// Reading it needs the lock: another process may be writing.
	reading := *o
	reading.ReadOnly, reading.PreLoadFreelist, reading.InitialMmapSize = true, false, 0
	db, err := bbolt.Open(path, 0o600, &reading)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	err = (&boltCheck{file: f, seen: map[uint64]bool{}}).run()
	return errors.Join(err, f.Close(), db.Close())
}

// The buckets of raft-boltdb: entries by index, in big endian, and the values
// beside them.
const (
	bucketLogs = "logs"
	bucketConf = "conf"
)

type boltCheck struct {
	file     io.ReaderAt
	pageSize uint64
	high     uint64 // pages
	seen     map[uint64]bool
}

// The flags of pages, and what stands in a file for no list of free pages.
const (
	branchPage   = 1
	leafPage     = 2
	freelistPage = 16
	noFreelist   = math.MaxUint64
	pageHead     = 16 // bytes, and as many for each element and the head of a bucket
)

func (c *boltCheck) run() error {
	root, err := c.metas()
	if err != nil {
		return err
	}
	missing := map[string]bool{bucketLogs: true, bucketConf: true}
	err = c.page(root, nil, nil, func(flags uint32, k, v []byte) error {
		bucket := string(k)
		if flags != 1 || !missing[bucket] || len(v) < pageHead {
			return fmt.Errorf("%w: there is no bucket %q", ErrDamaged, k)
		}
		delete(missing, bucket)
		plain := func(flags uint32, k, _ []byte) error {
			if flags != 0 || bucket == bucketLogs && (len(k) != 8 || binary.BigEndian.Uint64(k) == 0) {
				return fmt.Errorf("%w: there is no key %x in bucket %q", ErrDamaged, k, bucket)
			}
			return nil
		}
		if root := binary.LittleEndian.Uint64(v); root != 0 {
			return c.page(root, nil, nil, plain)
		}
		return c.inline(v[pageHead:], plain)
	})
	if err == nil && len(missing) == 1 {
		err = fmt.Errorf("%w: a bucket is missing", ErrDamaged) // they are made together
	}
	return err
}

// metas checks the two heads of the file, which are written in turns and have
// checksums, and returns the page at which the newer one begins. bbolt would go
// on with the older one if the newer one is damaged, without the latest entry.
func (c *boltCheck) metas() (root uint64, err error) {
	var head [pageHead + 64]byte
	if _, err := c.file.ReadAt(head[:], 0); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	c.pageSize = uint64(binary.LittleEndian.Uint32(head[pageHead+8:]))
	if c.pageSize < 512 || c.pageSize > 1<<20 {
		return 0, fmt.Errorf("%w: pages of %d bytes", ErrDamaged, c.pageSize)
	}
	newest := uint64(0)
	for i := range uint64(2) {
		if _, err := c.file.ReadAt(head[:], int64(i*c.pageSize)); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		m := head[pageHead:]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:56]) // a hash takes everything
		if binary.LittleEndian.Uint64(m[56:]) != sum.Sum64() || uint64(binary.LittleEndian.Uint32(m[8:])) != c.pageSize {
			return 0, fmt.Errorf("%w: the checksum of head %d of the file is wrong", ErrDamaged, i)
		}
		transaction := binary.LittleEndian.Uint64(m[48:])
		if i > 0 && transaction < newest {
			continue
		}
		newest, root, c.high = transaction, binary.LittleEndian.Uint64(m[16:]), binary.LittleEndian.Uint64(m[40:])
		if free := binary.LittleEndian.Uint64(m[32:]); free != noFreelist {
			if err := c.noneFree(free); err != nil {
				return 0, err
			}
		}
	}
	return root, nil
}

// noneFree checks the list of free pages of a file that was just made. Later
// there is none.
func (c *boltCheck) noneFree(id uint64) error {
	b := make([]byte, c.pageSize)
	if _, err := c.file.ReadAt(b, int64(id*c.pageSize)); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if binary.LittleEndian.Uint64(b) != id || binary.LittleEndian.Uint16(b[8:]) != freelistPage || binary.LittleEndian.Uint16(b[10:]) != 0 || binary.LittleEndian.Uint32(b[12:]) != 0 {
		return fmt.Errorf("%w: page %d", ErrDamaged, id)
	}
	return nil
}

// page checks a page and all below it, whose keys lie between low and high, and
// calls leaf with what they hold.
func (c *boltCheck) page(id uint64, low, high []byte, leaf func(flags uint32, k, v []byte) error) error {
	bad := func(what string) error { return fmt.Errorf("%w: page %d: %s", ErrDamaged, id, what) }
	if id < 2 || id >= c.high {
		return bad("there is no such page")
	}
	b := make([]byte, c.pageSize)
	if _, err := c.file.ReadAt(b, int64(id*c.pageSize)); err != nil {
		return bad(err.Error())
	}
	more := uint64(binary.LittleEndian.Uint32(b[12:]))
	if binary.LittleEndian.Uint64(b) != id || id+more >= c.high {
		return bad("it says that it is another one")
	}
	for i := id; i <= id+more; i++ {
		if c.seen[i] {
			return bad("it is in use twice")
		}
		c.seen[i] = true
	}
	if more > 0 {
		b = append(b, make([]byte, more*c.pageSize)...)
		if _, err := c.file.ReadAt(b[c.pageSize:], int64((id+1)*c.pageSize)); err != nil {
			return bad(err.Error())
		}
	}
	n, used, err := parseNode(b)
	if err != nil {
		return bad(err.Error())
	}
	if (uint64(used)+c.pageSize-1)/c.pageSize != more+1 {
		return bad("it has another size")
	}
	for i, e := range n.elements {
		if i == 0 && bytes.Compare(e.key, low) < 0 || i > 0 && bytes.Compare(e.key, n.elements[i-1].key) <= 0 || high != nil && bytes.Compare(e.key, high) >= 0 {
			return bad("its keys are not in order")
		}
	}
	for i, e := range n.elements {
		if n.leaf {
			err = leaf(e.flags, e.key, e.value)
		} else {
			next := high
			if i+1 < len(n.elements) {
				next = n.elements[i+1].key
			}
			err = c.page(e.page, e.key, next, leaf)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inline checks a bucket that is so small that it stands in the page of its
// parent.
func (c *boltCheck) inline(b []byte, leaf func(flags uint32, k, v []byte) error) error {
	n, used, err := parseNode(b)
	if err == nil && (!n.leaf || used != len(b) || binary.LittleEndian.Uint64(b) != 0 || binary.LittleEndian.Uint32(b[12:]) != 0) {
		err = errors.New("it has another size or kind")
	}
	if err != nil {
		return fmt.Errorf("%w: a bucket within a page: %w", ErrDamaged, err)
	}
	for i, e := range n.elements {
		if i > 0 && bytes.Compare(e.key, n.elements[i-1].key) <= 0 {
			return fmt.Errorf("%w: a bucket within a page: its keys are not in order", ErrDamaged)
		}
		if err := leaf(e.flags, e.key, e.value); err != nil {
			return err
		}
	}
	return nil
}

// A node is what a page holds.
type node struct {
	leaf     bool
	elements []element
}

type element struct {
	flags      uint32
	page       uint64
	key, value []byte
}

// parseNode reads a page and returns how many bytes of it are in use.
func parseNode(b []byte) (n node, used int, err error) {
	if len(b) < pageHead {
		return n, 0, errors.New("it is too short")
	}
	kind, count := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	if kind != branchPage && kind != leafPage {
		return n, 0, fmt.Errorf("it is of kind %d", kind)
	}
	n.leaf = kind == leafPage
	if !n.leaf && count == 0 {
		return n, 0, errors.New("nothing is below it")
	}
	used = pageHead * (1 + count)
	if used > len(b) {
		return n, 0, fmt.Errorf("it has %d elements", count)
	}
	for i := range count {
		at := pageHead * (1 + i)
		field := func(i int) uint64 { return uint64(binary.LittleEndian.Uint32(b[at+4*i:])) }
		var e element
		pos, keys, values := field(0), field(1), uint64(0)
		if n.leaf {
			e.flags = uint32(field(0))
			pos, keys, values = field(1), field(2), field(3)
		} else {
			e.page = binary.LittleEndian.Uint64(b[at+8:])
		}
		end := uint64(used) + keys + values
		if uint64(at)+pos != uint64(used) || keys == 0 || end > uint64(len(b)) {
			return n, 0, fmt.Errorf("element %d is elsewhere", i)
		}
		e.key, e.value = b[used:uint64(used)+keys], b[uint64(used)+keys:end]
		n.elements = append(n.elements, e)
		used = int(end)
	}
	return n, used, nil
}
