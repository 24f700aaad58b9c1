package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilOneOf is a context that ends with the first of some signals. The second
// one ends the process.
func untilOneOf(parent context.Context, ends ...os.Signal) (context.Context, func()) {
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
		os.Exit(exitNo)
	}()
	return ctx, cancel
}

// untilSignal is a context for what belongs to a terminal: it ends with SIGINT,
// SIGTERM and SIGHUP, which the terminal sends when it closes, unless nohup has
// it ignored.
func untilSignal(parent context.Context) (context.Context, func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return untilOneOf(parent, os.Interrupt, syscall.SIGTERM)
	}
	return untilOneOf(parent, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}
