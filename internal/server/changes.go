package server

import (
	"context"
	"sync"

	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Every change that this node asks for has a line in its audit and a link in a chain of
// the state, where chains are kept. That is done where commands go to the store, so that
// none goes past it: what is said of a command is put into it before it is proposed, and
// its line is written from the answer.

// chained returns the store by which changes are audited.
func (a *auditor) chained(store storage.Store) storage.Store {
	if a.log.chain == nil || a.log.to == nil {
		return store
	}
	c := &chainedStore{Store: store, audit: a}
	if s, ok := store.(storage.Settling); ok {
		a.settled = s.Settled()
		a.settled.Keep()
	}
	gatherer, gathers := store.(storage.Gatherer)
	handing, hands := store.(storage.Handing)
	switch {
	case gathers && hands:
		return &struct {
			*chainedStore
			storage.Gatherer
			storage.Handing
		}{c, gatherer, &chainedClaims{handing, a}}
	case gathers:
		return &struct {
			*chainedStore
			storage.Gatherer
		}{c, gatherer}
	}
	return c
}

type chainedStore struct {
	storage.Store
	audit *auditor
}

// Apply implements storage.Store.
func (c *chainedStore) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	who := access.From(ctx)
	said := make([][]byte, len(cmds))
	for i, cmd := range cmds {
		said[i] = say(cmd, who)
	}
	mark := c.audit.mark()
	answers := c.Store.Apply(ctx, cmds...)
	for i := range answers {
		c.audit.changed(cmds[i], said[i], &answers[i], who.String(), mark)
	}
	c.audit.log.push() // where nobody's answer waits for it
	return answers
}

// Unswept implements storage.Sweeping.
func (c *chainedStore) Unswept(ctx context.Context) []session.Key {
	if s, ok := c.Store.(storage.Sweeping); ok {
		return s.Unswept(ctx)
	}
	return nil
}

// Removed reports whether this node is no member of its cluster any more.
func (c *chainedStore) Removed() bool {
	r, ok := c.Store.(interface{ Removed() bool })
	return ok && r.Removed()
}

// chainedClaims are claims of what the store hands out by itself.
type chainedClaims struct {
	storage.Handing
	audit *auditor
}

// ClaimBy implements storage.Handing.
func (c *chainedClaims) ClaimBy(claims func(k session.Key, p *session.Pool) []storage.Claim) {
	c.Handing.ClaimBy(func(k session.Key, p *session.Pool) []storage.Claim {
		all, mark := claims(k, p), c.audit.mark()
		for i := range all {
			cmd, answered := all[i].Command, all[i].Answered
			all[i].Answered = func(a storage.Answer) {
				c.audit.changed(cmd, nil, &a, "", mark)
				c.audit.log.push()
				answered(a)
			}
		}
		return all
	})
}

// say puts the digest of what the audit says of a command into it, and returns the text;
// nil where nothing is said. What keeps a lease changes nothing that somebody would look
// for.
func say(cmd session.Command, who *access.Principal) []byte {
	if _, ok := session.ChainOf(cmd); !ok {
		return nil
	}
	c, ok := cmd.(interface{ Authorize(*session.Authority) })
	if _, renewal := cmd.(*session.Renew); renewal || !ok {
		return nil
	}
	was, by := cmd.Authority(), session.Authority{Behalf: true}
	if was != nil {
		by = *was
	} else if who != nil {
		by.Principal = session.PrincipalOf(who.Namespace, who.Name)
	}
	said := audit.SayOf(cmd, &by)
	text := said.Text()
	if by.Audited = audit.Digest(text); was == nil || was.Audited != by.Audited {
		c.Authorize(&by) // else it is proposed once more, and may still be under way
	}
	return text
}

// changed writes what became of a command of which that is said, or what can be read
// from it if nil. What was not applied or changed nothing has
// no line here. What may have changed something by an attempt whose answer was lost has
// one without a link, as an unknown outcome has: it is answered as a repeat, as what
// comes too late, or, as claims are, with a change of its own, which has its line too. It
// has another line, with the link, once the node learns of it what it has changed behind
// the mark: many in a row could not be put in order by what was said of them.
func (a *auditor) changed(cmd session.Command, said []byte, answer *storage.Answer, who string, mark uint64) {
	by := cmd.Authority()
	if by == nil || by.Audited == (session.Digest{}) || answer.Outcome == storage.NotApplied ||
		answer.Outcome == storage.Applied && answer.Result.Chain == nil && !answer.Again {
		return
	}
	who = a.names.name(by.Principal, who)
	if said == nil {
		s := audit.SayOf(cmd, by)
		said = s.Text()
	}
	key, _ := session.ChainOf(cmd)
	ns := cmd.Namespace()
	write := func(answer *storage.Answer, chain *session.Chain, learned bool) uint64 { // which may be kept for long, and cmd be large
		a.metrics.auditLines.Inc()
		return a.log.add(func(l line) line { return a.change(l, key, ns, said, answer, who, chain, learned) })
	}
	if answer.Outcome == storage.Unknown || answer.Again {
		answer.Line = write(answer, nil, false)
		if a.settled != nil {
			for _, was := range a.settled.Find(by.Audited, mark, func(was storage.Answer) {
				write(&was, was.Result.Chain, true)
				a.log.push()
			}) {
				answer.Line = write(&was, was.Result.Chain, true)
			}
		}
	}
	if chain := answer.Result.Chain; chain != nil {
		answer.Line = write(answer, chain, false)
	}
}

// mark is where the store stands of what it has settled.
func (a *auditor) mark() uint64 {
	if a.settled == nil {
		return 0
	}
	return a.settled.Mark()
}

// change adds what is said of a change; chain is nil where its link is not known. What was
// learned later may have a line where another attempt was answered as well.
func (a *auditor) change(l line, key session.Key, ns string, said []byte, answer *storage.Answer, who string, chain *session.Chain, learned bool) line {
	l = l.stamp(a.now()).text("event_type", "change").text("namespace", ns)
	if who != "" {
		l = l.text("principal", who)
	}
	switch {
	case answer.Outcome == storage.Unknown:
		l = l.text("outcome", "unknown")
	case chain == nil: // of which attempt this is the answer nobody knows
		l = l.text("outcome", "unknown").text("answered", answer.Result.Code.String()).number("index", answer.Index)
	default:
		l = l.text("outcome", answer.Result.Code.String()).number("index", answer.Index)
	}
	l = append(l.name("change"), '{')
	l = append(l.text("chain", string(key)).name("said"), said...)
	if chain != nil {
		l = l.link(chain)
	}
	if answer.Outcome == storage.Applied {
		l = l.number("code", uint64(answer.Result.Code))
	}
	if learned {
		l = l.bool("learned", true)
	}
	return append(l, '}')
}

func (l line) link(c *session.Chain) line {
	return l.number("n", c.N).number("generation", uint64(c.Generation)).hex("head", c.Head[:])
}

// folded writes that chains have ended with their records.
func (a *auditor) folded(folds []session.Fold) {
	if a.log.chain == nil || a.log.to == nil {
		return
	}
	for i := range folds {
		f := &folds[i]
		ns := f.Key.Namespace()
		a.add(&order.Trace{}, func(l line) line {
			l = l.stamp(a.now()).text("event_type", "chain_ended").text("namespace", ns)
			l = append(l.name("fold"), '{').text("chain", string(session.NamespaceKey(ns))).link(&f.Into)
			l = append(l.name("of"), '{').text("chain", string(f.Key)).link(&f.Chain)
			return append(l, '}', '}')
		})
	}
	a.log.push()
}

// principals are the names of those whose claims a node makes, by what commands carry of
// them.
type principals struct {
	mu    sync.Mutex
	names map[session.Principal]string
}

const maxPrincipals = 4096

// name returns the name of a principal, and remembers it where it is told.
func (p *principals) name(of session.Principal, told string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if told == "" || of == (session.Principal{}) {
		return p.names[of]
	}
	if p.names == nil || len(p.names) >= maxPrincipals {
		p.names = make(map[session.Principal]string)
	}
	p.names[of] = told
	return told
}
