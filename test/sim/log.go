package sim

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"time"

	"example.com/govnode/session"
)

// A logged is what one entry of the log did to the state machine: it had commands,
// or ended a restore.
type logged struct {
	entry    []byte // as package session encodes it
	restored []byte // a snapshot, as it was saved
	at       time.Duration
}

// lines returns a log as package model reads it again: each line is an entry in
// hexadecimal, or says at which line the state was that a restore brings back, and
// at what log time it does so.
func (w *witness) lines() ([]byte, error) {
	saved := map[time.Duration]bool{} // the log times of what is restored
	for _, l := range w.log {
		if l.restored != nil {
			s, err := session.ReadSnapshot(bytes.NewReader(l.restored))
			if err != nil {
				return nil, err
			}
			saved[s.Now()] = true
		}
	}
	var out []byte
	state := session.New()
	seen := map[session.Digest]int{} // after how many lines
	for i, l := range w.log {
		if l.restored == nil {
			at, commands, err := session.DecodeEntry(l.entry)
			if err != nil {
				return nil, err
			}
			state.ApplyAll(at, commands)
			out = append(hex.AppendEncode(out, l.entry), '\n')
		} else {
			s, err := session.ReadSnapshot(bytes.NewReader(l.restored))
			if err != nil {
				return nil, err
			}
			digest, err := s.Snapshot().Digest(nil, nil)
			if err != nil {
				return nil, err
			}
			n, known := seen[digest]
			if !known {
				return nil, fmt.Errorf("line %d restores a state that the log never came to", i+1)
			}
			follow(s, state, l.at)
			state = s
			out = fmt.Appendf(out, "restore %d %d\n", n, l.at)
		}
		if saved[state.Now()] {
			digest, err := state.Snapshot().Digest(nil, nil)
			if err != nil {
				return nil, err
			}
			seen[digest] = i + 1
		}
	}
	return out, nil
}
