package sandbox

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A Spec is what a sandbox rule says. Its lists may be empty.
type Spec struct {
	Within, NotWithin []string // folders
	Commands          []string // first words of commands
	Domains           []string // patterns of hosts
	NotDomains        []string
}

// A Box is a Spec that is prepared. It does not change.
type Box struct {
	within, notWithin   []string
	commands            map[string]bool
	domains, notDomains []string
}

// New prepares a Spec.
func New(s Spec) *Box {
	b := &Box{within: cleaned(s.Within), notWithin: cleaned(s.NotWithin), domains: lowered(s.Domains), notDomains: lowered(s.NotDomains)}
	if len(s.Commands) > 0 {
		b.commands = map[string]bool{}
		for _, c := range s.Commands {
			b.commands[c] = true
		}
	}
	return b
}

func cleaned(folders []string) (all []string) {
	for _, f := range folders {
		all = append(all, path.Clean(f))
	}
	return all
}

func lowered(hosts []string) (all []string) {
	for _, h := range hosts {
		all = append(all, strings.ToLower(h))
	}
	return all
}

// ErrCommand says that the command of a call is no text, so that nothing can be told
// of it.
var ErrCommand = errors.New("the command is not a text")

// pathKeys name arguments that hold paths.
var pathKeys = map[string]bool{
	"path": true, "file_path": true, "filePath": true, "directory": true, "dir": true, "folder": true,
	"target": true, "destination": true, "source": true, "src": true, "dst": true,
}

// FilePath is the path on which one of Edictum's file tools works.
func FilePath(tool string, args value.Value) (string, bool) {
	switch tool {
	case "Read", "Glob", "Grep", "Write", "Edit":
	default:
		return "", false
	}
	for _, key := range [...]string{"file_path", "filePath", "path"} {
		if v, ok := args.Get(key); ok {
			if s, ok := v.AsString(); ok && s != "" {
				return s, true
			}
		}
	}
	return "", false
}

// Command is the command of a call, if it has one. The error is ErrCommand.
func Command(args value.Value) (command string, has bool, err error) {
	v, there := args.Get("command")
	if !there || v.Kind() == value.Null {
		return "", false, nil
	}
	s, ok := v.AsString()
	if !ok {
		return "", false, ErrCommand
	}
	return s, true, nil
}

// Check tells whether all that a call names is inside. If not, detail says what is
// not. The error is ErrCommand.
func (b *Box) Check(args, metadata value.Value) (detail string, inside bool, err error) {
	command, has, err := Command(args)
	if err != nil {
		return "", false, err
	}
	l := &look{box: b}
	if cwd, ok := metadata.Get("cwd"); ok {
		if s, ok := cwd.AsString(); ok && strings.HasPrefix(s, "/") {
			l.cwd = path.Clean(s)
		}
	}
	if has {
		l.command(command)
	}
	l.arguments(args, "", true)
	return l.outside, l.outside == "", nil
}

// A look is one Check under way.
type look struct {
	box     *Box
	cwd     string // absolute; empty if it is not known
	outside string // the first that is not inside
	looked  int    // bytes that were looked at more than once
}

// mostLooked bounds looked: a text that is made for it is looked at anew from each of its
// bytes on.
const mostLooked = 8 << 20

// spend reports whether so many bytes may be looked at once more.
func (l *look) spend(n int) bool {
	if l.looked += n; l.looked > mostLooked {
		l.fail("there are too many paths and hosts in it to look at all")
	}
	return l.outside == ""
}

func (l *look) fail(format string, args ...any) {
	if l.outside == "" {
		l.outside = fmt.Sprintf(format, args...)
	}
}

// arguments looks at a value and all below it. Top says that it is the arguments
// themselves, whose command has been looked at.
func (l *look) arguments(v value.Value, key string, top bool) {
	if l.outside != "" {
		return
	}
	switch v.Kind() {
	case value.String:
		s, _ := v.AsString()
		l.text(s, pathKeys[key])
	case value.List:
		for item := range v.Items() {
			l.arguments(item, key, false)
		}
	case value.Map:
		for k, item := range v.All() {
			if top && k == "command" {
				continue
			}
			l.arguments(item, k, false)
		}
	}
}

// text looks at one text. Named says that its key is one of a path.
func (l *look) text(s string, named bool) {
	l.hosts(s)
	if len(l.box.within) == 0 && len(l.box.notWithin) == 0 {
		return
	}
	trimmed := strings.TrimSpace(s)
	switch {
	case trimmed == "":
	case strings.IndexByte(`/\%`, trimmed[0]) >= 0 && slices.ContainsFunc(forms(trimmed), func(form string) bool { return strings.HasPrefix(form, "/") }):
		l.path(trimmed)
	case named && (!isURL(trimmed) || climbs(trimmed)):
		l.path(trimmed)
	}
}

// path looks at a path as it stands and as it is when it is decoded.
func (l *look) path(p string) {
	if !l.spend(len(p)) {
		return
	}
	for _, form := range forms(p) {
		l.onePath(form, p)
	}
}

func (l *look) onePath(p, shown string) {
	if len(l.box.within) == 0 && len(l.box.notWithin) == 0 {
		return
	}
	if strings.IndexByte(p, 0) >= 0 {
		l.fail("path %q holds a NUL", shown)
		return
	}
	if !strings.HasPrefix(p, "/") {
		if l.cwd == "" || strings.HasPrefix(p, "~") {
			l.fail("path %q is relative to a folder that is not known", shown)
			return
		}
		p = l.cwd + "/" + p
	}
	p = path.Clean(p)
	for _, f := range l.box.notWithin {
		if below(p, f) {
			l.fail("path %q is within %s", shown, f)
			return
		}
	}
	if len(l.box.within) == 0 {
		return
	}
	for _, f := range l.box.within {
		if below(p, f) {
			return
		}
	}
	l.fail("path %q is not within %s", shown, strings.Join(l.box.within, ", "))
}

// below reports whether a path is a folder or lies below it. Both are clean.
func below(p, folder string) bool {
	if folder == "/" {
		return true
	}
	return p == folder || strings.HasPrefix(p, folder) && p[len(folder)] == '/'
}

// climbs reports whether a text has a part that leads up, in any of its forms.
func climbs(s string) bool {
	for _, form := range forms(s) {
		for _, part := range strings.Split(form, "/") {
			if part == ".." {
				return true
			}
		}
	}
	return false
}

// forms are the ways in which a text can be read as a path: as it is, with its
// escapes of URLs decoded once and twice, and with \ for /.
func forms(s string) []string {
	all := []string{s}
	add := func(t string) {
		for _, known := range all {
			if known == t {
				return
			}
		}
		all = append(all, t)
	}
	once := decoded(s)
	twice := decoded(once)
	for _, t := range [...]string{s, once, twice} {
		add(t)
		add(strings.ReplaceAll(t, `\`, "/"))
	}
	return all
}

// decoded decodes what is an escape of URLs, and leaves the rest.
func decoded(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := digit(s[i+1]), digit(s[i+2])
			if hi >= 0 && lo >= 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func digit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// allowedHost reports whether a host is one that may be reached.
func (b *Box) allowedHost(host string) (string, bool) {
	for _, p := range b.notDomains {
		if pattern.FnMatch(host, p) {
			return "is one of those that are not allowed", false
		}
	}
	if len(b.domains) == 0 {
		return "", true
	}
	for i := range len(host) {
		if host[i] <= ' ' || host[i] >= 0x7f { // what a client makes of it is not known
			return "is not written in printable ASCII", false
		}
	}
	for _, p := range b.domains {
		if pattern.FnMatch(host, p) {
			return "", true
		}
	}
	return "is none of " + strings.Join(b.domains, ", "), false
}
