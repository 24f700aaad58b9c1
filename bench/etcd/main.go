package main

import (
	"os"

	"github.com/HdrHistogram/hdrhistogram-go"
	_ "example.com/govnode/client"
	_ "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

var _ = clientv3.New
var _ = hdrhistogram.New

func main() { etcdmain.Main(os.Args) }
