package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	strict "github.com/go-json-experiment/json"

	"example.com/govnode/session"
)

// A File is a part of a node's log.
type File struct {
	Name string
	Text io.Reader
}

// Heads are the chains of the state, as they stood before the files were read.
type Heads struct {
	At         time.Time // of the node that was asked
	Namespaces []string  // that they are of; all if empty
	Links      []Link
	// Generations are those at which the state stands, by namespace. One that is not
	// known is that of the newest link.
	Generations map[string]uint32
}

// Against is what files are held to beside themselves. The zero value is nothing.
type Against struct {
	Heads *Heads // nil: nobody can tell whether lines are missing at the end
	// Roots are the authorities of nodes' certificates, for the signatures of anchors.
	// Nil: they are not looked at.
	Roots *x509.CertPool

	anchors []*placed // kept elsewhere
}

func (h *Heads) covers(k session.Key) bool {
	return h != nil && (len(h.Namespaces) == 0 || slices.Contains(h.Namespaces, k.Namespace()))
}

// A Problem is a place that is wrong or missing.
type Problem struct {
	File string // empty where no file has it
	Line int    // from 1
	What string
}

func (p *Problem) String() string {
	if p.File == "" {
		return p.What
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.What)
}

// A Report says what was found.
type Report struct {
	Lines, Changes, Chains int
	Unchained              int // lines that were written before the chain was
	Problems               []Problem
	Notes                  []string // what could not be verified
}

// A placed line is one of a file.
type placed struct {
	Line
	file string
	line int
	body []byte // that its hash is over
	hash session.Digest
}

// A link is a Link with what it was made of, and where it stands.
type link struct {
	Link
	code    session.Code
	audited session.Digest
	from    *placed
	at      string
	last    bool // nothing follows from it
}

type verifier struct {
	Report
	nodes   map[string][]*placed
	order   []string
	links   map[session.Key][]*link
	learned []*link
	unknown map[session.Key][]*asked
	folded  map[session.Key][]*folded
	open    []*open
	against Against
	bare    int  // files without one line of a chain
	tired   bool // the latest search of a way through has tried as much as it may

	restores []restore
}

// An asked is a change that its node has not learned the outcome of.
type asked struct {
	digest session.Digest // of what was said
	likely []session.Code // that it has had, if it was applied; the likeliest first
	used   bool           // a place of a chain was found to be it
}

// An open link is one that nothing follows from, and no line says that the chain has
// ended there. It may have, where that line was lost with its node or with a leadership:
// what the line said follows from the link, and a place in the namespace's chain is for it.
type open struct {
	fold  *asked
	wrong func() // nil: nothing says that it should have ended
}

// A folded is a chain as it ended, by the line that says so.
type folded struct {
	Link
	from *placed
}

// maxLine bounds a line; nodes write shorter ones.
const maxLine = 4 << 20

// Verify looks at the files of all nodes, and holds them to each other and to what else
// is known. The error is one of reading.
func Verify(files []File, against Against) (*Report, error) {
	v := &verifier{
		nodes: map[string][]*placed{}, links: map[session.Key][]*link{}, unknown: map[session.Key][]*asked{},
		folded: map[session.Key][]*folded{}, against: against,
	}
	for _, f := range files {
		if err := v.read(f); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	for _, node := range v.order {
		v.node(node)
	}
	v.anchors()
	v.chains()
	return &v.Report, nil
}

func (v *verifier) wrong(at *placed, format string, args ...any) {
	p := Problem{What: fmt.Sprintf(format, args...)}
	if at != nil {
		p.File, p.Line = at.file, at.line
	}
	v.Problems = append(v.Problems, p)
}

func (v *verifier) read(f File) error {
	lines := bufio.NewScanner(f.Text)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	chained, bare := false, 0
	var torn []piece
	for n := 1; lines.Scan(); n++ {
		text := lines.Bytes()
		at := &placed{file: f.Name, line: n}
		if len(bytes.TrimSpace(text)) == 0 {
			continue // a write that was cut off is followed by one
		}
		v.Lines++
		body, hash, ok := unseal(text)
		// A name that is there twice, or in another case, is read by others in another way:
		// what they are shown would not be what is proven here.
		if !ok || strict.Unmarshal(text, &at.Line) != nil {
			if !ok && !chained && json.Valid(text) {
				v.Unchained++
				bare++
				continue
			}
			torn = append(torn, piece{at, bytes.Clone(text)})
			continue
		}
		v.torn(torn, text)
		torn = nil
		if !chained && bare > 0 && at.Seq != 1 {
			v.wrong(at, "%d lines without a seal stand before line %d of node %s: they were put there, or their seals removed", bare, at.Seq, at.Node)
		}
		chained = true
		at.body, at.hash = bytes.Clone(body), hash
		if v.nodes[at.Node] == nil {
			v.order = append(v.order, at.Node)
		}
		v.nodes[at.Node] = append(v.nodes[at.Node], at)
		v.note(at)
	}
	v.torn(torn, nil)
	if !chained {
		v.bare++
	}
	return lines.Err()
}

// note takes down the links that a line tells of.
func (v *verifier) note(at *placed) {
	if c := at.Change; c != nil {
		v.Changes++
		var said Said
		if err := strict.Unmarshal(c.Said, &said); err != nil {
			v.wrong(at, "what was said of the change cannot be read")
			return
		}
		if at.Principal != "" && !said.isBy(at.Principal) {
			v.wrong(at, "the principal %q is not who asked for the change", at.Principal)
		}
		if said.Namespace != at.Namespace || c.Chain.Namespace() != at.Namespace || at.Event != "change" {
			v.wrong(at, "the line is of another type or namespace than the change in it")
		}
		switch {
		case c.N == 0 && at.Outcome != "" && at.Outcome != "unknown":
			v.wrong(at, "the line has the outcome %q, and no place in the chain of its record that would prove it", at.Outcome)
		case c.N > 0 && at.Outcome != "" && at.Outcome != c.Code.String():
			v.wrong(at, "the line has the outcome %q, and the change %q", at.Outcome, c.Code)
		}
		digest := Digest(c.Said)
		if c.N == 0 {
			a := &asked{digest: digest, likely: said.likely()}
			if c.Code != session.Done && !c.Code.Failure() { // of a repeat, which is mostly the first outcome
				a.likely = []session.Code{c.Code}
			}
			v.unknown[c.Chain] = append(v.unknown[c.Chain], a)
			return
		}
		l := &link{Link: c.Link, code: c.Code, audited: digest, from: at, at: at.At}
		if c.Learned {
			v.learned = append(v.learned, l)
			return
		}
		v.links[c.Chain] = append(v.links[c.Chain], l)
	}
	if f := at.Fold; f != nil {
		of, err := f.Of.chain()
		if err != nil {
			v.wrong(at, "the chain that ended cannot be read: %v", err)
			return
		}
		v.folded[f.Of.Chain] = append(v.folded[f.Of.Chain], &folded{f.Of, at})
		fold := session.Fold{Key: f.Of.Chain, Chain: *of}
		v.links[f.Chain] = append(v.links[f.Chain], &link{Link: f.Link, code: session.Done, audited: fold.Audited(), from: at, at: at.At})
	}
	if at.Event == RestoredEvent {
		v.noteRestore(at)
	}
}

// isBy reports whether it was that principal: of the namespace, of the cluster, or of
// none, as nodes and local users are.
func (s *Said) isBy(name string) bool {
	return slices.ContainsFunc([]string{s.Namespace, session.ClusterNamespace, ""}, func(ns string) bool {
		who := session.PrincipalOf(ns, name)
		return s.Principal == hex.EncodeToString(who[:])
	})
}

// likely are the outcomes that such a change has most often.
func (s *Said) likely() []session.Code {
	switch s.Do {
	case "Begin":
		return []session.Code{session.Admitted, session.Denied, session.Queued}
	case "Acquire", "TakeRate":
		return []session.Code{session.Admitted, session.Queued}
	case "End":
		return []session.Code{session.Ended}
	case "Release":
		return []session.Code{session.Released}
	case "Cancel":
		return []session.Code{session.WaitCancelled}
	}
	return []session.Code{session.Done}
}

func (l *Link) chain() (*session.Chain, error) {
	head, err := hash(l.Head)
	return &session.Chain{N: l.N, Generation: l.Generation, Head: head}, err
}

// node follows the chain of one node's lines.
func (v *verifier) node(name string) {
	all := ordered(v.nodes[name])
	v.nodes[name] = all
	var seq uint64
	var hash session.Digest
	known := true // what hash is
	for _, l := range all {
		switch {
		case l.Seq == 1 && seq > 0 && l.hash != all[0].hash && next(session.Digest{}, l.body) == l.hash:
			v.wrong(l, "the log of node %s was begun anew here, behind line %d: its node did not find the file, or it was written anew", name, seq)
			hash, known = session.Digest{}, true
		case l.Seq <= seq:
			v.wrong(l, "line %d of node %s stands behind line %d: it is there twice, was moved, or the log was begun anew", l.Seq, name, seq)
			continue
		case l.Seq > seq+1:
			v.wrong(l, "%s missing before this one: removed, lost when the disk was full, or in a file that was not given", span(seq+1, l.Seq-1, name))
			known = false
		}
		if known && next(hash, l.body) != l.hash {
			v.wrong(l, "line %d of node %s is not what was written, or the line before it is not", l.Seq, name)
		}
		if a := l.Anchor; a != nil && known && a.Was != hex.EncodeToString(hash[:]) {
			v.wrong(l, "the anchor is of other lines than those before it")
		}
		seq, hash, known = l.Seq, l.hash, true
	}
}

func span(from, to uint64, node string) string {
	if from == to {
		return fmt.Sprintf("line %d of node %s is", from, node)
	}
	return fmt.Sprintf("lines %d to %d of node %s are", from, to, node)
}

// uncovered are the namespaces of chains of which there are no heads, some of many.
func (v *verifier) uncovered(chains []session.Key) []string {
	const most = 8
	seen := map[string]bool{}
	for _, k := range chains {
		if !v.against.Heads.covers(k) {
			seen[k.Namespace()] = true
		}
	}
	names := slices.Sorted(maps.Keys(seen))
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more namespaces", len(names)-most))
	}
	return names
}

// chains follows the chains of records.
func (v *verifier) chains() {
	v.learn()
	v.Chains = len(v.links)
	live := map[session.Key]Link{}
	if v.against.Heads != nil {
		for _, h := range v.against.Heads.Links {
			live[h.Chain] = h
		}
	}
	keys := slices.Collect(maps.Keys(v.links))
	if ns := v.uncovered(keys); len(ns) > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("without the heads of %s nobody can tell whether changes are missing there at the end; see govnode audit heads", strings.Join(ns, ", ")))
	}
	for k := range live {
		if v.links[k] == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b session.Key) int { // those of namespaces last: the others end in them
		switch ofA, ofB := isNamespace(a), isNamespace(b); {
		case ofA && !ofB:
			return 1
		case ofB && !ofA:
			return -1
		}
		return cmp.Compare(a, b)
	})
	for _, k := range keys {
		head, ok := live[k]
		if v.links[k] != nil {
			v.chain(k, head, ok)
		} else if !v.through(&head, head.is, 0, nil) {
			v.wrong(nil, "the state has %d changes of %q, and no file has one of them", head.N, k)
		}
	}
	for _, o := range v.open {
		if o.wrong != nil && !o.fold.used {
			o.wrong()
		}
	}
}

func isNamespace(k session.Key) bool { return k == session.NamespaceKey(k.Namespace()) }

func (v *verifier) chain(k session.Key, head Link, live bool) {
	all := v.links[k]
	slices.SortStableFunc(all, func(a, b *link) int {
		return cmp.Or(cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.N, b.N))
	})
	byN := map[uint64][]*link{}
	for _, l := range all {
		l.last = true
		byN[l.N] = append(byN[l.N], l)
	}
	children := children{}
	for _, l := range all {
		before := byN[l.N-1]
		found := false
		if l.N == 1 && l.follows(nil) {
			// A record may end and begin again, but not with the same change.
			found = true
			v.only(children, l, "first, "+l.Head, 1+len(v.folded[k]))
		}
		parents, of := 0, ""
		for _, b := range before {
			if c, err := b.chain(); err == nil && l.follows(c) {
				found, b.last, of = true, false, b.Head
				parents++
			}
		}
		if parents > 0 {
			v.only(children, l, of, parents)
		}
		if found || v.through(&l.Link, l.follows, 1, byN) {
			continue
		}
		// One of an earlier generation may have come behind the snapshot that was restored, and
		// another in its place: that is the one that is missing then.
		same := slices.ContainsFunc(before, func(b *link) bool { return b.Generation == l.Generation })
		if l.N > 1 && !same {
			v.wrong(l.from, "change %d of %q has no line before this one, which is change %d: %s", l.N-1, k, l.N, v.lost())
			continue
		}
		v.wrong(l.from, "change %d of %q does not follow from the one before: what was said or its outcome is not what was written", l.N, k)
	}
	for _, f := range v.folded[k] {
		if !v.ends(f.Link, all, byN) {
			v.wrong(f.from, "%q ended with change %d, of which no file has a line: %s", k, f.N, v.lost())
		}
	}
	if !v.against.Heads.covers(k) {
		for _, l := range all {
			if l.last {
				v.leave(l, nil)
			}
		}
		return
	}
	found := !live || v.ends(head, all, byN)
	if !found {
		last := all[len(all)-1]
		switch {
		case last.N < head.N:
			v.wrong(last.from, "the state has %d changes of %q, and the last line of one is this, of change %d: lines are missing at the end, or the file is an older one", head.N, k, last.N)
		default:
			v.wrong(last.from, "the state has another change %d of %q than the files", head.N, k)
		}
		return
	}
	for _, l := range all {
		if !l.last || live && l.Link == head || v.takenBack(l) || v.against.Heads.mayBeLater(l) {
			continue
		}
		v.leave(l, func() {
			v.wrong(l.from, "the state does not know change %d of %q: it is an older state, or the line that says how the chain ended is missing", l.N, k)
		})
	}
}

// children are the changes that follow from one, by its head and their generation.
type children map[struct {
	of         string
	generation uint32
}][]*link

// only says what is wrong where more changes follow from one than there are lines of it.
func (v *verifier) only(c children, l *link, of string, most int) {
	k := struct {
		of         string
		generation uint32
	}{of, l.Generation}
	if c[k] = append(c[k], l); len(c[k]) > most {
		other := c[k][0].from
		v.wrong(l.from, "%s:%d has a change %d of %q too, behind the same one: a line is there twice or was made up, or the state was rolled back", other.file, other.line, l.N, l.Chain)
	}
}

// leave leaves it to the namespace's chain whether a chain has ended with a link, and to
// wrong what is said if not.
func (v *verifier) leave(l *link, wrong func()) {
	at, err := l.chain()
	if isNamespace(l.Chain) || err != nil {
		if wrong != nil {
			wrong()
		}
		return
	}
	fold := session.Fold{Key: l.Chain, Chain: *at}
	a := &asked{digest: fold.Audited(), likely: []session.Code{session.Done}}
	ns := session.NamespaceKey(l.Chain.Namespace())
	v.unknown[ns] = append(v.unknown[ns], a)
	v.open = append(v.open, &open{a, wrong})
}

func (l *link) follows(c *session.Chain) bool {
	next := c.Next(l.Generation, l.code, l.audited)
	return next.N == l.N && hex.EncodeToString(next.Head[:]) == l.Head
}

// ends reports whether a chain comes to a link, and notes what does.
func (v *verifier) ends(at Link, all []*link, byN map[uint64][]*link) bool {
	for _, l := range all {
		if l.Link == at {
			l.last = false
			return true
		}
	}
	return v.through(&at, at.is, 0, byN)
}

// is reports whether a chain stands there.
func (l *Link) is(c *session.Chain) bool {
	return c != nil && c.N == l.N && c.Generation == l.Generation && hex.EncodeToString(c.Head[:]) == l.Head
}
