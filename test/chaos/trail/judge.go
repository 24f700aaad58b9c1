package trail

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
)

// A Found is what the audits of a run had.
type Found struct {
	Lines   int // that were verified
	Missing int // places without a line, because their nodes were killed
	Taken   int // lines that power cuts have taken
	Broken  []check.Violation
}

// A line is what is looked at in a line of an audit.
type line struct {
	At     time.Time `json:"timestamp"`
	Change *struct {
		Chain string
		N     uint64 // 0: nobody knew what became of it
		Said  struct {
			Do      string
			Client  string
			Request string `json:"request_id"`
			Call    string `json:"call_id"`
			Session string `json:"session_id"`
			Name    string
		}
	}
	Fold *struct {
		Chain string
		N     uint64
		Of    struct {
			Chain string
			N     uint64
		}
	}
}

func parse(text []byte) (l line, err error) {
	err = json.Unmarshal(text, &l)
	return l, err
}

// places are those that the line stands for.
func (l *line) places() (all []place) {
	if c := l.Change; c != nil && c.N > 0 {
		all = append(all, place{c.Chain, c.N})
	}
	if f := l.Fold; f != nil {
		all = append(all, place{f.Chain, f.N}, place{f.Of.Chain, f.Of.N + 1})
	}
	return all
}

// byNodes is the client by whose name nodes set where a workflow stands, and ask people
// about its stages. The ids are drawn by clocks that may be wrong, or are digests, whose
// end may pass for such an id; both are of a session that there was before.
const byNodes = "workflow"

// about names the operation that the line is about, as key does; "" if it is none.
func (l *line) about() string {
	if l.Change == nil {
		return ""
	}
	if s := l.Change.Said; s.Client == byNodes {
		session := s.Session // of what people are asked
		if session == "" {
			session, _, _ = strings.Cut(strings.TrimPrefix(s.Name, "s:"), ":")
		}
		return key("", session)
	}
	switch s := l.Change.Said; s.Do {
	case "Begin":
		return key(check.Begin, s.Call)
	case "End":
		return key(check.End, s.Call)
	case "Release":
		return key(check.Release, s.Request)
	case "Increment":
		if s.Request == "" {
			return key(check.Increment, s.Name) // it is its alone
		}
		return key(check.Increment, s.Request)
	case "Open":
		return key("", s.Session)
	default:
		return key("", s.Request)
	}
}

// key names an operation of a client. An end has the id of what it ends.
func key(kind check.Kind, id string) string {
	if kind == check.End || kind == check.Release {
		return string(kind) + " " + id
	}
	return id
}

// A file is the audit of one node.
type file struct {
	node *processes.Node
	ends []int64 // where each line ends, without the byte that ends it
}

// A judge holds what verify says to what befell the nodes.
type judge struct {
	*Trail
	files  map[string]*file
	chains map[string]map[uint64][]string // what each place of a chain is about
	about  map[string]bool
	ops    map[string]check.Op
	deaths []span
}

// Judge verifies the files of the nodes, none of which runs any more, and holds what it
// finds to the history.
func (t *Trail) Judge(h check.History) (Found, error) {
	j := &judge{Trail: t, files: map[string]*file{}, chains: map[string]map[uint64][]string{}, about: map[string]bool{}, ops: map[string]check.Op{}, deaths: t.ends}
	for _, o := range h.Ops {
		if o.ID != "" { // what changes nothing has none
			j.ops[key(o.Kind, o.ID)] = o
		}
	}
	var paths []string
	for _, n := range t.cluster.Nodes {
		if err := j.read(n); err != nil {
			return Found{}, err
		}
		paths = append(paths, n.Audit)
		for _, l := range n.Lives() {
			if !l.Ended.IsZero() && !l.Orderly {
				at := l.Ended.Sub(t.Start)
				j.deaths = append(j.deaths, span{at, at})
			}
		}
	}
	anchors := filepath.Join(t.folder, "anchors.jsonl")
	if err := os.WriteFile(anchors, t.kept.Bytes(), 0o600); err != nil {
		return Found{}, err
	}
	said, err := t.verify(append([]string{"--heads", t.headsPath(), "--anchors", anchors}, paths...)...)
	if err != nil {
		return Found{}, err
	}
	found := Found{Taken: len(t.lost)}
	for text := range strings.Lines(said) {
		text = strings.TrimSuffix(text, "\n")
		if n, ok := total(text); ok {
			found.Lines = n
		} else if !strings.HasPrefix(text, "note: ") && j.problem(text) {
			found.Missing++
		}
	}
	if found.Lines == 0 || t.kept.Len() == 0 {
		t.violated("audit", "there is nothing to verify: %d lines, and %d bytes of anchors", found.Lines, t.kept.Len())
	}
	j.acknowledged(h)
	if err := t.tampered(paths); err != nil {
		return Found{}, err
	}
	found.Broken = t.broken
	return found, nil
}

// verify returns what is said of files. That something was found is no error.
func (t *Trail) verify(args ...string) (string, error) {
	s := t.cluster.Secured
	return s.Ask(append([]string{"audit", "verify", "--tls-ca", s.Authority()}, args...)...)
}

var totals = regexp.MustCompile(`^(\d+) lines, \d+ changes of \d+ chains, \d+ problems$`)

func total(text string) (lines int, ok bool) {
	m := totals.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	lines, _ = strconv.Atoi(m[1])
	return lines, true
}

// read looks at the file of a node.
func (j *judge) read(n *processes.Node) error {
	f, err := os.Open(n.Audit)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	x, at := &file{node: n}, int64(0)
	j.files[n.Audit] = x
	for in := bufio.NewReader(f); ; {
		text, err := in.ReadBytes('\n')
		if len(text) == 0 {
			return nil
		}
		x.ends = append(x.ends, at+int64(len(bytes.TrimSuffix(text, []byte{'\n'}))))
		at += int64(len(text))
		l, bad := parse(text)
		if bad != nil {
			continue // verify has it
		}
		about := l.about()
		if about != "" {
			j.about[about] = true
		}
		for _, p := range l.places() {
			if l.Fold != nil && p.chain != l.Fold.Chain {
				continue // it ends there, and is no link of it
			}
			if j.chains[p.chain] == nil {
				j.chains[p.chain] = map[uint64][]string{}
			}
			j.chains[p.chain][p.n] = append(j.chains[p.chain][p.n], about)
		}
		if err != nil {
			return nil
		}
	}
}

var (
	located = regexp.MustCompile(`^(\S+):(\d+): (.*)$`)
	torn    = regexp.MustCompile(`^this is no whole line of the log`)
	gap     = regexp.MustCompile(`^lines? \d+(?: to \d+)? of node (\S+) (?:is|are) missing before this one`)
	before  = regexp.MustCompile(`^change \d+ of ("(?:[^"\\]|\\.)*") has no line before this one, which is change (\d+)`)
	atEnd   = regexp.MustCompile(`^the state has (\d+) changes of ("(?:[^"\\]|\\.)*"), and the last line of one is this, of change (\d+)`)
	none    = regexp.MustCompile(`^the state has (\d+) changes of ("(?:[^"\\]|\\.)*"), and no file has one of them`)
	folded  = regexp.MustCompile(`^("(?:[^"\\]|\\.)*") ended with change (\d+), of which no file has a line`)
	unknown = regexp.MustCompile(`^the state does not know change (\d+) of ("(?:[^"\\]|\\.)*")`)
)

// problem holds what verify names to what befell the nodes. It reports whether that
// explains it.
func (j *judge) problem(text string) bool {
	var at *file
	row, what := 0, text
	if m := located.FindStringSubmatch(text); m != nil {
		at, what = j.files[m[1]], m[3]
		row, _ = strconv.Atoi(m[2])
	}
	explained := false
	number := func(text string) uint64 {
		n, _ := strconv.ParseUint(text, 10, 64)
		return n
	}
	chain := func(quoted string) string {
		name, _ := strconv.Unquote(quoted)
		return name
	}
	switch {
	case torn.MatchString(what):
		explained = at != nil && (at.cut(row) || j.full[at.node.Name])
	case gap.MatchString(what):
		explained = j.full[gap.FindStringSubmatch(what)[1]]
	case before.MatchString(what):
		m := before.FindStringSubmatch(what)
		explained = j.died(chain(m[1]), number(m[2])-1)
	case atEnd.MatchString(what):
		m := atEnd.FindStringSubmatch(what)
		explained = j.died(chain(m[2]), number(m[1]))
	case none.MatchString(what):
		m := none.FindStringSubmatch(what)
		explained = j.died(chain(m[2]), number(m[1]))
	case folded.MatchString(what):
		m := folded.FindStringSubmatch(what)
		explained = j.died(chain(m[1]), number(m[2]))
	case unknown.MatchString(what): // the line that says how it ended, which would come next
		m := unknown.FindStringSubmatch(what)
		explained = j.died(chain(m[2]), number(m[1])+1)
	}
	if !explained {
		j.violated("audit", "no node was killed there: %s", text)
	}
	return explained
}

// cut reports whether a line is the end of what a process has left in the file.
func (f *file) cut(row int) bool {
	for _, l := range f.node.Lives() {
		if row >= 1 && row <= len(f.ends) && l.Audit == f.ends[row-1] && l.Audit > 0 {
			return true
		}
	}
	return false
}

// died reports whether the lines up to a place of a chain, behind what is known, may have
// died with their nodes.
func (j *judge) died(chain string, last uint64) bool {
	links, first, all := j.chains[chain], last, true
	for first > 1 && links[first-1] == nil {
		first--
	}
	for n := first; n <= last; n++ {
		all = all && j.lost[place{chain, n}]
	}
	if all {
		return true
	}
	from, until := j.asked(chain), time.Duration(math.MaxInt64-int64(held))
	for n, about := range links {
		for _, id := range about {
			if o, known := j.ops[id]; n < first {
				from = max(from, j.asked(id))
			} else if n > last && known && (o.Outcome == check.Applied || o.Outcome == check.Refused) {
				until = min(until, o.Return)
			}
		}
	}
	return j.ended(from, until)
}

// ended reports whether a node ended in a time, or had something in hand then.
func (j *judge) ended(from, until time.Duration) bool {
	for _, d := range j.deaths {
		if d.until >= from && d.from <= until+held {
			return true
		}
	}
	return false
}

// asked is from when on something was asked for at the earliest: as the client that did
// says, or as its id does, which begins with a time.
func (j *judge) asked(id string) time.Duration {
	if o, known := j.ops[id]; known {
		return o.Call
	}
	if len(id) < ulid.EncodedSize {
		return 0
	}
	drawn, err := ulid.ParseStrict(id[len(id)-ulid.EncodedSize:])
	if err != nil {
		return 0
	}
	return ulid.Time(drawn.Time()).Sub(j.Start.Round(0))
}

// acknowledged holds that what clients know to be applied has a line, unless a node ended
// about then: it may have been what carried it out, and they have the answer of another.
func (j *judge) acknowledged(h check.History) {
	for _, o := range h.Ops {
		applied := o.Outcome == check.Applied && (o.Kind == check.Increment || o.Granted)
		if id := key(o.Kind, o.ID); applied && !j.about[id] && !j.Trail.about[id] && !j.ended(o.Call, o.Return) {
			j.violated("audit", "it was acknowledged, and no node has a line of it: %v", o)
		}
	}
}

// tampered changes a letter of one line, which has to be found.
func (t *Trail) tampered(paths []string) error {
	text, err := os.ReadFile(paths[0])
	if err != nil {
		return err
	}
	at := bytes.Index(text, []byte(`"do":"`))
	if at < 0 {
		return errors.New("trail: no line says what was done")
	}
	text[at+len(`"do":"`)]++
	changed := filepath.Join(t.folder, "changed.jsonl")
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return err
	}
	said, err := t.verify(append([]string{changed}, paths[1:]...)...)
	row := 1 + bytes.Count(text[:at], []byte{'\n'})
	if err == nil && !strings.Contains(said, fmt.Sprintf("%s:%d: ", changed, row)) {
		t.violated("audit", "line %d of %s was changed, and that is not found", row, paths[0])
	}
	return errors.Join(err, os.Remove(changed))
}
