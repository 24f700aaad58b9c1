package operate

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Signal is `govnode signal`.
func Signal() *cobra.Command {
	return terminal.Group("signal", "Stop sessions, agents, policies or everything, let them go on, or kill them",
		signalCommand("stop", "Let no call in any more; what runs may end", `Lets no call of the target in, from the answer on. What runs keeps its slots and may end.
Sessions may be created. Calls that wait go on by themselves after "govnode signal
continue".`),
		signalCommand("continue", "Lift a stop or a kill", `Lifts what stands at exactly that target, as "govnode signal list" shows it. What was
closed stays closed.`),
		signalCommand("kill", "Close all sessions and let none be created", `Lets no call of the target in, from the answer on, closes its sessions and frees their
slots. No session of it is created until "govnode signal continue".`),
		signalListCommand())
}

func signalCommand(signal, short, long string) *cobra.Command {
	var session, agent, policy, reason string
	var everything bool
	cmd := config.Leaf(&cobra.Command{
		Use: signal, Short: short, Long: long, Args: terminal.Arguments(0, 0),
		Example: "  govnode signal " + signal + " --agent writer --reason \"it deletes too much\"\n  govnode signal " + signal + " --everything",
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		req := &govnodev1.SignalRequest{Signal: strings.ToUpper(signal), Reason: reason, RequestId: remote.NewRequestID(), Client: remote.ClientName}
		var set []string
		for _, t := range []struct {
			flag string
			is   bool
			use  func()
		}{
			{"--session", session != "", func() { req.Target = &govnodev1.SignalRequest_SessionId{SessionId: session} }},
			{"--agent", agent != "", func() { req.Target = &govnodev1.SignalRequest_AgentId{AgentId: agent} }},
			{"--policy", policy != "", func() { req.Target = &govnodev1.SignalRequest_PolicyName{PolicyName: policy} }},
			{"--everything", everything, func() { req.Target = &govnodev1.SignalRequest_Everything{Everything: true} }},
		} {
			if t.is {
				set = append(set, t.flag)
				t.use()
			}
		}
		if len(set) == 0 {
			return terminal.Usagef("say whom it is for: --session, --agent, --policy or --everything")
		}
		if len(set) > 1 {
			return terminal.Usagef("%s are given: give one of them", strings.Join(set, " and "))
		}
		return remote.Answer(cmd, c, remote.Node.Signal, req, printSignalled)
	})
	cmd.Flags().StringVar(&session, "session", "", "this session")
	cmd.Flags().StringVar(&agent, "agent", "", "all sessions of this agent")
	cmd.Flags().StringVar(&policy, "policy", "", "all sessions under the policy of this name")
	cmd.Flags().BoolVar(&everything, "everything", false, "all sessions of the namespace")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who are told; at most 256 bytes")
	return cmd
}

func printSignalled(w io.Writer, a *govnodev1.SignalResponse) error {
	switch s := a.Signal; {
	case s == nil:
		return terminal.Say(w, "nothing stands there any more")
	case s.Signal == "STOP":
		return terminal.Say(w, "stopped %s", signalTarget(s))
	case !s.Swept:
		return terminal.Say(w, "killed %s: %d sessions closed, %d leases ended so far; the cluster goes on with the others", signalTarget(s), a.Closed, a.Released)
	default:
		return terminal.Say(w, "killed %s: %d sessions closed, %d leases ended", signalTarget(s), a.Closed, a.Released)
	}
}

// signalTarget is whom a signal is for, in words.
func signalTarget(s *govnodev1.Signal) string {
	switch t := s.Target.(type) {
	case *govnodev1.Signal_SessionId:
		return "session " + t.SessionId
	case *govnodev1.Signal_AgentId:
		return "agent " + t.AgentId
	case *govnodev1.Signal_PolicyName:
		return "policy " + t.PolicyName
	}
	return "everything"
}

func signalListCommand() *cobra.Command {
	return remote.Lister[*govnodev1.ListSignalsRequest, *govnodev1.ListSignalsResponse, *govnodev1.Signal]{
		Method: remote.Node.ListSignals,
		Request: func(size int32, token string) *govnodev1.ListSignalsRequest {
			return &govnodev1.ListSignalsRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListSignalsResponse) *[]*govnodev1.Signal { return &p.Signals },
		Text: func(w io.Writer, all *govnodev1.ListSignalsResponse) error {
			t := terminal.NewTable(w, "SIGNAL", "FOR", "AGE", "SWEPT", "REASON")
			for _, s := range all.Signals {
				swept := "-"
				if s.Signal == "KILL" {
					swept = fmt.Sprint(s.Swept)
				}
				t.Row(s.Signal, signalTarget(s), terminal.Since(s.Age), swept, s.Reason)
			}
			return t.Flush()
		},
	}.Command(&cobra.Command{Use: "list", Short: "List what stands, wide targets first"})
}

// A restoredSignal is one that a snapshot brought back.
type restoredSignal struct {
	Namespace string `json:"namespace"`
	Signal    string `json:"signal"`
	For       string `json:"for"`
	Reason    string `json:"reason"`
}

// signalsOf are the signals that stand in a snapshot, in its order.
func signalsOf(snap *session.Snapshot) (all []restoredSignal) {
	all = []restoredSignal{}
	add := func(ns string, h *session.Halt) {
		s := restoredSignal{Namespace: ns, Signal: "STOP", For: "everything", Reason: h.Reason}
		if h.Signal == session.Kill {
			s.Signal = "KILL"
		}
		switch h.Target.Scope {
		case session.OfSession:
			s.For = "session " + h.Target.Name
		case session.OfAgent:
			s.For = "agent " + h.Target.Name
		case session.OfPolicy:
			s.For = "policy " + h.Target.Name
		}
		all = append(all, s)
	}
	for k, r := range snap.All() {
		switch x := r.(type) {
		case *session.Signals:
			for i := range x.Halts {
				add(k.Namespace(), &x.Halts[i])
			}
		case *session.Session:
			if h := x.Halt(k.Name()); h != nil && x.Phase == session.PhaseOpen {
				add(k.Namespace(), h)
			}
		}
	}
	return all
}
