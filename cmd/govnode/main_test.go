package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the test binary be govnode: the scripts, dev and the tests of
// processes start it under that name.
func TestMain(m *testing.M) {
	programs := map[string]func(){"govnode": main}
	if _, err := exec.LookPath("curl"); err != nil {
		programs["curl"] = curl // what dev prints is run as printed
	}
	testscript.Main(m, programs)
}

// curl knows as much of curl as the line that dev prints needs.
func curl() {
	fs := flag.NewFlagSet("curl", flag.ExitOnError)
	fs.Bool("fsS", false, "")
	end := fs.String("w", "", "")
	head := fs.String("H", "", "")
	body := fs.String("d", "", "")
	var target string
	for args := os.Args[1:]; len(args) > 0; args = fs.Args() {
		if !strings.HasPrefix(args[0], "-") {
			target, args = args[0], args[1:]
		}
		_ = fs.Parse(args)
	}
	name, value, _ := strings.Cut(*head, ": ")
	req, err := http.NewRequest(http.MethodPost, target, strings.NewReader(*body))
	if err == nil {
		req.Header.Set(name, value)
		var res *http.Response
		if res, err = http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(os.Stdout, res.Body)
			fmt.Print(strings.ReplaceAll(*end, `\n`, "\n"))
			if res.StatusCode != http.StatusOK {
				os.Exit(22)
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(7)
	}
}

// TestScripts runs testdata/script: what a person types, and what comes back.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": scriptExits,
			"start": scriptStart,
			"stop":  scriptStop,
			"eval":  scriptEval,
		},
	})
}

// exits CODE PROGRAM [ARGS...] runs a program that must end with a code.
func scriptExits(ts *testscript.TestScript, _ bool, args []string) {
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("ended with %s, not with %s", got, args[0])
	}
}

// start NAME ARGS... starts govnode and waits until it prints ready. $ADDR is
// the API of its first node from then on, and NAME.out what it prints.
func scriptStart(ts *testscript.TestScript, _ bool, args []string) {
	out := ts.MkAbs(args[0] + ".out")
	file, err := os.Create(out)
	ts.Check(err)
	program, err := exec.LookPath("govnode")
	ts.Check(err)
	cmd := exec.Command(program, args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), file, file
	ts.Check(cmd.Start())
	ts.Check(file.Close())
	running := &scriptProcess{cmd: cmd, ended: make(chan struct{})}
	go func() {
		running.err = cmd.Wait()
		close(running.ended)
	}()
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		<-running.ended
	})
	processes, _ := ts.Value(processesKey{}).(map[string]*scriptProcess)
	_ = processes
	scriptProcesses.Store(ts.MkAbs(args[0]), running)
	content := awaitOutput(ts, out, running, "\nready\n")
	_, rest, _ := strings.Cut(content, "api=")
	ts.Setenv("ADDR", strings.Fields(rest)[0])
}

func awaitOutput(ts *testscript.TestScript, out string, p *scriptProcess, want string) string {
	for deadline := time.Now().Add(30 * time.Second); ; {
		content, err := os.ReadFile(out)
		ts.Check(err)
		if bytes.Contains(content, []byte(want)) {
			return string(content)
		}
		select {
		case <-p.ended:
			ts.Fatalf("it ended before %q was printed: %v\n%s", want, p.err, content)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%q is not printed:\n%s", want, content)
		}
	}
}

var _ = filepath.Join
