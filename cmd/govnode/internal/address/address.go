package address

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

// Addresses as flags have them: what they stand for, and how one is listened
// on.

// IsLoopback reports whether every address that a host stands for can be
// reached from this machine alone. A host that cannot be looked up is not.
func IsLoopback(host string) bool {
	if host == "" {
		return false // every address of the machine
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addresses) == 0 {
		return false
	}
	for _, a := range addresses {
		if !a.Unmap().IsLoopback() {
			return false
		}
	}
	return true
}

// IsUnspecified reports whether a host stands for all addresses of the machine.
func IsUnspecified(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.Unmap().IsUnspecified()
}

// OffsetPort is an address with a port that is higher by n. Port 0, which asks
// for any free port, stays 0.
func OffsetPort(address string, n int) (string, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return "", err
	}
	if port != 0 {
		port += n
	}
	if port > 65535 {
		return "", fmt.Errorf("port %d does not exist", port)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// Listen opens a port. At most limit connections are open at once; those that
// come on top wait in the backlog until one of them ends, which those that do
// nothing must after idleTimeout.
func Listen(flag, address string, limit int) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, ListenError(flag, address, err)
	}
	if limit > 0 {
		l = netutil.LimitListener(l, limit)
	}
	return l, nil
}

// ListenError says in words what to do about a port that cannot be opened.
func ListenError(flag, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s: the address %s is in use: end the process that listens there, or give another --%s", flag, address, flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s: the address %s needs more rights than this process has: give a port above 1023 with --%s", flag, address, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s: the address %s is none of this machine: give another --%s", flag, address, flag)
	}
	return fmt.Errorf("%s: cannot listen on %s: %w", flag, address, err)
}

// Split splits what is written with commas and drops what is empty.
func Split(text string) []string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}
