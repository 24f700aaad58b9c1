package cluster

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What another node or the log says is read as it was written, or not at all.

func FuzzRestoreEntry(f *testing.F) {
	for _, e := range []restoreEntry{
		{kind: restoreBegin, at: 5, id: 6, body: make([]byte, 12)}, {kind: restorePiece, id: 6, place: 1, body: []byte("piece")}, {kind: restoreAbandon},
	} {
		f.Add(e.kind, e.log(1).Data)
	}
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		l := &raft.Log{Data: b, Extensions: append(termOf(1), kind)}
		require.True(t, isRestore(l))
		e, err := readRestoreEntry(l)
		if err != nil {
			e = &restoreEntry{kind: kind, body: b}
			sealed := e.log(1)
			if e, err = readRestoreEntry(&sealed); err != nil {
				return
			}
			b = sealed.Data
		}
		require.Equal(t, b, e.log(1).Data)
	})
}

func FuzzForwarded(f *testing.F) {
	b, err := proto.Marshal(&nodev1.ForwardRequest{Batch: 1, Commands: []*nodev1.ForwardedCommand{
		{Command: session.EncodeCommand(&session.Tick{})}, {Command: []byte("none")},
	}})
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m nodev1.ForwardRequest
		if proto.Unmarshal(b, &m) == nil {
			g := decodeBatch(&m)
			for i, c := range m.GetCommands() {
				if g.answers[i].Err == nil {
					require.True(t, bytes.Equal(c.GetCommand(), session.EncodeCommand(g.commands[i].cmd)))
				} else {
					require.Equal(t, storage.NotApplied, g.answers[i].Outcome)
				}
			}
		}
		var a nodev1.ForwardAnswer
		if proto.Unmarshal(b, &a) == nil {
			answer := readAnswer(&a)
			if answer.Err == nil {
				require.Equal(t, storage.Applied, answer.Outcome)
			}
		}
	})
}
