package pki

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Certificates and keys in files.

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
	// fileMax bounds what is read: a bundle of authorities has some kilobytes.
	fileMax = 1 << 20
)

// CertPEM is the certificate as it stands in a file.
func (p *Pair) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: p.Certificate.Raw})
}

// KeyPEM is the key as it stands in a file.
func (p *Pair) KeyPEM() ([]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(p.Key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: raw}), nil
}

// beside is what a file is called until it is put in its place.
const beside = ".new"

// Write makes the two files, of which the key can be read by its owner alone. A
// file that is there is refused, and then nothing is written, unless they may be
// replaced: then nobody ever sees half of one.
//
// Both are on disk beside their places before the first of them is put there. No file
// system replaces two files in one step: a crash in between leaves the new key with the
// old certificate, and the new one beside, of which whoever reads the pair is told.
func (p *Pair) Write(certFile, keyFile string, replace bool) error {
	steps, err := p.steps(certFile, keyFile, replace)
	for _, step := range steps {
		if err = step(); err != nil {
			break
		}
	}
	return err
}

// steps are what Write does, one after the other; each is done or not.
func (p *Pair) steps(certFile, keyFile string, replace bool) ([]func() error, error) {
	key, err := p.KeyPEM()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{certFile, keyFile} {
		switch info, err := os.Lstat(name); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case !replace:
			return nil, fmt.Errorf("%s is there already, and is not overwritten: move it away, or give --overwrite if it is not used any more", name)
		case info.IsDir():
			return nil, fmt.Errorf("%s is a folder: move it away", name)
		}
	}
	return []func() error{
		func() error { return writeBeside(keyFile, key, 0o600) },
		func() error { return writeBeside(certFile, p.CertPEM(), 0o644) },
		func() error { return syncFolders(keyFile, certFile) },
		func() error { return os.Rename(keyFile+beside, keyFile) },
		func() error {
			if err := os.Rename(certFile+beside, certFile); err != nil {
				return fmt.Errorf("the key %s is new and the certificate %s is not: %w; run `mv %s %s`", keyFile, certFile, err, certFile+beside, certFile)
			}
			return nil
		},
		func() error { return syncFolders(keyFile, certFile) },
	}, nil
}

// writeBeside writes what is to be a file, and has it on disk.
func writeBeside(name string, content []byte, mode fs.FileMode) error {
	name += beside
	// One that was left by a crash may have another mode.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// syncFolders makes the names of files outlive a power cut.
func syncFolders(files ...string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be flushed there
	}
	var errs []error
	for _, name := range files {
		f, err := os.Open(filepath.Dir(name))
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ReadPair reads a certificate and its key.
func ReadPair(certFile, keyFile string) (*Pair, error) {
	c, err := readTLS(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &Pair{c.Leaf, c.PrivateKey.(crypto.Signer)}, nil
}

// readTLS reads a certificate, with those that lead from it to an authority, and
// its key.
func readTLS(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := readFile(certFile)
	if err != nil {
		return nil, err
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		if half := halfReplaced(certFile, keyFile, cert, key); half != "" {
			return nil, fmt.Errorf("%s and %s: %w: they are being replaced, or that was cut short, and %s is not in its place; if it stays so run `mv %s %s`",
				certFile, keyFile, err, half+beside, half+beside, half)
		}
		return nil, fmt.Errorf("%s and %s: %w; name the files of a certificate and of its key, both in PEM", certFile, keyFile, err)
	}
	if c.Leaf == nil {
		if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return nil, fmt.Errorf("%s: %w", certFile, err)
		}
	}
	return &c, nil
}

// halfReplaced is which of two files that do not match is to be replaced by the one
// beside it, so that they do; empty if that does not help.
func halfReplaced(certFile, keyFile string, cert, key []byte) string {
	if next, err := readFile(certFile + beside); err == nil {
		if _, err := tls.X509KeyPair(next, key); err == nil {
			return certFile
		}
	}
	if next, err := readKey(keyFile + beside); err == nil { // a crash may keep the later step alone
		if _, err := tls.X509KeyPair(cert, next); err == nil {
			return keyFile
		}
	}
	return ""
}

// readKey reads a key that nobody else can read. Whoever has it is who it is for.
func readKey(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	// Windows says in other ways who may read a file.
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("the key %s can be used by others than its owner (mode %04o): run `chmod 600 %s`, and draw a new key if somebody may have read it", name, mode, name)
	}
	return readFile(name)
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > fileMax {
		return nil, fmt.Errorf("%s is larger than %d bytes: it is no file of certificates or of a key", name, fileMax)
	}
	return os.ReadFile(name)
}

// readAuthorities reads the certificates of a file, all of which must be sound: one
// that was left out would be missed by those it vouches for.
func readAuthorities(name string) ([]*x509.Certificate, error) {
	rest, err := readFile(name)
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != pemCertificate {
			return nil, fmt.Errorf("%s has a %s in it: name a file of nothing but certificates in PEM", name, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 || bytes.Contains(rest, []byte("-----BEGIN")) {
		return nil, fmt.Errorf("%s has no certificate in PEM, or one that is cut short: name a file of certificates in PEM", name)
	}
	return all, nil
}
