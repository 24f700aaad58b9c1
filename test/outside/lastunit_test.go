//go:build outside

package outside

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// callersOfLastUnit is how many processes fire at once.
const callersOfLastUnit = 64

// This binary is one of the processes that fire, if it is told so.
func init() {
	if name := os.Getenv("GOVNODE_TEST_CALLER"); name != "" {
		callForLastUnit(name, strings.Split(os.Getenv("GOVNODE_TEST_NODES"), ","), os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// callForLastUnit sends the method and body of each line of in to some node, and
// to another as long as it has no outcome, and writes the answer in a line.
func callForLastUnit(name string, nodes []string, in io.Reader, out io.Writer) {
	client := &http.Client{Timeout: 10 * time.Second}
	lines := bufio.NewScanner(in)
	var first int
	_, _ = fmt.Sscan(name, &first)
	for lines.Scan() {
		method, body, _ := strings.Cut(lines.Text(), " ")
		for try, end := 0, time.Now().Add(30*time.Second); ; try++ {
			answer, err := send(client, nodes[(first+try)%len(nodes)], method, body)
			if err == nil {
				fmt.Fprintf(out, "%s\n", answer)
				break
			}
			if time.Now().After(end) {
				fmt.Fprintf(out, "{\"reason\":%q}\n", err.Error())
				break
			}
			<-time.After(5 * time.Millisecond) // as a client does that sends again
		}
	}
}

func send(client *http.Client, node, method, body string) ([]byte, error) {
	res, err := client.Post("http://"+node+"/govnode.v1."+method, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %s", res.StatusCode, answer)
	}
	return bytes.ReplaceAll(answer, []byte("\n"), nil), err
}

// A caller is one of the processes, as the test sees it.
type caller struct {
	in  io.Writer
	out *bufio.Reader
}

func (c caller) call(method string, body object) (a answer, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	if _, err := fmt.Fprintf(c.in, "%s %s\n", method, text); err != nil {
		return a, err
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

func (c *cluster) startCallers() (all []caller) {
	c.t.Helper()
	self, err := os.Executable()
	require.NoError(c.t, err)
	var nodes []string
	for _, n := range c.list() {
		nodes = append(nodes, n.api)
	}
	for i := range callersOfLastUnit {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), fmt.Sprint("GOVNODE_TEST_CALLER=", i), "GOVNODE_TEST_NODES="+strings.Join(nodes, ","))
		in, err := cmd.StdinPipe()
		require.NoError(c.t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(c.t, err)
		cmd.Stderr = os.Stderr
		require.NoError(c.t, cmd.Start())
		c.t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		all = append(all, caller{in, bufio.NewReader(out)})
	}
	return all
}

// 64 processes fire at the last free unit of a limit, over three nodes on one
// Redis, round after round: exactly one has it. That is so as well while nodes
// are killed, scripts are flushed, Redis is paused for a second, and Redis
// restarts on its file. With GOVNODE_REDIS=1 each takes 1,000 rounds.
func TestLastUnitOnRedis(t *testing.T) {
	rounds := 100
	if os.Getenv("GOVNODE_REDIS") != "" {
		rounds = 1000
	}
	c := serveOnRedis(t)
	callers := c.startCallers()
	c.post(c.list()[0], "SlotService/PutPool", object{"pool": "one", "slots": 1, "requestId": "put"}, nil)
	for _, trouble := range []struct {
		name  string
		every int // rounds
		make  func(round int)
	}{
		{"nothing else", 0, nil},
		{"a node is killed", rounds / 5, func(round int) {
			n := c.list()[round%3]
			c.kill(n)
			c.back(n)
		}},
		{"scripts are flushed", 1, func(int) { require.True(c.t, c.redis.says("SCRIPT FLUSH\r\n", "+OK")) }},
		{"Redis is paused for a second", rounds / 5, func(int) { require.True(c.t, c.redis.says("CLIENT PAUSE 1000\r\n", "+OK")) }},
		{"Redis restarts with its file", rounds / 5, func(int) {
			c.redis.kill()
			c.redis.start()
		}},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			c.t = t
			last := number(0)
			for round := range rounds {
				var troubled sync.WaitGroup
				if trouble.every > 0 && round%trouble.every == trouble.every/2 {
					troubled.Go(func() { trouble.make(round) })
				}
				last = fireForLastUnit(t, callers, fmt.Sprint(trouble.name, round), last)
				troubled.Wait()
			}
		})
	}
}

// fireForLastUnit lets all callers ask for the one slot at once, and whoever has
// it give it back. It returns its token.
func fireForLastUnit(t *testing.T, callers []caller, slot string, last number) number {
	t.Helper()
	slot = strings.ReplaceAll(slot, " ", "-")
	answers, errs := make([]answer, len(callers)), make([]error, len(callers))
	var all sync.WaitGroup
	for i, c := range callers {
		all.Go(func() {
			answers[i], errs[i] = c.call("SlotService/AcquireSlot", object{"pool": "one", "slotId": slot, "client": fmt.Sprint("c", i), "ttl": "60s"})
		})
	}
	all.Wait()
	winner := -1
	for i, a := range answers {
		require.NoError(t, errs[i])
		if a.Outcome == admitted {
			require.Equal(t, -1, winner, "%s: callers %d and %d have the one slot", slot, winner, i)
			winner = i
		} else {
			require.Equal(t, busy, a.Outcome, "%s: caller %d: %s", slot, i, a.Reason)
		}
	}
	require.NotEqual(t, -1, winner, "%s: nobody has the free slot", slot)
	token := answers[winner].Token
	require.Greater(t, token, last)
	release, err := callers[winner].call("SlotService/ReleaseSlot", object{"pool": "one", "slotId": slot, "client": fmt.Sprint("c", winner), "token": fmt.Sprint(token)})
	require.NoError(t, err)
	require.Contains(t, []string{"OUTCOME_RELEASED", "OUTCOME_ALREADY_RELEASED"}, release.Outcome, release.Reason)
	return token
}
