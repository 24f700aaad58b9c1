package model

import (
	"time"

	"example.com/govnode/session"
)

type laws struct{}

func newLaws() *laws { return &laws{} }

func (l *laws) check(now time.Duration, s *session.State, cmds []session.Command, results []session.Result) string {
	return ""
}
