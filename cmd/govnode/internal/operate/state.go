package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// State is `govnode state`.
func State() *cobra.Command {
	return terminal.Group("state", "Read and write values and lists that agents keep",
		stateGetCommand(), stateSetCommand(), stateDeleteCommand(), stateAppendCommand(), stateRangeCommand())
}

func stateGetCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "get KEY...",
		Short: "Print values and their versions",
		Long: `Prints values and their versions as they stand at one instant. A key that is absent has
the version 0.`,
		Args: terminal.Arguments(1, 1000),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.BatchGet, &govnodev1.BatchGetRequest{Keys: args}, func(w io.Writer, answer *govnodev1.BatchGetResponse) error {
			t := terminal.NewTable(w, "KEY", "VERSION", "VALUE")
			for _, key := range args {
				version, ok := answer.Versions[key]
				if !ok {
					version = "0"
				}
				t.Row(key, version, answer.Values[key])
			}
			return t.Flush()
		})
	})
}

const (
	ifVersionFlag = "version that the key must have, 0 for none; any if empty"
	ttlUsage      = "how long it is kept"
)

func stateSetCommand() *cobra.Command {
	var version string
	var ttl time.Duration
	cmd := config.Leaf(&cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Write a value",
		Long: `Writes a value. With --if-version it is written only if the key has that version, so
that nothing is overwritten that was not read.`,
		Args: terminal.Arguments(2, 2),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.SetRequest{Key: args[0], Value: args[1], IfVersion: version, RequestId: remote.NewRequestID(), Client: remote.ClientName}
		if cmd.Flags().Changed("ttl") {
			req.Ttl = durationpb.New(ttl)
		}
		err := remote.Answer(cmd, c, remote.Node.Set, req, func(w io.Writer, answer *govnodev1.SetResponse) error {
			return terminal.Say(w, "set: version %s", answer.Version)
		})
		if version != "" {
			return remote.Advise(err, "`govnode state get %s` shows whether the value is there; asked again it is refused if it is", args[0])
		}
		return err
	})
	cmd.Flags().StringVar(&version, "if-version", "", ifVersionFlag)
	cmd.Flags().DurationVar(&ttl, "ttl", 0, ttlUsage+"; for ever if not given")
	return cmd
}

func stateDeleteCommand() *cobra.Command {
	var version string
	var list bool
	cmd := config.Leaf(&cobra.Command{
		Use:   "delete KEY",
		Short: "Remove a value, or a list",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		said := func(w io.Writer, found bool) error {
			if found {
				return terminal.Say(w, "deleted")
			}
			return terminal.Say(w, "there was none")
		}
		if list {
			if version != "" {
				return terminal.Usagef("if-version: %q (flag --if-version): a list has no version; leave it out", version)
			}
			req := &govnodev1.DeleteListRequest{Key: args[0], RequestId: remote.NewRequestID(), Client: remote.ClientName}
			return remote.Answer(cmd, c, remote.Node.DeleteList, req, func(w io.Writer, answer *govnodev1.DeleteListResponse) error { return said(w, answer.Found) })
		}
		req := &govnodev1.DeleteRequest{Key: args[0], IfVersion: version, RequestId: remote.NewRequestID(), Client: remote.ClientName}
		err := remote.Answer(cmd, c, remote.Node.Delete, req, func(w io.Writer, answer *govnodev1.DeleteResponse) error { return said(w, answer.Found) })
		if version != "" {
			return remote.Advise(err, "`govnode state get %s` shows whether the value is gone; asked again it is refused if it is", args[0])
		}
		return err
	})
	cmd.Flags().StringVar(&version, "if-version", "", ifVersionFlag)
	cmd.Flags().BoolVar(&list, "list", false, "the list of that key instead of its value")
	return cmd
}

func stateAppendCommand() *cobra.Command {
	var ttl time.Duration
	var length int64
	var id remote.ID
	cmd := config.Leaf(&cobra.Command{
		Use:   "append KEY ITEM... --ttl TIME",
		Short: "Put items at the end of a list",
		Long: `Puts items at the end of a list, all or none. With --if-length that is done only if the
list has that length.`,
		Args: terminal.Arguments(2, 257),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.AppendRequest{Key: args[0], Items: args[1:], Ttl: durationpb.New(ttl), RequestId: id.Text(), Client: remote.ClientName}
		if cmd.Flags().Changed("if-length") {
			req.IfLength = &length
		}
		return id.Tell(remote.Answer(cmd, c, remote.Node.Append, req, func(w io.Writer, answer *govnodev1.AppendResponse) error {
			return terminal.Say(w, "appended: length %d", answer.Length)
		}))
	})
	cmd.Flags().DurationVar(&ttl, "ttl", 0, ttlUsage+", at most 720h")
	cmd.Flags().Int64Var(&length, "if-length", 0, "length that the list must have, 0 for none; any if not given")
	id.Flag(cmd)
	_ = cmd.MarkFlagRequired("ttl")
	return cmd
}

func stateRangeCommand() *cobra.Command {
	var from int64
	var limit int32
	cmd := config.Leaf(&cobra.Command{
		Use:   "range KEY",
		Short: "Print items of a list",
		Long: `Prints items of a list as they stand at one instant, without those that lapsed, and where
to go on if there are more.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.RangeRequest{Key: args[0], From: from, Limit: limit}
		return remote.Answer(cmd, c, remote.Node.Range, req, func(w io.Writer, answer *govnodev1.RangeResponse) error {
			t := terminal.NewTable(w, "INDEX", "VALUE")
			for _, i := range answer.Items {
				t.Row(i.Index, i.Value)
			}
			if err := t.Flush(); err != nil {
				return err
			}
			if answer.Next < answer.Length {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "govnode: there are more: --from %d goes on\n", answer.Next)
			}
			return nil
		})
	})
	cmd.Flags().Int64Var(&from, "from", 0, "index of the first item")
	cmd.Flags().Int32Var(&limit, "limit", 1000, "print at most so many")
	return cmd
}
