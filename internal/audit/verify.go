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
	"slices"
	"time"

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
	unknown map[session.Key][]asked
	folded  map[session.Key][]*folded
	against Against
}

// An asked is a change that its node has not learned the outcome of.
type asked struct {
	digest session.Digest // of what was said
	likely []session.Code // that it has had, if it was applied
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
		nodes: map[string][]*placed{}, links: map[session.Key][]*link{}, unknown: map[session.Key][]asked{},
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
	chained := false
	for n := 1; lines.Scan(); n++ {
		text := lines.Bytes()
		at := &placed{file: f.Name, line: n}
		if len(bytes.TrimSpace(text)) == 0 {
			continue // a write that was cut off is followed by one
		}
		v.Lines++
		body, hash, ok := unseal(text)
		if !ok || json.Unmarshal(text, &at.Line) != nil {
			if !chained && json.Valid(text) {
				v.Unchained++
				continue
			}
			v.wrong(at, "this is no whole line of the log: it was cut off by a crash, or changed")
			continue
		}
		chained = true
		at.body, at.hash = bytes.Clone(body), hash
		if v.nodes[at.Node] == nil {
			v.order = append(v.order, at.Node)
		}
		v.nodes[at.Node] = append(v.nodes[at.Node], at)
		v.note(at)
	}
	return lines.Err()
}

// note takes down the links that a line tells of.
func (v *verifier) note(at *placed) {
	if c := at.Change; c != nil {
		v.Changes++
		var said Said
		if err := json.Unmarshal(c.Said, &said); err != nil {
			v.wrong(at, "what was said of the change cannot be read")
			return
		}
		if at.Principal != "" && !said.isBy(at.Principal) {
			v.wrong(at, "the principal %q is not who asked for the change", at.Principal)
		}
		digest := Digest(c.Said)
		if c.N == 0 {
			a := asked{digest, said.likely()}
			if c.Code != session.Done && !c.Code.Failure() { // of a repeat, which is mostly the first outcome
				a.likely = []session.Code{c.Code}
			}
			v.unknown[c.Chain] = append(v.unknown[c.Chain], a)
			return
		}
		v.links[c.Chain] = append(v.links[c.Chain], &link{Link: c.Link, code: c.Code, audited: digest, from: at, at: at.At})
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
	all := v.nodes[name]
	// Files of one node may be given in any order; their lines are not moved.
	first := map[string]uint64{}
	for _, l := range all {
		if _, ok := first[l.file]; !ok {
			first[l.file] = l.Seq
		}
	}
	slices.SortStableFunc(all, func(a, b *placed) int {
		if a.file == b.file {
			return cmp.Compare(a.line, b.line)
		}
		return cmp.Or(cmp.Compare(first[a.file], first[b.file]), cmp.Compare(a.file, b.file))
	})
	var seq uint64
	var hash session.Digest
	known := true // what hash is
	for _, l := range all {
		switch {
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

// chains follows the chains of records.
func (v *verifier) chains() {
	keys := make([]session.Key, 0, len(v.links))
	for k := range v.links {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	v.Chains = len(keys)
	live := map[session.Key]Link{}
	if v.against.Heads != nil {
		for _, h := range v.against.Heads.Links {
			live[h.Chain] = h
			if v.links[h.Chain] == nil && !v.through(&h, h.is, 0, nil) {
				v.wrong(nil, "the state has %d changes of %q, and no file has one of them", h.N, h.Chain)
			}
		}
	}
	if slices.ContainsFunc(keys, func(k session.Key) bool { return !v.against.Heads.covers(k) }) {
		v.Notes = append(v.Notes, "without the heads of the state nobody can tell whether changes are missing at the end; see govnode audit heads")
	}
	for _, k := range keys {
		head, ok := live[k]
		v.chain(k, head, ok)
	}
}

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
	for _, l := range all {
		before := byN[l.N-1]
		found := l.N == 1 && l.follows(nil)
		for _, b := range before {
			if c, err := b.chain(); err == nil && l.follows(c) {
				found, b.last = true, false
			}
		}
		if found || v.through(&l.Link, l.follows, 1, byN) {
			continue
		}
		if l.N > 1 && len(before) == 0 {
			v.wrong(l.from, "change %d of %q has no line before this one, which is change %d: removed, or lost when its node was killed", l.N-1, k, l.N)
			continue
		}
		v.wrong(l.from, "change %d of %q does not follow from the one before: what was said or its outcome is not what was written", l.N, k)
	}
	for _, f := range v.folded[k] {
		if !v.ends(f.Link, all, byN) {
			v.wrong(f.from, "%q ended with change %d, of which no file has a line: removed, or lost when its node was killed", k, f.N)
		}
	}
	if !v.against.Heads.covers(k) {
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
		if !l.last || live && (l.Link == head || l.N > head.N || l.Generation < head.Generation) {
			continue
		}
		if at, err := time.Parse(time.RFC3339Nano, l.at); !live && err == nil && at.After(v.against.Heads.At.Add(-time.Second)) {
			continue // it was made after the heads were read
		}
		v.wrong(l.from, "the state does not know change %d of %q: it is an older state, or the line that says how the chain ended is missing", l.N, k)
	}
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

const (
	// maxUnknown is through how many changes in a row whose outcomes nobody has learned
	// a chain is followed.
	maxUnknown = 16
	// maxTried bounds what is tried for that, in each way.
	maxTried = 1 << 16
)

// A search is for changes without a link between two places of a chain.
type search struct {
	to      *Link
	reaches func(*session.Chain) bool
	inOrder bool // of their lines
	all     bool // outcomes, and not the likely ones alone
	tried   int
}

var everyCode = func() (all []session.Code) {
	for code := range session.Codes {
		if code := session.Code(code); !code.Failure() {
			all = append(all, code)
		}
	}
	return all
}()

// through reports whether a chain comes to a link by changes that their nodes have not
// learned the outcomes of, by any outcomes that these may have had. More changes follow
// behind them, which reaches looks at.
func (v *verifier) through(to *Link, reaches func(*session.Chain) bool, more uint64, byN map[uint64][]*link) bool {
	all := v.unknown[to.Chain]
	for gap := uint64(1); gap <= min(maxUnknown, uint64(len(all))) && gap+more <= to.N; gap++ {
		n := to.N - more - gap // of the last one that is known
		if n > 0 && len(byN[n]) == 0 {
			continue
		}
		for _, s := range []search{{inOrder: true}, {}, {all: true}} {
			s.to, s.reaches = to, reaches
			if n == 0 && s.try(nil, gap, all) {
				return true
			}
			for _, l := range byN[n] {
				if c, err := l.chain(); err == nil && s.try(c, gap, all) {
					l.last = false
					return true
				}
			}
		}
		if n > 0 {
			return false // what is before that is known too
		}
	}
	return false
}

// try adds so many links of those changes to a chain.
func (s *search) try(c *session.Chain, gap uint64, all []asked) bool {
	if gap == 0 {
		return s.reaches(c)
	}
	since := uint32(0)
	if c != nil {
		since = c.Generation
	}
	for i, a := range all {
		if uint64(len(all)) < gap || s.inOrder && uint64(len(all)-i) < gap {
			return false
		}
		if slices.ContainsFunc(all[:i], func(b asked) bool { return b.digest == a.digest }) {
			continue // several nodes may have asked for it
		}
		rest := all[i+1:]
		if !s.inOrder {
			rest = slices.Concat(all[:i], rest)
		}
		codes := a.likely
		if s.all {
			codes = everyCode
		}
		for _, code := range codes {
			for g := s.to.Generation; ; g-- {
				if s.tried++; s.tried > maxTried {
					return false
				}
				if s.try(c.Next(g, code, a.digest), gap-1, rest) {
					return true
				}
				if g <= since || s.to.Generation-g >= 1 {
					break
				}
			}
		}
	}
	return false
}
