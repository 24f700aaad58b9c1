package session

// How a call ends, or gives up its wait.

// end reports that a call has finished, and hands its slots on.
func (s *State) end(c *End, r *Result) {
	k := ref{KindSession, c.NS, c.Session}
	x := s.counted(k, r)
	if x == nil {
		return
	}
	h := x.Find(c.Call)
	if h == nil {
		s.endAgain(c, x, r)
		return
	}
	if h.Waiting() {
		r.Code = StillWaiting
		return
	}
	if !h.within(c.Pools, r) {
		return
	}
	var base Digest
	if x.More != nil {
		base = x.More.Baseline
	}
	if c.Output.Hash != (Digest{}) && c.Output.Against != base {
		r.Code, r.Digest = StalePremise, base
		return
	}

	done := *h
	x = s.ownSession(k, x)
	x.remove(c.Call)
	s.letGo(c.NS, &done)
	x.Used = s.now
	x.Executions++
	x.Reserved -= done.Tokens
	if c.Tokens >= 0 {
		x.Tokens += c.Tokens
	} else {
		x.Tokens += done.Tokens
	}
	switch c.Status {
	case Succeeded:
		x.Consecutive = 0
	case Failed:
		x.Failures++
		x.Consecutive++
		x.failed(s.now)
	}
	x.IDs.Add(remembered(c.Call, done.Content, Ended, done.Rule, uint64(c.Status)))
	s.noteOutput(c, k, x)
	if n := x.Pin.Limits.Checkpoint; n > 0 && x.Executions%n == 0 {
		r.Checkpoint = x.Executions
	}
	r.Code, r.Counters = Ended, x.Counters()
}

func (s *State) endAgain(c *End, x *Session, r *Result) {
	m := x.IDs.Find(c.Call)
	switch {
	case m == nil && stale(c.Call, x.IDs.NewerThan(), r):
		// It may have been admitted, and ended.
	case m == nil:
		r.Code = NotFound
		if x.Phase != PhaseOpen {
			r.Code = SessionClosed
		}
	case Code(m.Code()) == Ended && m.Value != uint64(c.Status):
		r.Code = IDReused
	case Code(m.Code()) == Ended:
		r.Code, r.Repeat = AlreadyEnded, true
	case Code(m.Code()) == LeaseLost:
		r.Code, r.Repeat = LeaseLost, true
	default:
		r.Code = NotFound // it was never admitted
	}
}

// noteOutput keeps the first output of a session, and the score of later ones.
func (s *State) noteOutput(c *End, k ref, x *Session) {
	if c.Output.Hash == (Digest{}) {
		return
	}
	more := More{}
	if x.More != nil {
		more = *x.More
	}
	if more.Baseline == (Digest{}) {
		more.Baseline = c.Output.Hash
		s.write(ref{KindBaseline, c.NS, c.Session}, &Baseline{c.Output.Hash, c.Output.Text})
	} else {
		more.Drift = c.Output.Score
	}
	x.More = &more
}

// cancel gives up a wait, of a call or of a client for a slot.
func (s *State) cancel(c *Cancel, r *Result) {
	if c.Session == "" {
		s.cancelSlot(c, r)
		return
	}
	k := ref{KindSession, c.NS, c.Session}
	x := s.counted(k, r)
	if x == nil {
		return
	}
	h := x.Find(c.Call)
	if h == nil {
		m := x.IDs.Find(c.Call)
		if m == nil {
			if !stale(c.Call, x.IDs.NewerThan(), r) {
				r.Code = NotFound
			}
			return
		}
		r.Code, r.Repeat = Code(m.Code()), true
		if r.Code == Ended {
			r.Code = AlreadyEnded
		}
		return
	}
	if !h.Waiting() {
		r.Code = NotWaiting
		return
	}
	if !h.within(c.Pools, r) {
		return
	}
	x = s.ownSession(k, x)
	x.Used = s.now
	r.Code = s.giveUp(c.NS, x, x.Find(c.Call), WaitCancelled, 0)
	r.Counters = x.Counters()
}
