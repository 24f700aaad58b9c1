package session

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"example.com/govnode/internal/seeded"
)

// State that callers keep between calls: the versions of values, so that who
// writes can say what he has seen, and lists, which grow at their end.
//
// A list is a record for its head and one for each item, so that an Append
// rewrites nothing that is large. Nobody takes items away: they lapse, each by
// itself. What a DeleteList leaves out of reach lapses too, or is overwritten by
// the items of a later list of that key.

// Caps of lists. An item counts as MinItemSize at least, so that the bytes of a
// list bound how many records it is.
const (
	MaxItem     = 64 << 10
	MinItemSize = 64
	MaxList     = 4 << 20
	MaxAppend   = 256 // items of one Append
	MaxListTTL  = 30 * 24 * time.Hour
)

// Absent is the version of a value that is not there.
const Absent = "0"

// Version names a value by its content, type and all: 32 hexadecimal digits. Two
// that differ are told apart, and a value that is deleted and set again has the
// version that it had.
func (v Value) Version() string {
	var b []byte
	if v.Number {
		b = binary.BigEndian.AppendUint64([]byte{'n'}, uint64(v.N))
	} else {
		b = append([]byte{'t'}, v.Text...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// IsVersion reports whether a text is the version of a value, or Absent.
func IsVersion(s string) bool {
	if s == Absent {
		return true
	}
	for i := 0; i < len(s); i++ {
		if (s[i] < '0' || s[i] > '9') && (s[i] < 'a' || s[i] > 'f') {
			return false
		}
	}
	return len(s) == 32
}

// ifVersion reports whether the key has the version that a request names; where
// it has another, the answer says which. A request that names none has no
// condition.
func (s *State) ifVersion(k ref, version string, r *Result) bool {
	if version == "" {
		return true
	}
	today := Absent
	if x := s.counter(k); x != nil {
		today = x.Value.Version()
	}
	if today != version && !seeded.On(seeded.BlindSet) {
		r.Code, r.Version = VersionConflict, today
		return false
	}
	return true
}

// List is the head of a list.
type List struct {
	Length int64
	Bytes  int64 // of all items that were appended, lapsed or not
	Until  time.Duration
}

// ListItem is one item of a list.
type ListItem struct {
	Text  string
	Until time.Duration
}

func (l *List) At(now time.Duration) Record {
	if l.Until <= now {
		return nil
	}
	return l
}

func (i *ListItem) At(now time.Duration) Record {
	if i.Until <= now {
		return nil
	}
	return i
}

func (l *List) Due() (time.Duration, bool)     { return l.Until, true }
func (i *ListItem) Due() (time.Duration, bool) { return i.Until, true }

// Names of the records of a list end with a number of fixed length, 0 for the
// head, so that no key of a list can be taken for that of another's item.
const listSuffix = len("/00000000")

// ListKey names the head of a list.
func ListKey(ns, list string) Key { return key(KindList, ns, listName(list, 0)) }

// ListItemKey names the item at an index, which begins at 0.
func ListItemKey(ns, list string, i int64) Key { return key(KindList, ns, listName(list, i+1)) }

func listName(list string, number int64) string { return fmt.Sprintf("%s/%08x", list, number) }

// ofList reports whether a name ends as those of the records of lists do, and
// whether it is that of a head.
func ofList(name string) (ok, head bool) {
	if len(name) <= listSuffix || name[len(name)-listSuffix] != '/' {
		return false, false
	}
	head = true
	for _, c := range []byte(name[len(name)-listSuffix+1:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false, false
		}
		head = head && c == '0'
	}
	return true, head
}

type (
	// Append puts items at the end of a list, which is made if there is none.
	Append struct {
		Authorized
		NS    string
		By    Maker
		Key   string
		Items []string
		TTL   time.Duration
		// From is the length that the list has. It is a premise of the node,
		// unless Exact says that the caller named it.
		From  int64
		Exact bool
	}

	// DeleteList removes a list.
	DeleteList struct {
		Authorized
		NS  string
		By  Maker
		Key string
	}
)

func (*Append) Kind() uint16     { return 34 }
func (*DeleteList) Kind() uint16 { return 35 }

func (c *Append) Touches() []Key {
	keys := append(c.By.touches(c.NS), ListKey(c.NS, c.Key))
	for i := range c.Items {
		keys = append(keys, ListItemKey(c.NS, c.Key, c.From+int64(i)))
	}
	return keys
}

func (c *DeleteList) Touches() []Key { return append(c.By.touches(c.NS), ListKey(c.NS, c.Key)) }

func (c *Append) from() (ns string, by Maker)     { return c.NS, c.By }
func (c *DeleteList) from() (ns string, by Maker) { return c.NS, c.By }

func (c *Append) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Key)
	f.keptAll(4, &c.Items)
	f.Duration(5, &c.TTL)
	f.Int64(6, &c.From)
	f.Bool(7, &c.Exact)
}

func (c *DeleteList) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Key)
}

func (l *List) fields(f *codec) {
	f.Int64(1, &l.Length)
	f.Int64(2, &l.Bytes)
	f.Duration(3, &l.Until)
}

func (i *ListItem) fields(f *codec) {
	f.Kept(1, &i.Text)
	f.Duration(2, &i.Until)
}

func (v *validator) append(c *Append) {
	v.of = "Append"
	v.request(c.NS, c.By)
	v.text("Key", c.Key, 1, MaxKey)
	v.count("Items", len(c.Items), 1, MaxAppend)
	for i, item := range c.Items {
		if v.err != nil {
			return
		}
		v.free(fmt.Sprintf("Items[%d]", i), item, MaxItem)
	}
	between(v, "TTL", c.TTL, 1, MaxListTTL)
	between(v, "From", c.From, 0, MaxList/MinItemSize)
}

// list returns the head of a list as it stands; an empty one if there is none.
func (s *State) list(k ref) List {
	if x, _ := s.lookup(k).(*List); x != nil && x.Until > s.now {
		return *x
	}
	return List{}
}

// append puts items behind the last one. The head lasts as long as the last of
// its items, so that none is lost before its time.
func (s *State) append(c *Append, r *Result) {
	k := ref{KindList, c.NS, listName(c.Key, 0)}
	head := s.list(k)
	if seeded.On(seeded.AppendOver) && !c.Exact {
		head.Length = c.From
	}
	if head.Length != c.From {
		r.Code, r.Value = StalePremise, head.Length
		if c.Exact {
			r.Code = VersionConflict
		}
		return
	}
	for _, item := range c.Items {
		head.Bytes += int64(max(len(item), MinItemSize))
	}
	if head.Bytes > MaxList {
		r.Code, r.Limit = Overflow, MaxList
		return
	}
	until := s.now + c.TTL
	for _, item := range c.Items {
		head.Length++
		s.write(ref{KindList, c.NS, listName(c.Key, head.Length)}, &ListItem{item, until})
	}
	head.Until = max(head.Until, until)
	s.write(k, &head)
	r.Value = head.Length
}

func (s *State) deleteList(c *DeleteList, r *Result) {
	k := ref{KindList, c.NS, listName(c.Key, 0)}
	if s.list(k).Length > 0 {
		r.Value = 1
	}
	s.put(k, nil)
}
