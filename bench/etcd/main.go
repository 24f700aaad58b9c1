// Etcd is the stock etcd server and the driver that works on it for `govnode
// bench --against etcd`, in a module of its own so that govnode does not depend
// on etcd.
//
//	bench-etcd --name n1 ...   is etcd, with the flags of etcd
//	bench-etcd drive           is the driver: bench.Serve on standard input
package main

import (
	"context"
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"

	"example.com/govnode/bench"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] != "drive" {
		etcdmain.Main(os.Args)
		return
	}
	if err := bench.Serve(context.Background(), os.Stdin, os.Stdout, open); err != nil {
		fmt.Fprintln(os.Stderr, "bench-etcd:", err)
		os.Exit(1)
	}
}
