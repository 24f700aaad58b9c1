package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the test binary be govnode: the scripts, dev and the tests of
// processes start it under that name.
func TestMain(m *testing.M) {
	programs := map[string]func(){"govnode": main}
	if _, err := exec.LookPath("curl"); err != nil || filepath.Base(os.Args[0]) == "curl" {
		programs["curl"] = curl
	}
	// A program built with the race detector waits for a second before it
	// ends, unless it is told not to.
	_ = os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	testscript.Main(m, programs)
}

// curl stands in where there is none, and knows as much of it as the line that
// dev prints needs.
func curl() {
	fs := flag.NewFlagSet("curl", flag.ExitOnError)
	fs.Bool("sS", false, "")
	fs.Bool("fail-with-body", false, "")
	end, head, body := fs.String("w", "", ""), fs.String("H", "", ""), fs.String("d", "", "")
	_ = fs.Parse(os.Args[1:])
	target := fs.Arg(0)
	_ = fs.Parse(fs.Args()[1:])
	req, err := http.NewRequest(http.MethodPost, target, strings.NewReader(*body))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	name, value, _ := strings.Cut(*head, ": ")
	req.Header.Set(name, value)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(7)
	}
	_, _ = io.Copy(os.Stdout, res.Body)
	fmt.Print(strings.ReplaceAll(*end, `\n`, "\n"))
	if res.StatusCode != http.StatusOK {
		os.Exit(22)
	}
}
