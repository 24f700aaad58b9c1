package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// processesKey finds the processes that a script has started.
type processesKey struct{}

// TestScripts runs testdata/script: what a person types, and what comes back.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values[processesKey{}] = map[string]*process{}
			env.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     scriptExits,
			"start":     scriptStart,
			"stop":      scriptStop,
			"firstcall": scriptFirstCall,
			"post":      scriptPost,
			"says":      scriptSays,
			"id":        scriptID,
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

// start NAME ARGS... runs govnode and waits until it is ready. From then on
// $ADDR is the API of its first node.
func scriptStart(ts *testscript.TestScript, _ bool, args []string) {
	p, err := startProcess(ts.MkAbs("."), args[1:]...)
	ts.Check(err)
	ts.Defer(p.kill)
	ts.Value(processesKey{}).(map[string]*process)[args[0]] = p
	if args[1] == "dev" { // a node by itself says where it listens when it is ready
		_, err = p.await(`^ready$`, 1)
		ts.Check(err)
	}
	node, err := p.await(`^node node1 api=(\S+) pid=\d+$`, 1)
	ts.Check(err)
	ts.Setenv("ADDR", node[0][1])
}

// stop NAME ends what start has run, which must end with code 0.
func scriptStop(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Value(processesKey{}).(map[string]*process)[args[0]].stop())
}

// says NAME REGEXP waits until NAME has printed a line in which that is.
func scriptSays(ts *testscript.TestScript, _ bool, args []string) {
	_, err := ts.Value(processesKey{}).(map[string]*process)[args[0]].await(args[1], 1)
	ts.Check(err)
}

// firstcall NAME gives the line that NAME has printed to a shell.
func scriptFirstCall(ts *testscript.TestScript, _ bool, args []string) {
	line, err := ts.Value(processesKey{}).(map[string]*process)[args[0]].await(`^curl .*$`, 1)
	ts.Check(err)
	ts.Check(ts.Exec("sh", "-c", line[0][0]))
}

// post METHOD JSON sends a request to the node at $ADDR, as curl does.
func scriptPost(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("curl", "-sS", "--fail-with-body", "-H", "Content-Type: application/json",
		"http://"+ts.Getenv("ADDR")+"/govnode.v1."+args[0], "-d", args[1]))
}

// id NAME keeps the first word below the head of the table that was printed last.
func scriptID(ts *testscript.TestScript, _ bool, args []string) {
	lines := strings.Split(ts.ReadFile("stdout"), "\n")
	if len(lines) < 2 || len(strings.Fields(lines[1])) == 0 {
		ts.Fatalf("there is no table in %q", lines)
	}
	ts.Setenv(args[0], strings.Fields(lines[1])[0])
}
