package remote

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// The token that commands show: the one that is set, else the one of the last login at
// the same address.

// Token is what to show; empty if there is none.
func Token(c *config.Config) (string, error) {
	switch {
	case c.Token != "" && c.TokenFile != "":
		return "", terminal.Usagef("token: stands beside --token-file; give one of the two")
	case c.Token != "":
		return c.Token, nil
	case c.TokenFile != "":
		return readToken("token-file", c.TokenFile)
	case c.Socket != "":
		return "", nil // who may open it is known
	}
	return Login(c.Addr)
}

// Login is the token of the last login at an address, as it is given with --addr; empty
// if there is none.
func Login(addr string) (string, error) {
	tokens, err := logins()
	if err != nil {
		return "", err
	}
	return tokens[addr], nil
}

// readToken reads the file of a setting.
func readToken(flag, file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", terminal.Usagef("%s: %w", flag, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", terminal.Usagef("%s: others than you may read %s; run chmod 600 %s, and make another token if somebody may have done so", flag, file, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", terminal.Usagef("%s: %w", flag, err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", terminal.Usagef("%s: %s has to hold one token and nothing else", flag, file)
	}
	return token, nil
}

// loginFile is where logins are kept, by the address as it is given with --addr.
func loginFile() (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(folder, "govnode", "tokens.yaml"), nil
}

// logins reads them. Who has no folder for settings has none.
func logins() (map[string]string, error) {
	file, err := loginFile()
	if err != nil {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	tokens := map[string]string{}
	if err == nil {
		err = yaml.Unmarshal(text, &tokens)
	}
	if err != nil {
		return nil, terminal.Usagef("login: %s cannot be read: %w; mend it, or remove it and log in again", file, err)
	}
	return tokens, nil
}

// Remember keeps a token for an address; an empty one forgets it. It returns where.
func Remember(addr, token string) (string, error) {
	file, err := loginFile()
	if err != nil {
		return "", fmt.Errorf("login: %w; set HOME, or give the token in GOVNODE_TOKEN", err)
	}
	tokens, err := logins()
	if err != nil {
		return "", err
	}
	if tokens == nil {
		tokens = map[string]string{}
	}
	if tokens[addr] = token; token == "" {
		delete(tokens, addr)
	}
	text, err := yaml.Marshal(tokens)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("login: %w", err)
	}
	if err := replaceFile(file, text); err != nil {
		return "", fmt.Errorf("login: %w", err)
	}
	return file, nil
}

// replaceFile writes a file beside and puts it in its place, so that nobody finds half of
// it. It is a new one, which nobody else may read: one that was left behind by a crash may
// have another mode, or be the one of another login.
func replaceFile(name string, content []byte) error {
	next, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.next")
	if err != nil {
		return err
	}
	_, err = next.Write(content)
	if err = errors.Join(err, next.Sync(), next.Close()); err == nil {
		err = os.Rename(next.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}
