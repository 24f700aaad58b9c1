package process

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// UntilOneOf is a context that ends with the first of some signals. The second
// one ends the process.
func UntilOneOf(parent context.Context, ends ...os.Signal) (context.Context, func()) {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, ends...)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
		<-signals
		os.Exit(terminal.ExitNo)
	}()
	return ctx, cancel
}

// UntilSignal is a context for what belongs to a terminal: it ends with SIGINT,
// SIGTERM and SIGHUP, which the terminal sends when it closes, unless nohup has
// it ignored.
func UntilSignal(parent context.Context) (context.Context, func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return UntilOneOf(parent, os.Interrupt, syscall.SIGTERM)
	}
	return UntilOneOf(parent, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}
