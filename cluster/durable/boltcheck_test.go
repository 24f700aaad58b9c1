package durable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A boltFile is what bolt writes, page by page.
type boltFile struct {
	size int // of a page
	b    []byte
}

// head writes one of the two heads, with its checksum.
func (f *boltFile) head(i int, transaction, root, high uint64) {
	m := f.b[i*f.size+pageHead:][:64]
	binary.LittleEndian.PutUint32(m[8:], uint32(f.size))
	binary.LittleEndian.PutUint64(m[16:], root)
	binary.LittleEndian.PutUint64(m[32:], noFreelist)
	binary.LittleEndian.PutUint64(m[40:], high)
	binary.LittleEndian.PutUint64(m[48:], transaction)
	sum := fnv.New64a()
	_, _ = sum.Write(m[:56])
	binary.LittleEndian.PutUint64(m[56:], sum.Sum64())
}

// put writes a page, and into how many others it goes on.
func (f *boltFile) put(id uint64, kind uint16, elements ...element) {
	b := encodeNode(id, kind, elements...)
	binary.LittleEndian.PutUint32(b[12:], uint32((len(b)-1)/f.size))
	copy(f.at(id), b)
}

func (f *boltFile) at(id uint64) []byte { return f.b[int(id)*f.size:] }

func (f *boltFile) check() error {
	return (&boltCheck{file: bytes.NewReader(f.b), seen: map[uint64]bool{}}).run()
}

func encodeNode(id uint64, kind uint16, elements ...element) []byte {
	b := binary.LittleEndian.AppendUint64(nil, id)
	b = binary.LittleEndian.AppendUint16(b, kind)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(elements)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	end := pageHead * (1 + len(elements))
	for _, e := range elements {
		pos, key := uint32(end-len(b)), uint32(len(e.key))
		if kind == branchPage {
			b = binary.LittleEndian.AppendUint32(b, pos)
			b = binary.LittleEndian.AppendUint32(b, key)
			b = binary.LittleEndian.AppendUint64(b, e.page)
		} else {
			b = binary.LittleEndian.AppendUint32(b, e.flags)
			b = binary.LittleEndian.AppendUint32(b, pos)
			b = binary.LittleEndian.AppendUint32(b, key)
			b = binary.LittleEndian.AppendUint32(b, uint32(len(e.value)))
		}
		end += len(e.key) + len(e.value)
	}
	for _, e := range elements {
		b = append(append(b, e.key...), e.value...)
	}
	return b
}

func keyAt(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// entries are those of a log.
func entries(indexes ...uint64) (all []element) {
	for _, i := range indexes {
		all = append(all, element{key: keyAt(i), value: []byte("entry")})
	}
	return all
}

// bucketAt is a bucket that begins at a page; inlineBucket is one that stands in the
// page of its parent.
func bucketAt(root uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, root), 0)
}

func inlineBucket(kind uint16, elements ...element) []byte {
	return append(bucketAt(0), encodeNode(0, kind, elements...)...)
}

// newBoltFile has a bucket of values within a page, and one of entries, of which
// the fifth goes on in another page. Behind its end, which is page 9, lie pages that
// would be sound.
func newBoltFile() *boltFile {
	f := &boltFile{512, make([]byte, 11*512)}
	f.head(0, 8, 2, 9)
	f.head(1, 7, 2, 9)
	f.roots(inlineBucket(leafPage, element{key: []byte("a"), value: []byte("value")}), bucketAt(3))
	f.put(3, branchPage, element{key: keyAt(1), page: 4}, element{key: keyAt(5), page: 5}, element{key: keyAt(9), page: 7})
	f.put(4, leafPage, entries(1, 2, 3, 4)...)
	f.put(5, leafPage, element{key: keyAt(5), value: bytes.Repeat([]byte("x"), 600)}, entries(6)[0])
	f.put(7, leafPage, entries(9, 10)...)
	f.put(9, leafPage, entries(9)...)
	return f
}

// roots writes the page that has the buckets.
func (f *boltFile) roots(conf, logs []byte) {
	f.put(2, leafPage, element{1, 0, []byte(bucketConf), conf}, element{1, 0, []byte(bucketLogs), logs})
}

// Of all that bolt writes beside keys and values there is one way alone, and whatever
// is otherwise is found, each by itself.
func TestWhatIsAFileOfBolts(t *testing.T) {
	put := func(id uint64, kind uint16, elements ...element) func(*boltFile) {
		return func(f *boltFile) { f.put(id, kind, elements...) }
	}
	conf := func(b []byte) func(*boltFile) { return func(f *boltFile) { f.roots(b, bucketAt(3)) } }
	value := func(key string) element { return element{key: []byte(key), value: []byte("value")} }
	sized := func(key uint64, all int) element { // has a page to itself
		return element{key: keyAt(key), value: make([]byte, all-2*pageHead-8)}
	}
	bucket := func(name string) element { return element{1, 0, []byte(name), inlineBucket(leafPage)} }
	const sound = ""
	for what, c := range map[string]struct {
		change func(f *boltFile)
		text   string
	}{
		"as it is":                       {func(*boltFile) {}, sound},
		"a new one":                      {put(2, leafPage), sound},
		"no values and no entries":       {put(2, leafPage, bucket("conf"), bucket("logs")), sound},
		"two values":                     {conf(inlineBucket(leafPage, value("a"), value("b"))), sound},
		"a page with nothing in it":      {put(7, leafPage), sound},
		"a page that is full":            {put(4, leafPage, sized(1, 512)), sound},
		"a page of one byte more":        {put(7, leafPage, sized(9, 513)), sound},
		"the other bucket is missing":    {put(2, leafPage, bucket("conf")), "a bucket is missing"},
		"the first bucket is missing":    {put(2, leafPage, bucket("logs")), "a bucket is missing"},
		"a third bucket":                 {put(2, leafPage, bucket("conf"), bucket("logs"), bucket("more")), `there is no bucket "more"`},
		"a value where buckets are":      {put(2, leafPage, element{0, 0, []byte("conf"), inlineBucket(leafPage)}, bucket("logs")), `there is no bucket "conf"`},
		"a bucket that is no bucket":     {put(2, leafPage, element{1, 0, []byte("conf"), make([]byte, 15)}, bucket("logs")), `there is no bucket "conf"`},
		"a bucket without a page":        {conf(make([]byte, 20)), "too short"},
		"a bucket among entries":         {put(7, leafPage, element{1, 0, keyAt(9), inlineBucket(leafPage)}), "there is no key 0000000000000009"},
		"a bucket among values":          {conf(inlineBucket(leafPage, bucket("a"))), `there is no key 61 in bucket "conf"`},
		"an entry with another key":      {put(7, leafPage, element{key: append(keyAt(9), 1)}), "there is no key 000000000000000901"},
		"two values under one key":       {conf(inlineBucket(leafPage, value("a"), value("a"))), "keys are not in order"},
		"values in another order":        {conf(inlineBucket(leafPage, value("b"), value("a"))), "keys are not in order"},
		"a value without a key":          {conf(inlineBucket(leafPage, value(""))), "element 0 is elsewhere"},
		"a bucket of pages in a page":    {conf(inlineBucket(branchPage, element{key: []byte("a"), page: 7})), "another size or kind"},
		"a bucket with something behind": {conf(append(inlineBucket(leafPage, value("a")), 0)), "another size or kind"},
		"a bucket that says it is a page": {func(f *boltFile) {
			b := inlineBucket(leafPage, value("a"))
			b[pageHead] = 7
			f.roots(b, bucketAt(3))
		}, "another size or kind"},
		"a bucket that says it goes on": {func(f *boltFile) {
			b := inlineBucket(leafPage, value("a"))
			b[pageHead+12] = 1
			f.roots(b, bucketAt(3))
		}, "another size or kind"},
		"a page behind the end": {put(3, branchPage, element{key: keyAt(1), page: 4}, element{key: keyAt(9), page: 9}), "page 9: there is no such page"},
		"a page that goes on behind it": {func(f *boltFile) {
			f.put(3, branchPage, element{key: keyAt(9), page: 8})
			f.put(8, leafPage, sized(9, 600))
		}, "page 8: it says that it is another one"},
		"a page in another's place":       {func(f *boltFile) { f.at(7)[0] = 6 }, "page 7: it says that it is another one"},
		"a page that two buckets have":    {func(f *boltFile) { f.roots(bucketAt(7), bucketAt(3)) }, "page 7: it is in use twice"},
		"a page in the middle of another": {func(f *boltFile) { f.put(6, leafPage, value("a")); f.roots(bucketAt(6), bucketAt(3)) }, "page 5: it is in use twice"},
		"a page that says it goes on":     {func(f *boltFile) { f.at(7)[12] = 1 }, "page 7: it has another size"},
		"a full page that says so":        {func(f *boltFile) { f.put(7, leafPage, sized(9, 512)); f.at(7)[12] = 1 }, "page 7: it has another size"},
		"a page of no kind":               {func(f *boltFile) { f.at(7)[8] = 3 }, "page 7: it is of kind 3"},
		"a page with nothing below it":    {put(7, branchPage), "page 7: nothing is below it"},
		"an entry that is too long":       {func(f *boltFile) { f.at(7)[pageHead+13] = 2 }, "page 7: element 0 is elsewhere"},
		"more entries than there is room": {func(f *boltFile) { f.at(7)[10] = 40 }, "page 7: it has 40 elements"},
		"an entry under 0": {func(f *boltFile) {
			f.put(3, branchPage, element{key: keyAt(0), page: 4})
			f.put(4, leafPage, entries(0, 1)...)
		}, "there is no key 0000000000000000"},
		"two entries under one key":        {put(4, leafPage, entries(1, 2, 2, 4)...), "page 4: its keys are not in order"},
		"the first two in another order":   {put(4, leafPage, entries(2, 1, 3, 4)...), "page 4: its keys are not in order"},
		"the last two in another order":    {put(4, leafPage, entries(1, 2, 4, 3)...), "page 4: its keys are not in order"},
		"an entry of the page before":      {put(7, leafPage, entries(8, 10)...), "page 7: its keys are not in order"},
		"the first entry of the next page": {put(4, leafPage, entries(1, 2, 3, 5)...), "page 4: its keys are not in order"},
		"an entry of the last page":        {put(5, leafPage, entries(5, 9)...), "page 5: its keys are not in order"},
		"pages in another order": {put(3, branchPage, element{key: keyAt(1), page: 4}, element{key: keyAt(9), page: 7}, element{key: keyAt(5), page: 5}),
			"page 3: its keys are not in order"},
		"the end of a page is missing": {func(f *boltFile) { f.b = f.b[:6*512+300] }, "page 5: EOF"},
		"a page is missing":            {func(f *boltFile) { f.b = f.b[:7*512] }, "page 7: EOF"},
		"the other head is missing":    {func(f *boltFile) { f.b = f.b[:550] }, "EOF"},
		"a changed head":               {func(f *boltFile) { f.at(0)[pageHead+40]++ }, "the checksum of head 0"},
		"the other head is changed":    {func(f *boltFile) { f.at(1)[pageHead+40]++ }, "the checksum of head 1"},
		"a head of other pages": {func(f *boltFile) {
			other := &boltFile{1024, make([]byte, 2048)}
			other.head(1, 7, 2, 9)
			copy(f.at(1)[:512], other.at(1))
		}, "the checksum of head 1"},
	} {
		f := newBoltFile()
		c.change(f)
		err := f.check()
		if c.text == sound {
			require.NoError(t, err, what)
			continue
		}
		require.ErrorContains(t, err, c.text, what)
		require.ErrorIs(t, err, ErrDamaged, what)
	}

	for transaction := range uint64(12) { // the heads are written in turns
		f := newBoltFile()
		f.head(int(transaction%2), transaction+1, 2, 9)
		f.head(int(1-transaction%2), transaction, 1000, 9)
		require.NoError(t, f.check(), "the newer head is the one of transaction %d", transaction+1)
	}
	for size, text := range map[int]string{256: "pages of 256 bytes", 512: sound, 1 << 20: sound, 2 << 20: fmt.Sprintf("pages of %d bytes", 2<<20)} {
		f := &boltFile{size, make([]byte, 3*size)}
		f.head(0, 0, 2, 3)
		f.head(1, 1, 2, 3)
		f.put(2, leafPage)
		if err := f.check(); text == sound {
			require.NoError(t, err, size)
		} else {
			require.ErrorContains(t, err, text)
		}
	}
}
