package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
)

// FromEnvironment returns a Config with what the environment says, by the names that
// the Python client reads too, and, but for the addresses, the commands, to which
// GOVNODE_ADDR says them:
//
//   - GOVNODE_ADDRESSES: Addresses, separated by commas; 127.0.0.1:7070 without it
//   - GOVNODE_TOKEN: Token
//   - GOVNODE_TOKEN_FILE: a file with the token, read again when it has changed; not
//     looked at beside GOVNODE_TOKEN
//   - GOVNODE_TLS_CA, GOVNODE_TLS_CERT, GOVNODE_TLS_KEY: TLS, from files as LoadTLS
//     reads them
//
// What is empty counts as not set. Everything else is left for the caller to set, who
// may change all of it. New alone reads no environment.
func FromEnvironment() (Config, error) {
	var c Config
	for a := range strings.SplitSeq(os.Getenv("GOVNODE_ADDRESSES"), ",") {
		if a = strings.TrimSpace(a); a != "" {
			c.Addresses = append(c.Addresses, a)
		}
	}
	if c.Addresses == nil {
		c.Addresses = []string{"127.0.0.1:7070"}
	}
	c.Token = os.Getenv("GOVNODE_TOKEN")
	if file := os.Getenv("GOVNODE_TOKEN_FILE"); file != "" && c.Token == "" {
		f := &tokenFile{name: file}
		if _, err := f.token(); err != nil {
			return Config{}, fmt.Errorf("client: %w", err)
		}
		c.TokenSource = f.token
	}
	ca, cert, key := os.Getenv("GOVNODE_TLS_CA"), os.Getenv("GOVNODE_TLS_CERT"), os.Getenv("GOVNODE_TLS_KEY")
	if ca == "" && cert == "" && key == "" {
		return c, nil
	}
	var err error
	if c.TLS, err = LoadTLS(ca, cert, key); err != nil {
		return Config{}, fmt.Errorf("client: GOVNODE_TLS_CA, GOVNODE_TLS_CERT, GOVNODE_TLS_KEY: %w", err)
	}
	return c, nil
}

// A tokenFile is a file with a token, which somebody may replace.
type tokenFile struct {
	name string

	mu       sync.Mutex
	text     string // as it was read last; empty before
	modified time.Time
	size     int64
}

// token reads the file where it has changed. It is a Config.TokenSource.
func (f *tokenFile) token() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.name)
	if err != nil {
		return "", f.wrong(err)
	}
	if f.text != "" && info.ModTime().Equal(f.modified) && info.Size() == f.size {
		return f.text, nil
	}
	b, err := os.ReadFile(f.name)
	if err != nil {
		return "", f.wrong(err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" || !tokenText(text) {
		return "", f.wrong(errors.New("it has to hold one token and nothing else"))
	}
	f.text, f.modified, f.size = text, info.ModTime(), info.Size()
	return text, nil
}

func (f *tokenFile) wrong(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // which names the file once more
	}
	return fmt.Errorf("GOVNODE_TOKEN_FILE: %s: %w", f.name, err)
}
