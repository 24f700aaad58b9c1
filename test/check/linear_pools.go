package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// A room is what is known of a pool at a place of an order.
type room struct {
	holders string // their ids, in order
	inUse   int
	token   uint64 // the latest
}

// A turn is an operation on a pool.
type turn struct {
	id     string
	weight int
	token  uint64 // of a slot that is granted
	over   bool   // it is given back, or its lease may be over
}

// pooled returns the parts of the pools. What was refused, or is unknown, holds
// nobody to anything: it may have waited behind somebody, and may have got nothing.
func pooled(h History) map[string]part {
	holds, parts := map[string]Hold{}, map[string]part{}
	for _, x := range h.Holds {
		holds[x.ID] = x
	}
	granted := map[string]Op{}
	add := func(pool string, op porcupine.Operation) {
		p := parts["pool "+pool]
		p.ops = append(p.ops, op)
		parts["pool "+pool] = p
	}
	for _, o := range h.Ops {
		if o.Kind == Acquire && o.Outcome == Applied && o.Granted {
			granted[o.ID] = o
			add(o.Object, porcupine.Operation{
				Input: turn{id: o.ID, weight: holds[o.ID].Weight, token: o.Token}, Call: int64(o.Call), Return: int64(o.Return), Metadata: o,
			})
		}
	}
	back := map[string]bool{}
	for _, o := range h.Ops {
		if _, held := granted[o.ID]; held && o.Kind == Release && o.Outcome == Applied {
			back[o.ID] = true
			add(o.Object, porcupine.Operation{
				Input: turn{id: o.ID, weight: holds[o.ID].Weight, over: true}, Call: int64(o.Call), Return: int64(o.Return), Metadata: o,
			})
		}
	}
	for id, o := range granted {
		if back[id] {
			continue
		}
		// It may end from now on, and nothing is freer than one that ends at once.
		x := holds[id]
		add(o.Object, porcupine.Operation{
			Input: turn{id: id, weight: x.Weight, over: true}, Call: int64(max(x.Until, o.Call)), Return: int64(max(x.Until, o.Return)), Metadata: o,
		})
	}
	for what, p := range parts {
		limit, known := h.Limits[strings.TrimPrefix(what, "pool ")]
		if !known {
			delete(parts, what)
			continue
		}
		p.after = rooms
		p.place = func(o porcupine.Operation) (int64, bool) { return int64(o.Input.(turn).token), !o.Input.(turn).over }
		p.model = porcupine.Model{
			Init: func() any { return room{} },
			Step: func(state, input, _ any) (bool, any) { return take(limit, state.(room), input.(turn)) },
		}
		parts[what] = p
	}
	return parts
}

// take is a step of a pool: a grant has room, and a higher token than all before.
func take(limit int, r room, t turn) (bool, room) {
	all := strings.Fields(r.holders)
	i, held := slices.BinarySearch(all, t.id)
	switch {
	case t.over && !held, !t.over && (held || r.inUse+t.weight > limit || t.token <= r.token):
		return false, r
	case t.over:
		return true, room{strings.Join(slices.Delete(all, i, i+1), " "), r.inUse - t.weight, r.token}
	}
	return true, room{strings.Join(slices.Insert(all, i, t.id), " "), r.inUse + t.weight, t.token}
}

// rooms is what operations leave, in whatever order they took effect.
func rooms(state any, ops []porcupine.Operation) any {
	r := state.(room)
	holders := map[string]bool{}
	for _, id := range strings.Fields(r.holders) {
		holders[id] = true
	}
	over := map[string]bool{}
	for _, o := range ops {
		t := o.Input.(turn)
		r.token = max(r.token, t.token)
		if t.over {
			over[t.id], r.inUse = true, r.inUse-t.weight
		} else {
			holders[t.id], r.inUse = true, r.inUse+t.weight
		}
	}
	maps.DeleteFunc(holders, func(id string, _ bool) bool { return over[id] })
	r.holders = strings.Join(slices.Sorted(maps.Keys(holders)), " ")
	return r
}
