package operate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/audit"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Audit is `govnode audit`.
func Audit() *cobra.Command {
	return terminal.Group("audit", "Verify and read the audit logs of nodes", auditVerifyCommand(), auditHeadsCommand(), auditQueryCommand(), auditTailCommand())
}

// A headsLine is one of what `govnode audit heads` prints: the first says of what the
// others are.
type headsLine struct {
	At         *time.Time `json:"at,omitempty"`
	Namespaces []string   `json:"namespaces,omitempty"`
	// Generations are those at which the state stood, by namespace.
	Generations map[string]uint32 `json:"generations,omitempty"`
	*audit.Link
}

func auditHeadsCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "heads",
		Short: "Print the heads of the chains in the replicated state",
		Long: `Prints one line for each session, each client and the namespace, with the head of its
chain. Kept elsewhere it is an anchor: "govnode audit verify --heads" finds whatever was
changed since, though all nodes should have been rolled back together.`,
		Example: `  govnode audit heads --namespace team-a > heads.jsonl`,
		Args:    terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		heads, err := headsOf(cmd.Context(), c)
		if err != nil {
			return err
		}
		out := bufio.NewWriter(cmd.OutOrStdout())
		lines := json.NewEncoder(out)
		if err := lines.Encode(headsLine{At: &heads.At, Namespaces: heads.Namespaces, Generations: heads.Generations}); err != nil {
			return err
		}
		for i := range heads.Links {
			if err := lines.Encode(headsLine{Link: &heads.Links[i]}); err != nil {
				return err
			}
		}
		return out.Flush()
	})
}

// headsOf asks the cluster for the heads of a namespace.
func headsOf(ctx context.Context, c *config.Config) (*audit.Heads, error) {
	ns, err := namespaceOf(ctx, c)
	if err != nil {
		return nil, err
	}
	heads := &audit.Heads{Namespaces: []string{ns}}
	req := &govnodev1.ListChainsRequest{Namespace: ns, PageSize: 1000}
	for {
		res, err := chainsOf(ctx, c, req)
		if err != nil {
			return nil, err
		}
		if heads.At.IsZero() {
			heads.At, heads.Generations = time.UnixMilli(res.At).UTC(), map[string]uint32{ns: res.Generation}
		}
		for _, x := range res.Chains {
			heads.Links = append(heads.Links, audit.Link{Chain: session.Key(x.Key), N: x.Links, Generation: x.Generation, Head: hex.EncodeToString(x.Head)})
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			return heads, nil
		}
	}
}

// chainsOf asks for one page of heads.
func chainsOf(ctx context.Context, c *config.Config, req *govnodev1.ListChainsRequest) (*govnodev1.ListChainsResponse, error) {
	return remote.Call(ctx, c, func(n remote.Node, ctx context.Context, req *govnodev1.ListChainsRequest) (*govnodev1.ListChainsResponse, error) {
		return n.Access.ListChains(ctx, req)
	}, req)
}

func readHeads(path string) (*audit.Heads, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, terminal.Usagef("heads: %w", err)
	}
	defer func() { _ = f.Close() }()
	heads := &audit.Heads{Generations: map[string]uint32{}}
	for lines := json.NewDecoder(f); ; {
		var l headsLine
		switch err := lines.Decode(&l); {
		case errors.Is(err, io.EOF) && heads.At.IsZero():
			return nil, terminal.Usagef("heads: %s is not what govnode audit heads prints: it does not say when it was made", path)
		case errors.Is(err, io.EOF):
			return heads, nil
		case err != nil:
			return nil, terminal.Usagef("heads: %s is not what govnode audit heads prints: %w", path, err)
		case l.At != nil: // of several namespaces there may be one behind another
			if heads.At.IsZero() || l.At.Before(heads.At) {
				heads.At = *l.At
			}
			heads.Namespaces = append(heads.Namespaces, l.Namespaces...)
			maps.Copy(heads.Generations, l.Generations)
		case l.Link != nil:
			heads.Links = append(heads.Links, *l.Link)
		}
	}
}

func auditVerifyCommand() *cobra.Command {
	var from string
	var kept []string
	var state bool
	cmd := config.Leaf(&cobra.Command{
		Use:   "verify FILE...",
		Short: "Find what was changed, removed, moved or added in the audit logs of nodes",
		Long: `Takes the logs of all nodes, the rotated ones too, and names each place that is wrong or
missing. With --state, or with heads that were kept, it also finds what is missing at the
end, and whole files that are older than the state. Each node writes an anchor a minute:
anchors that were kept elsewhere hold every line before them, and with --tls-ca their
signatures are looked at. Exit code 1 says that something was found.`,
		Example: `  govnode audit verify n1/audit.jsonl n2/audit.jsonl n3/audit.jsonl --state
  govnode audit verify --heads heads.jsonl audit.jsonl.1 audit.jsonl
  govnode audit verify --anchors kept.jsonl --tls-ca ca.crt n1/audit.jsonl n2/audit.jsonl`,
		Args: terminal.Arguments(1, math.MaxInt),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, names []string) error {
		var against audit.Against
		var err error
		switch {
		case state && from != "":
			return terminal.Usagef("heads: --state asks the cluster for them; give one of the two")
		case state: // before the files, which go on
			against.Heads, err = headsOf(cmd.Context(), c)
		case from != "":
			against.Heads, err = readHeads(from)
		}
		if err == nil {
			err = readAnchors(&against, kept, c.TLSCA)
		}
		if err != nil {
			return err
		}
		report, err := verifyFiles(names, against)
		if err != nil {
			return err
		}
		return tellReport(cmd.OutOrStdout(), c.Output, report)
	})
	cmd.Flags().StringVar(&from, "heads", "", "`file` that govnode audit heads has printed")
	cmd.Flags().StringArrayVar(&kept, "anchors", nil, "`file` of anchors that were kept elsewhere, as govnode audit query --event anchor prints them; may be repeated")
	cmd.Flags().BoolVar(&state, "state", false, "ask the cluster for the heads of the namespace")
	return cmd
}

// readAnchors reads what was kept of anchors, and the authority of those who signed them.
func readAnchors(against *audit.Against, files []string, ca string) error {
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return terminal.Usagef("tls-ca: %w", err)
		}
		if against.Roots = x509.NewCertPool(); !against.Roots.AppendCertsFromPEM(text) {
			return terminal.Usagef("tls-ca: %s holds no certificate in PEM", ca)
		}
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return terminal.Usagef("anchors: %w", err)
		}
		err = errors.Join(against.ReadAnchors(name, f), f.Close())
		if err != nil {
			return terminal.Usagef("anchors: %w", err)
		}
	}
	return nil
}

func verifyFiles(names []string, against audit.Against) (*audit.Report, error) {
	var files []audit.File
	var seen []os.FileInfo
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, terminal.Unusable(err)
		}
		defer func() { _ = f.Close() }()
		is, err := f.Stat()
		switch {
		case err != nil:
			return nil, terminal.Unusable(err)
		case is.IsDir():
			return nil, terminal.Usagef("%s is a folder; name the files in it", name)
		}
		for i, was := range seen { // each line of it would be there twice
			if os.SameFile(was, is) {
				return nil, terminal.Usagef("%s and %s are one file; name each once", names[i], name)
			}
		}
		seen = append(seen, is)
		text, err := plain(f)
		if err != nil {
			return nil, terminal.Unusable(fmt.Errorf("%s: %w", name, err))
		}
		files = append(files, audit.File{Name: name, Text: text})
	}
	return audit.Verify(files, against)
}

// plain is what a file says, which may have been compressed when it was rotated.
func plain(f io.Reader) (io.Reader, error) {
	in := bufio.NewReader(f)
	if head, _ := in.Peek(2); !bytes.Equal(head, []byte{0x1f, 0x8b}) { // of gzip
		return in, nil
	}
	return gzip.NewReader(in)
}

// reportJSON is what was found, for programs.
type reportJSON struct {
	Lines     int           `json:"lines"`
	Changes   int           `json:"changes"`
	Chains    int           `json:"chains"`
	Unchained int           `json:"unchained"` // lines from before chains were kept
	Problems  []problemJSON `json:"problems"`
	Notes     []string      `json:"notes"`
}

type problemJSON struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	What string `json:"what"`
}

func tellReport(w io.Writer, output string, r *audit.Report) error {
	say := sayReport
	if output == "json" {
		say = writeReport
	}
	if err := say(w, r); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return &terminal.ExitError{Code: terminal.ExitNo}
	}
	return nil
}

func writeReport(w io.Writer, r *audit.Report) error {
	out := reportJSON{r.Lines, r.Changes, r.Chains, r.Unchained, []problemJSON{}, append([]string{}, r.Notes...)}
	for _, p := range r.Problems {
		out.Problems = append(out.Problems, problemJSON{p.File, p.Line, p.What})
	}
	return terminal.WriteJSON(w, out)
}

func sayReport(w io.Writer, r *audit.Report) error {
	for i := range r.Problems {
		if err := terminal.Say(w, "%s", r.Problems[i].String()); err != nil {
			return err
		}
	}
	if r.Unchained > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d lines are from before chains were kept, and cannot be verified", r.Unchained))
	}
	for _, note := range r.Notes {
		if err := terminal.Say(w, "note: %s", note); err != nil {
			return err
		}
	}
	return terminal.Say(w, "%d lines, %d changes of %d chains, %d problems", r.Lines, r.Changes, r.Chains, len(r.Problems))
}

// A lineFilter says which lines are wanted.
type lineFilter struct {
	event, namespace, principal, session, call string
	since                                      time.Duration
}

func (f *lineFilter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.event, "event", "", "`type` of the lines: change, tool_call_denied, token_created, …")
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "`name` of the namespace; all if empty")
	cmd.Flags().StringVar(&f.principal, "principal", "", "`name` of who asked, as govnode whoami says it")
	cmd.Flags().StringVar(&f.session, "session", "", "`id` of a session")
	cmd.Flags().StringVar(&f.call, "call", "", "`id` of a call")
	cmd.Flags().DurationVar(&f.since, "since", 0, "how long ago at most; any time if 0")
}

// wants reports whether a line is one of those. What is no line is not.
func (f *lineFilter) wants(text []byte, now time.Time) bool {
	var l struct {
		audit.Line
		Session string `json:"session_id"`
		Call    string `json:"call_id"`
	}
	if json.Unmarshal(text, &l) != nil {
		return false
	}
	if c := l.Change; c != nil {
		var said audit.Said
		if json.Unmarshal(c.Said, &said) == nil {
			l.Session, l.Call = said.Session, said.Call
		}
	}
	at, err := time.Parse(time.RFC3339Nano, l.At)
	return (f.event == "" || l.Event == f.event) && (f.namespace == "" || l.Namespace == f.namespace) && (f.principal == "" || l.Principal == f.principal) &&
		(f.session == "" || l.Session == f.session) && (f.call == "" || l.Call == f.call) &&
		(f.since == 0 || err == nil && now.Sub(at) <= f.since)
}

func auditQueryCommand() *cobra.Command {
	f := &lineFilter{}
	cmd := config.Leaf(&cobra.Command{
		Use:     "query FILE...",
		Short:   "Print the lines of audit logs that are about something",
		Example: `  govnode audit query --session 01JD… --since 24h n1/audit.jsonl n2/audit.jsonl`,
		Args:    terminal.Arguments(1, math.MaxInt),
	}, 0, func(cmd *cobra.Command, _ *config.Config, names []string) error {
		for _, name := range names {
			if err := eachLine(name, func(text []byte) error {
				if !f.wants(text, time.Now()) {
					return nil
				}
				return printLine(cmd.OutOrStdout(), text)
			}); err != nil {
				return err
			}
		}
		return nil
	})
	f.flags(cmd)
	return cmd
}

// printLine prints a line that is one of those that are wanted, and so is JSON.
func printLine(w io.Writer, text []byte) error {
	_, err := fmt.Fprintln(w, terminal.PrintableJSON(string(text)))
	return err
}

func eachLine(name string, do func(text []byte) error) error {
	file, err := os.Open(name)
	if err != nil {
		return terminal.Unusable(err)
	}
	defer func() { _ = file.Close() }()
	text, err := plain(file)
	if err != nil {
		return terminal.Unusable(fmt.Errorf("%s: %w", name, err))
	}
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, 0, 64<<10), 4<<20)
	for lines.Scan() {
		if err := do(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// tailEvery is how often a file is looked at for new lines.
const tailEvery = 250 * time.Millisecond

func auditTailCommand() *cobra.Command {
	f := &lineFilter{}
	var last int
	var follow bool
	cmd := config.Leaf(&cobra.Command{
		Use:     "tail FILE",
		Short:   "Print the last lines of an audit log, and go on",
		Example: `  govnode audit tail --follow --event change data/audit.jsonl`,
		Args:    terminal.Arguments(1, 1),
	}, 0, func(cmd *cobra.Command, _ *config.Config, names []string) error {
		if last < 0 {
			return terminal.Usagef("lines: %d (flag --lines): must be 0 or more", last)
		}
		print := func(text []byte) error { return printLine(cmd.OutOrStdout(), text) }
		var tail [][]byte
		do := func(text []byte) error {
			tail = append(tail, bytes.Clone(text))
			tail = tail[max(0, len(tail)-last):]
			return nil
		}
		// One reader tells of what is there and of what comes, so that nothing is between.
		return followFile(cmd.Context(), names[0], func(text []byte) error {
			if !f.wants(text, time.Now()) {
				return nil
			}
			return do(text)
		}, func() (more bool, err error) {
			do = print
			for _, text := range tail {
				if err := print(text); err != nil {
					return false, err
				}
			}
			tail = nil
			return follow, nil
		})
	})
	f.flags(cmd)
	cmd.Flags().IntVarP(&last, "lines", "n", 10, "how many of the lines that are there")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print what is written from now on, until it is interrupted; a file that is rotated is followed by name")
	return cmd
}

// followFile tells of the whole lines of a file: of those that are there, then there
// whether it goes on, and then of what is written.
//
// A file that was renamed is read for as long as it may grow. Who rotates it makes the
// new one before the node is told, which writes to the old one until then, and to one of
// them at a time: so the old one is complete when there is something in a newer one.
func followFile(ctx context.Context, name string, do func(text []byte) error, there func() (more bool, err error)) error {
	file, err := os.Open(name)
	if err != nil {
		return terminal.Unusable(err)
	}
	files := []*os.File{file} // the one that is read, and those that have had the name since
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	beat := time.NewTicker(tailEvery)
	defer beat.Stop()
	rest, first, complete := []byte(nil), true, false
	for in := bufio.NewReader(file); ; {
		text, err := in.ReadBytes('\n')
		rest = append(rest, text...)
		if err == nil {
			if err := do(bytes.TrimSuffix(rest, []byte{'\n'})); err != nil {
				return err
			}
			rest = rest[:0]
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if complete { // all that came before the next one has been told
			_ = files[0].Close()
			files, rest = files[1:], rest[:0]
			in.Reset(files[0])
			complete = anyBegun(files[1:])
			continue
		}
		if first {
			if more, err := there(); err != nil || !more {
				return err
			}
			first = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		}
		if f := newer(name, files[len(files)-1]); f != nil {
			files = append(files, f)
		}
		complete = anyBegun(files[1:])
	}
}

// newer opens the file that has the name now; nil if that is still this one, or nobody
// has it.
func newer(name string, this *os.File) *os.File {
	was, err := this.Stat()
	if err != nil {
		return nil
	}
	if is, err := os.Stat(name); err != nil || os.SameFile(was, is) {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil // it is gone again
	}
	if is, err := f.Stat(); err != nil || os.SameFile(was, is) {
		_ = f.Close()
		return nil
	}
	return f
}

// anyBegun reports whether there is something in one of the files.
func anyBegun(files []*os.File) bool {
	return slices.ContainsFunc(files, func(f *os.File) bool {
		is, err := f.Stat()
		return err == nil && is.Size() > 0
	})
}
