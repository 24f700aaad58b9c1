//go:build unix

package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// root is the folder of the repository.
const root = "../.."

// longest is the time that one document may take. Documents take seconds; this
// only ends what hangs.
const longest = 3 * time.Minute

// program builds govnode once.
var program = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "govnode-docs")
	if err != nil {
		return "", err
	}
	file := filepath.Join(folder, "govnode")
	cmd := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", file, "./cmd/govnode")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return file, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if file, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(file))
	}
	os.Exit(code)
}

// A room is a folder in which one document is run, and the ports it may use.
type room struct {
	dir  string
	base int // stands for port 7070
}

var (
	apiPort   = regexp.MustCompile(`:70[789]\d\b`)
	redisPort = regexp.MustCompile(`\b6379\b`)
)

// here moves the ports in a text to those of the room.
func (r room) here(text string) string {
	text = apiPort.ReplaceAllStringFunc(text, func(m string) string {
		port, _ := strconv.Atoi(m[1:])
		return fmt.Sprintf(":%d", r.base+port-7070)
	})
	return redisPort.ReplaceAllString(text, strconv.Itoa(r.redis()))
}

// redis stands for port 6379.
func (r room) redis() int { return r.base + ports - 1 }

// ports is how many a room has: 7070 to 7099, and one for Redis.
const ports = 31

var taken struct {
	sync.Mutex
	bases map[int]bool
}

// freePorts finds ports below those that the system gives out by itself.
func freePorts() (int, error) {
	taken.Lock()
	defer taken.Unlock()
	for range 100 {
		base := 20000 + ports*rand.IntN(300)
		if taken.bases[base] || !allFree(base) {
			continue
		}
		if taken.bases == nil {
			taken.bases = map[int]bool{}
		}
		taken.bases[base] = true
		return base, nil
	}
	return 0, errors.New("there are no free ports")
}

func allFree(base int) bool {
	for port := base; port < base+ports; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}

// newRoom makes a folder that looks to a document as the repository does, as far
// as its commands need: bin/govnode, examples and a Go module.
func newRoom() (r room, err error) {
	if r.base, err = freePorts(); err != nil {
		return r, err
	}
	if r.dir, err = os.MkdirTemp("", "govnode-docs"); err != nil {
		return r, err
	}
	built, err := program()
	if err != nil {
		return r, err
	}
	for _, sub := range []string{".docs", "tmp"} {
		if err := os.Mkdir(filepath.Join(r.dir, sub), 0o755); err != nil {
			return r, err
		}
	}
	// dev has a port of its own unless it is given one.
	wrapper := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = dev ]; then export GOVNODE_LISTEN=127.0.0.1:%d; fi\nexec %s \"$@\"\n", r.base, built)
	if err := r.write("bin/govnode", wrapper, 0o755); err != nil {
		return r, err
	}
	if err := r.copyExamples(); err != nil {
		return r, err
	}
	return r, r.module()
}

func (r room) copyExamples() error {
	return filepath.WalkDir(filepath.Join(root, "examples"), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return r.write(name, r.here(string(text)), info.Mode())
	})
}

// module lets Go files of the room import govnode as if they lay in it.
func (r room) module() error {
	text, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		return err
	}
	_, requires, _ := strings.Cut(string(text), "\n")
	home, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	mod := "module reader\n" + requires + "\nrequire example.com/govnode v0.0.0\nreplace example.com/govnode => " + home + "\n"
	if err := r.write("go.mod", mod, 0o644); err != nil {
		return err
	}
	sum, err := os.ReadFile(root + "/go.sum")
	if err != nil {
		return err
	}
	return r.write("go.sum", string(sum), 0o644)
}

func (r room) write(name, text string, mode os.FileMode) error {
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), mode)
}

// preamble is what comes before the steps of a document. What a script starts
// in the background writes to the file of its step, where it can be waited for.
const preamble = `set -euo pipefail
await() {
	for _ in $(seq 600); do
		if grep -qF -- "$2" ".docs/$1.out"; then return; fi
		sleep 0.05
	done
	echo "it is not printed: $2"
	return 1
}
`

// run runs a document in a room. What it shows is compared at the end.
func (r room) run(list []block) error {
	var script strings.Builder
	script.WriteString(preamble)
	for i, b := range list {
		b.text = r.here(b.text)
		if err := r.write(fmt.Sprintf(".docs/%d", i), b.text, 0o644); err != nil {
			return err
		}
		step, err := step(i, b)
		if err != nil {
			return fmt.Errorf("line %d: %w", b.line, err)
		}
		fmt.Fprintf(&script, "echo %d >.docs/step\n%s", i, strings.ReplaceAll(step, "REDIS", strconv.Itoa(r.redis())))
	}
	script.WriteString("echo done >.docs/step\n")
	if err := r.bash(script.String()); err != nil {
		at, _ := os.ReadFile(filepath.Join(r.dir, ".docs/step"))
		i, _ := strconv.Atoi(strings.TrimSpace(string(at)))
		return fmt.Errorf("line %d: the block fails (%w):\n%s\nIt printed:\n%s", list[i].line, err, list[i].text, r.printed(i))
	}
	return r.compare(list)
}

// step is the part of the script that does what a block asks for.
func step(i int, b block) (string, error) {
	out := fmt.Sprintf(">.docs/%d.out 2>&1 </dev/null", i)
	if b.has("alerts") {
		if err := checkAlerts(b.text); err != nil {
			return "", err
		}
	}
	if file := b.words["file"]; file != "" && b.lang != "go" {
		return fmt.Sprintf("mkdir -p %s && cp .docs/%d %s\n", path.Dir(file), i, file), nil
	}
	if b.has("norun") {
		return "", nil
	}
	switch b.lang {
	case "sh":
		do := fmt.Sprintf(". ./.docs/%d %s\n", i, out)
		if b.has("terminal") {
			do = fmt.Sprintf("( . ./.docs/%d ) %s &\n", i, out)
		}
		if code, ok := b.words["exit"]; ok {
			do = fmt.Sprintf("set +e\n. ./.docs/%d %s\ncode=$?\nset -e\n[ $code = %s ]\n", i, out, code)
		}
		if text, ok := b.words["until"]; ok {
			do += fmt.Sprintf("await %d '%s'\n", i, text)
		}
		return do, nil
	case "go":
		file := b.words["file"]
		named := file != ""
		if !named {
			file = fmt.Sprintf("block%d/main.go", i)
		}
		do := fmt.Sprintf("mkdir -p %s && cp .docs/%d %s\ngo vet ./%s %s\n", path.Dir(file), i, file, path.Dir(file), out)
		if !named && strings.HasPrefix(b.text, "package main\n") {
			do += fmt.Sprintf("go run ./%s %s\n", path.Dir(file), out)
		}
		return do, nil
	case "yaml":
		if b.has("alerts") {
			return "", nil
		}
		return fmt.Sprintf("mkdir -p .docs/p%[1]d && cp .docs/%[1]d .docs/p%[1]d/policy.yaml\ngovnode policy validate .docs/p%[1]d %[2]s\n"+
			"if grep -i warning .docs/%[1]d.out; then false; fi\n", i, out), nil
	case "redis":
		return fmt.Sprintf("redis-cli -e -p REDIS <.docs/%d >.docs/%d.out 2>&1\n", i, i), nil
	}
	return "", nil // json and text are only looked at
}

// bash runs a script and ends all that it has started.
func (r room) bash(script string) error {
	if err := r.write(".docs/script", script, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", ".docs/script")
	cmd.Dir = r.dir
	cmd.Env = r.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := os.Create(filepath.Join(r.dir, ".docs/script.out"))
	if err != nil {
		return err
	}
	defer func() { _ = said.Close() }()
	cmd.Stdout, cmd.Stderr = said, said
	err = cmd.Run()
	if cmd.Process != nil {
		endGroup(cmd.Process.Pid)
	}
	if err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("%w %s", err, bytes.TrimSpace(text))
	}
	return nil
}

// endGroup ends the processes of a group, those that were left behind too.
func endGroup(id int) {
	_ = syscall.Kill(-id, syscall.SIGTERM)
	for range 120 {
		if errors.Is(syscall.Kill(-id, 0), syscall.ESRCH) {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	_ = syscall.Kill(-id, syscall.SIGKILL)
}

// environment is that of the test, without settings of govnode and with the
// ports of the room in the place of the default.
func (r room) environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOVNODE_") {
			env = append(env, v)
		}
	}
	api := fmt.Sprintf("127.0.0.1:%d", r.base)
	return append(env, "PATH="+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"), "TMPDIR="+filepath.Join(r.dir, "tmp"),
		"GOVNODE_ADDR="+api, "GOFLAGS=-buildvcs=false", "PYTHONDONTWRITEBYTECODE=1")
}

func (r room) printed(i int) string {
	text, _ := os.ReadFile(filepath.Join(r.dir, fmt.Sprintf(".docs/%d.out", i)))
	return string(text)
}

// compare holds what a document shows to what was printed.
func (r room) compare(list []block) error {
	from := -1
	for i, b := range list {
		var err error
		switch {
		case (b.lang == "sh" || b.lang == "go") && !b.has("norun") && !b.has("file"):
			from = i
		case b.has("output") && from < 0:
			err = errors.New("no script stands above this output")
		case b.lang == "json" && b.has("output"):
			err = compareJSON(r.here(b.text), r.printed(from))
		case b.lang == "text" && b.has("output"):
			err = compareText(r.here(b.text), r.printed(from))
		case b.lang == "json":
			_, err = parse(b.text)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", b.line, err)
		}
	}
	return nil
}

// runDocument runs the blocks of a document in a room of their own.
func runDocument(list []block) (err error) {
	r, err := newRoom()
	if r.dir != "" {
		defer func() { _ = os.RemoveAll(r.dir) }()
	}
	if err != nil {
		return err
	}
	return r.run(list)
}
