package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/cmd/govnode/internal/version"
	"example.com/govnode/internal/pki"
)

// Command is `govnode serve`.
func Command() *cobra.Command {
	var child bool
	cmd := config.Leaf(&cobra.Command{
		Use:   "serve",
		Short: "Run one node",
		Long: `Runs one node until SIGTERM or SIGINT, then takes no more calls, hands over those
that wait and the leadership, and ends within 10 s. A second signal ends it at once.
SIGHUP makes it open its audit log anew, so that it can be rotated, and read its
--edictum-keys and the files of --tls-cert, --tls-key and --tls-ca again.

A new cluster begins with one node started with --bootstrap; the others are started
with --join and the Raft addresses of members. Later starts need neither.

GOMEMLIMIT is respected. The garbage collector runs at GOGC=400 unless GOGC is set.`,
		Example: `  govnode serve --node a --data a --bootstrap
  govnode serve --node b --data b --listen 127.0.0.1:7071 --join 127.0.0.1:7080`,
		Args: terminal.Arguments(0, 0),
	}, config.OnServe, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		ctx, stop := process.UntilOneOf(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if child {
			process.EndWithParent(os.Stdin)
		}
		out := newLogWriter(c, cmd.ErrOrStderr())
		return sayLast(out, serve(ctx, c, cmd.OutOrStdout(), out))
	})
	// dev starts its nodes with it.
	cmd.Flags().BoolVar(&child, process.ChildFlag, false, "end at once when standard input ends")
	_ = cmd.Flags().MarkHidden(process.ChildFlag)
	return cmd
}

// sayLast says with which error a node ends, behind the last lines of its log: who writes
// to the output himself may hang there, and so not end.
func sayLast(out *logWriter, err error) error {
	if err != nil {
		code := terminal.ExitNo
		var coded *terminal.ExitError
		if errors.As(err, &coded) {
			code = coded.Code
		}
		_, _ = fmt.Fprintln(out, "govnode:", terminal.OneLine(err.Error()))
		err = &terminal.ExitError{Code: code}
	}
	out.flush(lastLinesTimeout)
	return err
}

// DrainTimeout bounds the time between the signal to end and the end.
const DrainTimeout = 10 * time.Second

// requestsTimeout is how much of that requests under way have, and what is handed over
// before they end. The rest is for the last lines of the audit and for the store, which
// would else be cut off where a request outlasts it.
const requestsTimeout = 7 * time.Second

// gcPercent is the pace of the garbage collector on a node: it holds much that
// lives long, and memory is cheaper than the time to look through it again.
const gcPercent = 400

// serve runs a node until ctx ends, and then drains it.
func serve(ctx context.Context, c *config.Config, stdout, stderr io.Writer) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log := newLogger(c, stderr)
	if err := keepToItself(); err != nil {
		log.Warn("a core of this process would be written if it crashed, with what it has in memory", "error", err)
	}
	hangups := make(chan os.Signal, 1) // one that comes before the node serves is not forgotten
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	api, err := address.Listen("listen", c.Listen, 0)
	if err != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	if c.Backend == "redis" && !c.Given("node") {
		host, _ := os.Hostname()
		c.Node = nameOf(cmp.Or(c.Advertise, host), api.Addr())
	}
	if err := socketCanBe(c); err != nil {
		return err
	}
	secure, err := openCertificates(c, log)
	if err != nil {
		return err
	}
	log.Info("starting", "node", c.Node, "backend", c.Backend, "version", version.Of().Version)
	node, err := openNode(ctx, c, secure, api.Addr(), log, stdout)
	if err != nil {
		return err
	}
	log = log.With("node", c.Node)
	if secure != nil {
		log.Info("TLS is on", "cluster-name", c.ClusterName, "client-auth", c.TLSClientAuth)
	}
	if c.Insecure && c.Auth == config.AuthTokens {
		log.Warn("insecure: tokens go over the network as they are; give a certificate with --tls-cert, unless something in front of this node has one", "listen", c.Listen, "raft-listen", c.RaftListen)
	} else if c.Insecure {
		log.Warn("insecure: whoever can reach this node can do everything, since nobody is asked who they are", "listen", c.Listen, "raft-listen", c.RaftListen)
	}
	local, err := node.beside(c, log)
	if err != nil {
		return errors.Join(err, node.end(ctx, nil))
	}
	defer local.close()
	_, _ = fmt.Fprintf(stdout, "node %s api=%s pid=%d\n", c.Node, api.Addr(), os.Getpid())
	log.Info("serving", "api", api.Addr().String())
	go onHangup(ctx, hangups, func() {
		node.reopen(c, log)
		reloadCertificates(secure, log)
	})
	httpServer := newHTTPServer(node.handler(), log)
	if secure != nil {
		overTLS(httpServer, secure.ServerConfig(pki.ClientAuth(c.TLSClientAuth)))
		go secure.Watch(ctx, certificatesEvery)
	}
	failed := make(chan error, 1)
	go func() { failed <- serveOn(httpServer, node.lobby.Over(api)) }()
	select {
	case err := <-failed:
		return errors.Join(err, node.end(context.Background(), nil))
	case <-ctx.Done():
	}
	log.Info("draining")
	ended := make(chan error, 1)
	go func() { ended <- node.end(context.Background(), httpServer) }()
	select {
	case err := <-ended:
		if err == nil {
			log.Info("ended")
		}
		return err
	case <-time.After(DrainTimeout - lastLinesTimeout - logPatience):
		// What a crash does to a node is safe, so waiting longer for a part
		// that hangs would only keep the port taken.
		return fmt.Errorf("ended by force: it was not done in good order within %v", DrainTimeout)
	}
}

// nameOf names a node that nobody has named by where it is reached, so that nodes
// that share a Redis are told apart: in events, in records of decisions and in
// logs.
func nameOf(host string, a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	safe := strings.Map(func(r rune) rune {
		if !config.ValidNodeName("x" + string(r)) {
			return '-'
		}
		return r
	}, host)
	return safe[:min(len(safe), 64-len("-65535"))] + "-" + port
}

// reachable is an address with the host under which others reach it.
func reachable(c *config.Config, a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if c.Advertise != "" {
		host = c.Advertise
	}
	return net.JoinHostPort(host, port)
}

// endHTTP lets requests under way end until ctx does, and then cuts them off.
func endHTTP(ctx context.Context, s *http.Server) error {
	if s == nil {
		return nil
	}
	if err := s.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests were still under way: %w", err), s.Close())
	}
	return nil
}
