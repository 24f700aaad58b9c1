package operate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// `govnode snapshot`: snapshots are saved, restored and looked into.

// snapshotTimeout replaces the usual --timeout of a command, unless that was
// set: a large state takes its time.
const snapshotTimeout = 10 * time.Minute

// restoreChunk is how much of a snapshot goes into one message.
const restoreChunk = 64 << 10

// Snapshot is `govnode snapshot`.
func Snapshot() *cobra.Command {
	return terminal.Group("snapshot", "Save the whole state to a file, look into it, and restore it",
		snapshotSaveCommand(), snapshotRestoreCommand(), snapshotInspectCommand())
}

// patient gives a command that moves a whole state its own default of --timeout,
// which its help then tells.
func patient(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags().Lookup("timeout")
	f.DefValue = snapshotTimeout.String()
	if err := f.Value.Set(f.DefValue); err != nil {
		panic(err) // the text is that of a duration
	}
	return cmd
}

func snapshotSaveCommand() *cobra.Command {
	var overwrite bool
	cmd := patient(config.Leaf(&cobra.Command{
		Use:   "save FILE",
		Short: "Save the whole state of the cluster to a file",
		Long: `Saves the whole state of the cluster, all namespaces, to a file. The file appears when
it is complete, has been read back and is on disk.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		if _, err := os.Lstat(args[0]); err == nil && !overwrite {
			return fmt.Errorf("%s is there already: name another file, or add --overwrite", args[0])
		}
		size, err := saveSnapshot(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		if c.Output == "json" {
			return terminal.WriteJSON(cmd.OutOrStdout(), map[string]any{"file": args[0], "bytes": size})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "saved %s, %d bytes\n", args[0], size)
		return err
	}))
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace the file if it is there")
	return cmd
}

// saveSnapshot writes beside the file and puts it in place at the end, so that
// half a snapshot never has its name.
func saveSnapshot(ctx context.Context, c *config.Config, path string) (size int64, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = tmp.Close()
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	if _, err := remote.Ask(ctx, c, func(ctx context.Context, r remote.Node) (struct{}, error) {
		return struct{}{}, receiveSnapshot(ctx, r, tmp)
	}); err != nil {
		return 0, err
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	if _, err := session.ReadSnapshot(bufio.NewReader(tmp)); err != nil {
		return 0, fmt.Errorf("what the node sent cannot be read: %w; try again", err)
	}
	if err := tmp.Sync(); err != nil {
		return 0, err
	}
	if size, err = tmp.Seek(0, io.SeekEnd); err != nil {
		return 0, err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return 0, err
	}
	return size, syncFolder(filepath.Dir(path))
}

// receiveSnapshot fills a file from its beginning, also after an attempt at
// another node that failed half-way.
func receiveSnapshot(ctx context.Context, r remote.Node, file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	stream, err := r.Snapshot(ctx, &govnodev1.SnapshotRequest{})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if _, err := file.Write(stream.Msg().Chunk); err != nil {
			return err
		}
	}
	return stream.Err()
}

// syncFolder makes the name of a new file outlive a power cut.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func snapshotRestoreCommand() *cobra.Command {
	return patient(config.Leaf(&cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the whole state of the cluster by that of a file",
		Long: `Replaces the whole state of the cluster, all namespaces, by that of a file. What was
changed since is lost. All leases and waits end, and tokens go on above all that were
ever given out. Signals stand as they stood then, and are printed.

Where a node does not say what became of it no other one is asked, and it is not restored
again: what was done since would be lost. The error says what to look at.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		snap, err := readSnapshot(args[0])
		if err != nil {
			return terminal.Unusable(err) // no node was asked
		}
		stood, known := generationOf(cmd.Context(), c)
		answer, err := remote.AskOnce(cmd.Context(), c, func(ctx context.Context, r remote.Node) (*govnodev1.RestoreResponse, error) {
			return sendSnapshot(ctx, r, args[0])
		})
		if err != nil {
			was := fmt.Sprintf("it was %d", stood)
			if !known {
				was = fmt.Sprintf("it is %d in the file", snap.Generation())
			}
			return remote.Advise(err, "look before you restore again, since that would take back what was done behind the first time: `govnode audit heads` prints the generation of the state, which each restore raises; %s", was)
		}
		signals := signalsOf(snap)
		if c.Output == "json" {
			return terminal.WriteJSON(cmd.OutOrStdout(), map[string]any{"index": strconv.FormatUint(answer.Index, 10), "signals": signals})
		}
		if err := terminal.Say(cmd.OutOrStdout(), "restored %s", args[0]); err != nil {
			return err
		}
		for _, s := range signals { // what was lifted since stands again
			if err := terminal.Say(cmd.OutOrStdout(), "%s stands in namespace %s for %s: %s", s.Signal, s.Namespace, s.For, s.Reason); err != nil {
				return err
			}
		}
		return nil
	}))
}

// restoreLook is how long a restore waits to learn at which generation the state stands.
const restoreLook = 5 * time.Second

// generationOf is that of the state, as `govnode audit heads` prints it, if the cluster
// tells it to who asks.
func generationOf(ctx context.Context, c *config.Config) (generation uint32, ok bool) {
	brief := *c
	brief.Timeout = min(c.Timeout, restoreLook)
	ns, err := namespaceOf(ctx, &brief)
	if err != nil {
		return 0, false
	}
	res, err := chainsOf(ctx, &brief, &govnodev1.ListChainsRequest{Namespace: ns, PageSize: 1})
	return res.GetGeneration(), err == nil
}

func sendSnapshot(ctx context.Context, r remote.Node, path string) (*govnodev1.RestoreResponse, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, terminal.Unusable(err)
	}
	defer func() { _ = file.Close() }()
	stream, err := r.Restore(ctx)
	if err != nil {
		return nil, err
	}
	for buf := make([]byte, restoreChunk); ; {
		n, err := file.Read(buf)
		if n > 0 {
			if err := stream.Send(&govnodev1.RestoreRequest{Chunk: buf[:n]}); err != nil {
				break // the answer has the reason
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return stream.CloseAndReceive()
}

func readSnapshot(path string) (*session.Snapshot, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, terminal.Unusable(err)
	}
	defer func() { _ = file.Close() }()
	state, err := session.ReadSnapshot(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return state.Snapshot(), nil
}

// snapshotReport says what a snapshot holds.
type snapshotReport struct {
	File       string         `json:"file"`
	Bytes      int64          `json:"bytes"`
	LogTime    string         `json:"logTime"`
	Generation uint32         `json:"generation"`
	Records    map[string]int `json:"records"`
	Namespaces []string       `json:"namespaces"`
}

// recordKinds are the kinds of records in words, as JSON has them and as the
// table does, in the order they are printed.
var recordKinds = []struct {
	kind       byte
	word, head string
}{
	{session.KindSession, "sessions", "SESSIONS"},
	{session.KindPool, "pools", "POOLS"},
	{session.KindClient, "clients", "CLIENTS"},
	{session.KindPolicy, "policyTrees", "POLICY TREES"},
	{session.KindName, "policyNames", "POLICY NAMES"},
	{session.KindPins, "pinRecords", "PIN RECORDS"},
	{session.KindCounter, "counters", "COUNTERS"},
	{session.KindNamespace, "namespaces", "NAMESPACES"},
	{session.KindBaseline, "baselines", "BASELINES"},
	{session.KindHash, "contentHashes", "CONTENT HASHES"},
	{session.KindList, "listRecords", "LIST RECORDS"},
	{session.KindSignals, "signals", "SIGNALS"},
	{session.KindBudget, "budgets", "BUDGETS"},
	{session.KindApproval, "approvals", "APPROVALS"},
	{session.KindStanding, "standingApprovals", "STANDING APPROVALS"},
	{session.KindAccess, "accessRecords", "ACCESS RECORDS"},
}

func snapshotInspectCommand() *cobra.Command {
	return terminal.Local(&cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a file and print what it holds; needs no node",
		Args:  terminal.Arguments(1, 1),
	}, []string{"text", "json"}, func(cmd *cobra.Command, output string, args []string) error {
		report, err := inspectSnapshot(args[0])
		if err != nil {
			return terminal.ExitWith(err)
		}
		if output == "json" {
			return terminal.WriteJSON(cmd.OutOrStdout(), report)
		}
		t := terminal.NewTable(cmd.OutOrStdout(), "FILE", report.File)
		t.Row("BYTES", report.Bytes)
		t.Row("LOG TIME", report.LogTime)
		t.Row("GENERATION", report.Generation)
		for _, k := range recordKinds {
			t.Row(k.head, report.Records[k.word])
		}
		return t.Flush()
	})
}

func inspectSnapshot(path string) (*snapshotReport, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, terminal.Unusable(err)
	}
	snap, err := readSnapshot(path)
	if err != nil {
		return nil, err
	}
	report := &snapshotReport{
		File: path, Bytes: info.Size(), LogTime: snap.Now().String(), Generation: snap.Generation(),
		Records: map[string]int{},
	}
	byKind := map[byte]int{}
	seen := map[string]bool{}
	for k := range snap.All() {
		byKind[k.Kind()]++
		if ns := k.Namespace(); !seen[ns] {
			seen[ns] = true
			report.Namespaces = append(report.Namespaces, ns)
		}
	}
	for _, k := range recordKinds {
		report.Records[k.word] = byKind[k.kind]
		delete(byKind, k.kind)
	}
	for kind, n := range byKind {
		report.Records[string(kind)] = n // of a kind that has no word yet
	}
	return report, nil
}
