package redis

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who refuses a node for want of a certificate says so and closes the connection,
// and what the node has sent meanwhile may have that come first.
func TestAdviceForWantOfACertificate(t *testing.T) {
	for _, err := range []error{
		errors.New("remote error: tls: certificate required"),
		fmt.Errorf("check: %w", &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}),
		&net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)},
	} {
		require.Contains(t, advice(err), "certificate of this node: give one in TLS.Certificates", "%v", err)
	}
}
