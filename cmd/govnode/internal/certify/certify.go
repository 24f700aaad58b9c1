package certify

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/pki"
)

// The names of the files of an authority, in its folder.
const (
	caCert = "ca.crt"
	caKey  = "ca.key"
)

// Command is `govnode tls`.
func Command() *cobra.Command {
	return terminal.Group("tls", "Make the certificates of a cluster", initCommand(), nodeCommand(), clientCommand())
}

// An order is what a certificate is made by, as flags say it.
type order struct {
	caDir     string
	out       string
	days      int
	overwrite bool
}

// bindOut gives a command the flags about what it writes.
func (o *order) bindOut(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.out, "out", ".", "`folder` to write the files to; it is made if need be")
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", false, "replace files that are there already")
}

// maxDays is as long as an authority lasts.
const maxDays = 3650

// bind gives a command the flags of every certificate below an authority.
func (o *order) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.caDir, "ca-dir", ".", "`folder` with the ca.crt and ca.key of the cluster")
	o.bindOut(cmd)
	cmd.Flags().IntVar(&o.days, "days", 365, fmt.Sprintf("how many days the certificate is valid, 1..%d", maxDays))
}

func initCommand() *cobra.Command {
	var cluster string
	var o order
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the authority of a cluster",
		Long: `Draws the authority of a cluster and writes its certificate, ca.crt, and its key, ca.key.
Every node and client needs ca.crt. Whoever has ca.key can make himself a node: keep it
away from the nodes, where only those who make certificates can read it.`,
		Example: `  govnode tls init --cluster govnode --out ca
  govnode tls node a --hosts a.example.com,10.0.0.1 --ca-dir ca --out node-a
  govnode tls client laptop --ca-dir ca --out laptop`,
		Args: terminal.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ca, err := pki.NewCA(cluster, time.Now())
			if err != nil {
				return terminal.Usagef("cluster: %v", err)
			}
			return o.write(cmd.OutOrStdout(), ca, caCert, caKey)
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "govnode", "`name` of the cluster, which its nodes have as --cluster-name")
	o.bindOut(cmd)
	return cmd
}

func nodeCommand() *cobra.Command {
	var hosts []string
	var o order
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Make the certificate of a node",
		Long: `Makes the certificate of a node and writes node-NAME.crt and node-NAME.key. NAME is what
the node is started with as --node: a node that shows the certificate of another is refused.
The hosts are all names and addresses under which clients and other nodes reach its API.

To renew a certificate make it again with --overwrite: a node that runs takes the new one by
itself within 10 s.`,
		Example: `  govnode tls node a --hosts a.example.com,10.0.0.1,127.0.0.1 --ca-dir ca --out node-a`,
		Args:    terminal.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.issue(cmd.OutOrStdout(), pki.Node, args[0], hosts)
		},
	}
	cmd.Flags().StringSliceVar(&hosts, "hosts", nil, "`names` and IP addresses of the node's host, separated by commas")
	o.bind(cmd)
	return cmd
}

func clientCommand() *cobra.Command {
	var o order
	cmd := &cobra.Command{
		Use:   "client NAME",
		Short: "Make the certificate of a client",
		Long: `Makes the certificate by which nodes know a client, and writes client-NAME.crt and
client-NAME.key. It is no use for a node, nor on the port between nodes.`,
		Example: `  govnode tls client laptop --ca-dir ca --out laptop
  govnode cluster status --tls-ca ca/ca.crt --tls-cert laptop/client-laptop.crt --tls-key laptop/client-laptop.key`,
		Args: terminal.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.issue(cmd.OutOrStdout(), pki.Client, args[0], nil)
		},
	}
	o.bind(cmd)
	return cmd
}

// issue makes the certificate of a node or a client.
func (o *order) issue(w io.Writer, role pki.Role, name string, hosts []string) error {
	if o.days < 1 || o.days > maxDays {
		return terminal.Usagef("days: %d (flag --days): must be 1 to %d", o.days, maxDays)
	}
	if err := pki.CheckName(name); err != nil { // it becomes that of a file
		return terminal.Usagef("%v", err)
	}
	if role == pki.Node && len(hosts) == 0 {
		return terminal.Usagef("hosts: must name the hosts of the node, by which clients know that it is the one; give --hosts NAME,ADDRESS")
	}
	ca, err := pki.ReadPair(filepath.Join(o.caDir, caCert), filepath.Join(o.caDir, caKey))
	if err != nil {
		return terminal.Unusable(fmt.Errorf("ca-dir: %w; name the folder of `govnode tls init` with --ca-dir", err))
	}
	p, err := pki.Issue(ca, role, name, hosts, time.Now(), time.Duration(o.days)*24*time.Hour)
	if err != nil {
		return terminal.Usagef("%v", err)
	}
	file := string(role) + "-" + name
	return o.write(w, p, file+".crt", file+".key")
}

// write writes the two files and says where they are.
func (o *order) write(w io.Writer, p *pki.Pair, cert, key string) error {
	cert, key = filepath.Join(o.out, cert), filepath.Join(o.out, key)
	if err := os.MkdirAll(o.out, 0o700); err != nil {
		return terminal.Unusable(fmt.Errorf("out: cannot make the folder: %w; give another one with --out", err))
	}
	if err := p.Write(cert, key, o.overwrite); err != nil {
		return terminal.ExitWith(err)
	}
	what := "authority"
	if who, ok := pki.IdentityOf(p.Certificate); ok {
		what = who.String()
	}
	return terminal.Say(w, "%s %s %s until %s", cert, key, what, p.Certificate.NotAfter.UTC().Format(time.DateOnly))
}
