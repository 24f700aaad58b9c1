package load

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
)

// Sink accepts connections at an address and reads what comes, with TLS where it has a
// certificate, until the process ends. It says on standard output that it listens.
func Sink(address, cert, key string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	var secure *tls.Config
	if cert != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return err
		}
		secure = &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS13}
	}
	_, _ = fmt.Fprintln(os.Stdout, "listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if secure != nil {
			c = tls.Server(c, secure)
		}
		go func() { _ = drain(c) }()
	}
}
