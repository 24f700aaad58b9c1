package redis

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A spy does something before, or after, each command that a node sends for one
// caller: so a test lets others come between any two steps of what he does.
type spy struct {
	mark          *int                    // tells his commands from those of others
	before, after func(redis.Cmder)       // nil: nothing
	refuse        func(redis.Cmder) error // instead of sending it, unless nil
}

// watched returns a context for the caller whose commands are seen to.
func watched(t *testing.T, r *Store, before, after func(redis.Cmder)) context.Context {
	t.Helper()
	return watchedBy(t, r, spy{before: before, after: after})
}

func watchedBy(t *testing.T, r *Store, s spy) context.Context {
	t.Helper()
	s.mark = new(int)
	if c, ok := r.client.(*redis.ClusterClient); ok {
		c.OnNewNode(func(one *redis.Client) { one.AddHook(s) })
		require.NoError(t, c.ForEachShard(t.Context(), func(_ context.Context, one *redis.Client) error {
			one.AddHook(s)
			return nil
		}))
	} else {
		r.client.AddHook(s)
	}
	return context.WithValue(t.Context(), s.mark, true)
}

func (s spy) see(ctx context.Context, cmd redis.Cmder, do func(redis.Cmder)) {
	if do != nil && ctx.Value(s.mark) != nil {
		do(cmd)
	}
}

// DialHook implements redis.Hook.
func (s spy) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (s spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.see(ctx, cmd, s.before)
		if s.refuse != nil && ctx.Value(s.mark) != nil {
			if err := s.refuse(cmd); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		err := next(ctx, cmd)
		s.see(ctx, cmd, s.after)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (s spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.see(ctx, cmds[0], s.before)
		err := next(ctx, cmds)
		s.see(ctx, cmds[len(cmds)-1], s.after)
		return err
	}
}
