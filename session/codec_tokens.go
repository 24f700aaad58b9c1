package session

import "google.golang.org/protobuf/encoding/protowire"

func (c *PutToken) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Require(f.Field() == 3, "the token is missing")
	for m := f.Message(3, true); f.Visit(&m); {
		c.Token.fields(f)
	}
	f.Int64(4, &c.Before)
}

func (t *Token) fields(f *codec) {
	f.Kept(1, &t.ID)
	f.digest(2, &t.Hash)
	f.Uint16(3, (*uint16)(&t.Roles))
	f.keptAll(4, &t.Agents)
	f.keptAll(5, &t.Policies)
	f.Int64(6, &t.Made)
	f.Int64(7, &t.Expires)
	f.Kept(8, &t.By)
	f.Kept(9, &t.Label)
	f.Kept(10, &t.Environment)
	f.Kept(11, &t.Node)
	f.Int64(12, &t.Used)
}

func (c *RevokeToken) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Text(4, &c.Node)
}

func (c *UseToken) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Kept(4, &c.Node)
	f.Int64(5, &c.At)
}

func (c *Deny) fields(f *codec) {
	f.request(&c.NS, &c.By)
	for m := f.Optional(3, c.Denied != DeniedSubject{}); f.Visit(&m); {
		c.Denied.fields(f)
	}
}

func (d *DeniedSubject) fields(f *codec) {
	f.Kept(1, &d.Subject)
	f.Kept(2, &d.Reason)
	f.Int64(3, &d.At)
}

func (c *Allow) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Subject)
}

func (c *PutQuotas) fields(f *codec) {
	f.request(&c.NS, &c.By)
	for m := f.Optional(3, c.Quotas != Quotas{}); f.Visit(&m); {
		c.Quotas.fields(f)
	}
}

func (c *KeepKey) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.digest(3, &c.Key)
}

func (q *Quotas) fields(f *codec) {
	for i, n := range q.all() {
		f.Int64(protowire.Number(i+1), n)
	}
}

func (x *Access) fields(f *codec) {
	f.Uint64(1, &x.Epoch)
	for i, n := elements(f, 2, &x.Tokens, MaxTokens); i < n; i++ {
		for m := f.Message(2, true); f.Visit(&m); {
			x.Tokens[i].fields(f)
		}
	}
	for i, n := elements(f, 3, &x.Denied, MaxDenied); i < n; i++ {
		for m := f.Message(3, true); f.Visit(&m); {
			x.Denied[i].fields(f)
		}
	}
	for m := f.Optional(4, x.Quotas != Quotas{}); f.Visit(&m); {
		x.Quotas.fields(f)
	}
	f.digest(5, &x.Key)
}
