package client

import (
	"crypto/tls"

	"example.com/govnode/internal/pki"
)

// LoadTLS returns a Config.TLS from files in PEM: ca has the authorities that
// vouch for nodes, those of this system if it is ""; cert and key are the
// certificate by which nodes know this client and its key, which only its owner
// may read, both "" for none. It is TLS 1.3 alone. The certificate is read again
// when its file has changed, so that it can be replaced while the client runs; the
// authorities are read once.
func LoadTLS(ca, cert, key string) (*tls.Config, error) {
	s, err := pki.Load(pki.Options{CA: ca, Cert: cert, Key: key})
	if err != nil {
		return nil, err
	}
	c := s.ClientConfig()
	shown := c.GetClientCertificate
	c.GetClientCertificate = func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		s.Refresh()
		return shown(asked)
	}
	return c, nil
}

// urls are the addresses with the scheme by which they are reached.
func (c *Config) urls() (list []string) {
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	for _, a := range c.Addresses {
		list = append(list, withScheme(scheme, a))
	}
	return list
}
