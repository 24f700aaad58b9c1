package disks

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// need skips where nobody asked for disks, or they cannot be.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv("GOVNODE_L3") == "" {
		t.Skip("GOVNODE_L3=1 runs it")
	}
	if os.Geteuid() != 0 {
		t.Skip("disks need root")
	}
	require.NoError(t, Usable())
	require.NoError(t, Sweep())
}

func disk(t *testing.T) *Disk {
	t.Helper()
	d, err := New("test", 64)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Remove()) })
	return d
}

// write is a process that appends to a file and flushes it, once for every line
// that it is sent, and says so.
const write = `import os,sys
f=os.open(sys.argv[1],os.O_CREAT|os.O_WRONLY)
print("ready",flush=True)
n=0
for line in sys.stdin:
	try:
		os.pwrite(f,line.encode(),n); os.fsync(f); n+=len(line); print("flushed",flush=True)
	except OSError as e: print(os.strerror(e.errno),flush=True)
`

type writer struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    *os.File
	lines chan string
}

func startWriter(t *testing.T, args ...string) *writer {
	t.Helper()
	w := &writer{t: t, cmd: exec.Command(args[0], args[1:]...), lines: make(chan string, 100)}
	r, in, err := os.Pipe()
	require.NoError(t, err)
	w.in, w.cmd.Stdin = in, r
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.cmd.Start())
	require.NoError(t, r.Close())
	t.Cleanup(w.kill)
	go func() {
		var b bytes.Buffer
		chunk := make([]byte, 100)
		for {
			n, err := out.Read(chunk)
			b.Write(chunk[:n])
			for {
				line, rest, found := bytes.Cut(b.Bytes(), []byte("\n"))
				if !found {
					break
				}
				w.lines <- string(line)
				b = *bytes.NewBuffer(bytes.Clone(rest))
			}
			if err != nil {
				close(w.lines)
				return
			}
		}
	}()
	require.Equal(t, "ready", w.next())
	return w
}

func (w *writer) next() string {
	select {
	case line := <-w.lines:
		return line
	case <-time.After(20 * time.Second):
		w.t.Fatal("the writer says nothing")
	}
	return ""
}

func (w *writer) write(line string) string {
	w.t.Helper()
	_, err := w.in.WriteString(line + "\n")
	require.NoError(w.t, err)
	return w.next()
}

func (w *writer) kill() {
	if w.cmd.ProcessState == nil {
		_ = w.in.Close()
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}

// What was flushed survives a cut, and what was not does not.
func TestCut(t *testing.T) {
	need(t)
	d := disk(t)
	file := filepath.Join(d.Folder(), "file")
	for name, test := range map[string]struct {
		how  func(args ...string) []string
		want string
	}{
		"honest": {func(args ...string) []string { return args }, "one\ntwo\n"},
		"lying":  {Lying.Command, ""},
	} {
		require.NoError(t, d.Wipe())
		w := startWriter(t, test.how("python3", "-c", write, file)...)
		require.Equal(t, "flushed", w.write("one"))
		require.Equal(t, "flushed", w.write("two"))
		require.NoError(t, d.Cut())
		w.kill()
		require.NoError(t, d.Remount())
		got, err := os.ReadFile(file)
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		require.Equal(t, test.want, string(got), name)
	}
}

// A process that goes on after the cut is told so.
func TestCutIsSeen(t *testing.T) {
	need(t)
	d := disk(t)
	w := startWriter(t, "python3", "-c", write, filepath.Join(d.Folder(), "file"))
	require.Equal(t, "flushed", w.write("one"))
	require.NoError(t, d.Cut())
	require.Equal(t, "Input/output error", w.write("two"))
}

func TestFill(t *testing.T) {
	need(t)
	d := disk(t)
	w := startWriter(t, "python3", "-c", write, filepath.Join(d.Folder(), "file"))
	release, err := d.Fill()
	require.NoError(t, err)
	require.Equal(t, "No space left on device", w.write("one"))
	require.NoError(t, release())
	require.Equal(t, "flushed", w.write("one"))
}

// Tampering begins and ends while a process runs.
func TestTampering(t *testing.T) {
	need(t)
	d := disk(t)
	w := startWriter(t, "python3", "-c", write, filepath.Join(d.Folder(), "file"))
	for tampering, want := range map[Tampering]string{
		NoFlush: "Input/output error", NoWrite: "Input/output error", NoRoom: "No space left on device", Slow: "flushed",
	} {
		x, err := tampering.Attach(w.cmd.Process.Pid)
		require.NoError(t, err)
		require.Equal(t, want, w.write("one"), tampering)
		x.Detach()
		require.Equal(t, "flushed", w.write("one"))
	}
	x, err := Hanging.Attach(w.cmd.Process.Pid)
	require.NoError(t, err)
	_, err = w.in.WriteString("one\n")
	require.NoError(t, err)
	select {
	case line := <-w.lines:
		t.Fatal(line)
	case <-time.After(300 * time.Millisecond): // as long as Slow takes
	}
	require.NoError(t, w.cmd.Process.Kill()) // whose end strace must see first
	x.Detach()
}

func TestFlip(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a"), []byte{0, 0, 7, 0}, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "empty"), nil, 0o600))
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[int]bool{}
	for range 100 {
		f, err := FlipIn(folder, func(path string) bool { return !strings.HasSuffix(path, "z") }, rng)
		require.NoError(t, err)
		require.EqualValues(t, 2, f.Byte)
		b, err := os.ReadFile(f.File)
		require.NoError(t, err)
		require.Equal(t, []byte{0, 0, 7 ^ 1<<f.Bit, 0}, b)
		seen[f.Bit] = true
		require.NoError(t, os.WriteFile(f.File, []byte{0, 0, 7, 0}, 0o600))
	}
	require.Len(t, seen, 8)
	_, err := FlipIn(folder, func(string) bool { return false }, rng)
	require.Error(t, err)
}

// What a process left behind that was killed is removed by the next one.
func TestSweep(t *testing.T) {
	need(t)
	gone := exec.Command("true")
	require.NoError(t, gone.Run())
	d, err := New("sweep", 8)
	require.NoError(t, err)
	require.NoError(t, d.Unmount())
	require.NoError(t, unmount(d.home))
	home := strings.Replace(d.home, prefix+pid(os.Getpid()), prefix+pid(gone.Process.Pid), 1)
	require.NoError(t, os.Rename(d.home, home))
	left := &Disk{home, filepath.Join(home, "image"), filepath.Join(home, "mnt")}
	require.NoError(t, left.Mount())
	own := disk(t)
	require.NoError(t, Sweep())
	require.NoDirExists(t, home)
	require.DirExists(t, own.Folder())
	require.ErrorIs(t, syscall.Unmount(filepath.Join(home, "mnt"), 0), syscall.ENOENT)
}

func pid(n int) string { return strconv.Itoa(n) + "-" }

// A process with mounts of its own does not keep a disk that is unmounted.
func TestNamespaces(t *testing.T) {
	need(t)
	d := disk(t)
	w := startWriter(t, "unshare", "-m", "--propagation", "slave", "python3", "-c", write, filepath.Join(t.TempDir(), "file"))
	require.Equal(t, "flushed", w.write("one"))
	mounts := func() string {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(w.cmd.Process.Pid) + "/mounts")
		require.NoError(t, err)
		return string(b)
	}
	require.Contains(t, mounts(), d.Folder())
	require.NoError(t, d.Unmount())
	require.NotContains(t, mounts(), d.Folder())
}
