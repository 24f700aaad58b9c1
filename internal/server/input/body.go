package input

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"
)

// errBody is why a message is read no further.
var errBody = errors.New("more than any message may have")

// longest is how much is read of a message in all, sent or unpacked: one byte more
// than the largest may have, so that whoever holds it to its own bound finds out first.
func longest() int64 { return max(Caps.Body.Max, Caps.PolicyBody.Max, Caps.OutputBody.Max) + 1 }

// BoundBody lets no more be read of the body of a request than the largest message has.
// Connect holds a message to its bound and then reads the rest of the body, however long
// that is, to say how long it was.
func BoundBody(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(w, r.Body, longest())
	}
}

// Gzip is what connect unpacks messages with. It goes no further than the largest message
// either: a megabyte that is sent may be a gigabyte when it is unpacked.
func Gzip() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCompression("gzip", nil, nil), // forgets the one that reads everything
		connect.WithCompression("gzip",
			func() connect.Decompressor { return new(gunzip) },
			func() connect.Compressor { return gzip.NewWriter(io.Discard) }),
	)
}

// A gunzip unpacks one message after the other.
type gunzip struct {
	gzip.Reader
	left int64 // of this message
}

// Reset implements connect.Decompressor.
func (g *gunzip) Reset(r io.Reader) error {
	g.left = longest()
	return g.Reader.Reset(r)
}

// Read implements io.Reader.
func (g *gunzip) Read(b []byte) (int, error) {
	if g.left <= 0 {
		return 0, errBody
	}
	n, err := g.Reader.Read(b[:min(int64(len(b)), g.left)])
	g.left -= int64(n)
	return n, err
}
