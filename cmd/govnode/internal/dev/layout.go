package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/edictum"
)

// A layout is what of a cluster of dev stays the same for as long as its data
// does: folder, names and ports.
type layout struct {
	folder    string
	temporary bool
	places    []place
}

// A place is where one node lives.
type place struct {
	name, api, raft, data, log string
}

// layoutFile notes in a kept folder what its data was made with: nodes know
// each other by name and address, so other ones would not find together.
const layoutFile = "dev.json"

type layoutNote struct {
	Backend  string `json:"backend"`
	Nodes    int    `json:"nodes"`
	Listen   string `json:"listen"`
	LogStore string `json:"logStore,omitempty"` // boltdb if it is not noted
}

// openLayout finds the folder and the ports, and refuses a folder that was made
// with others.
func openLayout(c *config.Config) (*layout, error) {
	l := &layout{folder: c.Data}
	if c.Data == "" {
		folder, err := os.MkdirTemp("", "govnode-dev-")
		if err != nil {
			return nil, fmt.Errorf("data: cannot make a temporary folder: %w; name a folder with --data", err)
		}
		l.folder, l.temporary = folder, true
	} else if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return nil, fmt.Errorf("data: cannot make the folder: %w; give another one with --data", err)
	}
	if err := l.settle(c); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *layout) settle(c *config.Config) error {
	note, kept, err := readLayoutNote(l.folder)
	if err != nil {
		return err
	}
	if kept && note.Backend == c.Backend {
		if c.Given("listen") && c.Listen != note.Listen && !asksAnyPort(c.Listen) ||
			c.Given("nodes") && c.Nodes != note.Nodes ||
			c.Given("log-store") && c.LogStore != note.LogStore {
			return terminal.Usagef("data: %s was made with --nodes %d --listen %s --log-store %s: give the same, or another --data", l.folder, note.Nodes, note.Listen, note.LogStore)
		}
		c.Nodes, c.Listen, c.LogStore = note.Nodes, note.Listen, note.LogStore
	}
	first := c.Listen
	if asksAnyPort(first) {
		if first, err = FreePorts(c.Listen, c.Nodes); err != nil {
			return err
		}
	}
	if l.places, err = placesFrom(l.folder, first, c.Nodes); err != nil {
		return err
	}
	if err := l.portsFree(c.Backend == "raft"); err != nil {
		return err
	}
	if c.Backend != "raft" || l.temporary {
		return nil
	}
	return writeLayoutNote(l.folder, layoutNote{c.Backend, c.Nodes, first, c.LogStore})
}

func asksAnyPort(address string) bool {
	_, port, _ := net.SplitHostPort(address)
	return port == "0"
}

func placesFrom(folder, first string, n int) ([]place, error) {
	var places []place
	for i := range n {
		api, err := address.OffsetPort(first, i)
		if err != nil {
			return nil, terminal.Usagef("listen: %s leaves no room for %d nodes: %v; give a lower port", first, n, err)
		}
		raft, err := address.OffsetPort(api, config.RaftPortOffset)
		if err != nil {
			return nil, terminal.Usagef("listen: %s leaves no room for Raft ports: %v; give a lower port", first, err)
		}
		name := "node" + strconv.Itoa(i+1)
		places = append(places, place{
			name: name, api: api, raft: raft,
			data: filepath.Join(folder, name), log: filepath.Join(folder, name+".log"),
		})
	}
	return places, nil
}

// portsFree finds out beforehand what would otherwise stand in the logs of the
// nodes.
func (l *layout) portsFree(raft bool) error {
	for _, p := range l.places {
		addresses := []string{p.api}
		if raft {
			addresses = append(addresses, p.raft)
		}
		for _, a := range addresses {
			probe, err := net.Listen("tcp", a)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, address.ListenError("listen", a, err))
			}
			_ = probe.Close()
		}
	}
	return nil
}

// The ports among which FreePorts looks. They lie below those from which
// systems take the near end of outgoing connections: one of these could
// otherwise sit on the port of a node while it is being started again, and a
// node that dials a dead one could even be connected to itself.
const (
	leastFreePort = 10240
	mostFreePort  = 32767 - config.MaxNodes - config.RaftPortOffset
)

// FreePorts finds an address from which on all ports that n nodes need are
// free. Somebody else may take one before they do; then the start fails.
func FreePorts(address string, n int) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	var last error
	for range 100 {
		first := net.JoinHostPort(host, strconv.Itoa(leastFreePort+rand.IntN(mostFreePort-leastFreePort)))
		var candidate layout
		if candidate.places, last = placesFrom("", first, n); last != nil {
			continue
		}
		if last = candidate.portsFree(true); last == nil {
			return first, nil
		}
	}
	return "", fmt.Errorf("listen: found no free ports in a row for %d nodes: %w", n, last)
}

func readLayoutNote(folder string) (note layoutNote, kept bool, err error) {
	path := filepath.Join(folder, layoutFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return note, false, nil
	}
	if err != nil {
		return note, false, fmt.Errorf("data: %w; give another folder with --data", err)
	}
	if err := json.Unmarshal(content, &note); err != nil || note.Nodes < 1 || note.Nodes > config.MaxNodes {
		return note, false, fmt.Errorf("data: %s cannot be read as what dev wrote there; give another folder with --data", path)
	}
	if note.LogStore == "" {
		note.LogStore = cluster.LogBoltDB
	}
	return note, true, nil
}

func writeLayoutNote(folder string, note layoutNote) error {
	content, err := json.Marshal(note)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, layoutFile), append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("data: %w; give another folder with --data", err)
	}
	return nil
}

// close removes the folder if nobody asked to keep it.
func (l *layout) close() error {
	if !l.temporary {
		return nil
	}
	if err := os.RemoveAll(l.folder); err != nil {
		return fmt.Errorf("the temporary folder is left over: %w", err)
	}
	return nil
}

// edictumKeys makes the keys of this run for SDKs of Edictum, where none were given:
// one of an agent and one of an operator. Only their hashes are kept.
func (l *layout) edictumKeys(c *config.Config) (agent, operator string, err error) {
	if c.EdictumKeys != "" {
		return "", "", nil
	}
	agent, agentHash := edictum.NewKey()
	operator, operatorHash := edictum.NewKey()
	text := fmt.Sprintf("keys:\n  - {name: dev-agent, role: agent, hash: %q}\n  - {name: dev-operator, role: operator, hash: %q}\n", agentHash, operatorHash)
	c.EdictumKeys = filepath.Join(l.folder, "edictum-keys.yaml")
	if err := os.WriteFile(c.EdictumKeys, []byte(text), 0o600); err != nil {
		return "", "", fmt.Errorf("data: cannot write the keys for SDKs of Edictum: %w", err)
	}
	return agent, operator, nil
}
