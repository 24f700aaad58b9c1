package check

import "fmt"

// Approvals holds that the log admits nothing that asks unless so many people as it
// needs had agreed before, and none of them too many had refused; and that what
// they agreed to is admitted once.
func Approvals(h History) (broken []Violation) {
	type asked struct {
		approve, deny map[string]bool // who
		used          bool
	}
	all := map[string]*asked{}
	of := func(id string) *asked {
		if all[id] == nil {
			all[id] = &asked{approve: map[string]bool{}, deny: map[string]bool{}}
		}
		return all[id]
	}
	for _, e := range h.Effects {
		switch {
		case e.Kind == Restored:
			clear(all) // what is restored has none that is open
		case e.Kind == Vote:
			a := of(e.Object)
			if e.Amount > 0 {
				a.approve[e.Agent] = true
			} else {
				a.deny[e.Agent] = true
			}
		case e.Kind == Begin && e.Granted && e.Asks != "":
			a := of(e.Asks)
			switch {
			case a.used:
				broken = append(broken, Violation{"approvals", fmt.Sprintf("call %s was admitted at %d by an approval that was used before", e.ID, e.Index)})
			case len(a.approve) < e.Needs:
				broken = append(broken, Violation{"approvals", fmt.Sprintf("call %s was admitted at %d, and %d of %d had agreed", e.ID, e.Index, len(a.approve), e.Needs)})
			case len(a.deny) >= e.Ends:
				broken = append(broken, Violation{"approvals", fmt.Sprintf("call %s was admitted at %d, and %d had refused", e.ID, e.Index, len(a.deny))})
			}
			a.used = true
		}
	}
	return broken
}
