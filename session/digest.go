package session

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"example.com/govnode/session/wire"
)

// Digest returns a hash of all that the state is: clock, generation, and every
// record with its key, as a snapshot has them. It follows from the history
// alone, so that replicas which have applied the same entries have the same
// digest, restored in between or not; one that has another has diverged. States
// made by New and by NewPartial are not compared.
//
// Each shard keeps its hash, and only those are hashed that were written into
// since, and those that again reports, if it is not nil: a kept hash is no proof
// that the records in memory are what they were. An error that wraps ErrDamaged
// tells of a shard whose records changed though nobody wrote into it.
//
// After each shard that was hashed pace is called, if it is not nil; its error
// ends the work, of which nothing is lost. Entries may be applied meanwhile. Two
// digests of one state must not be made at the same time.
func (v *Snapshot) Digest(again func(shard int) bool, pace func() error) (Digest, error) {
	f := codec{Coder: wire.NewWriter(nil)}
	header := snapshotHeader{v.now, v.generation, v.len()}
	for m := f.Top(); f.Visit(&m); {
		header.fields(&f)
	}
	all := sha256.New()
	buf := f.Bytes()
	all.Write(buf)
	var place [4]byte
	for i, sh := range v.shards {
		if len(sh.records) == 0 {
			continue
		}
		if !sh.hashed || again != nil && again(i) {
			var hash Digest
			hash, buf = v.hashOf(sh, buf[:0])
			if sh.hashed && hash != sh.hash {
				return Digest{}, fmt.Errorf("%w: nobody wrote into shard %d, and its records are not those that were there", ErrDamaged, i)
			}
			sh.hash, sh.hashed = hash, true
			if pace != nil {
				if err := pace(); err != nil {
					return Digest{}, err
				}
			}
		}
		binary.LittleEndian.PutUint32(place[:], uint32(i))
		all.Write(place[:])
		all.Write(sh.hash[:])
	}
	return Digest(all.Sum(nil)), nil
}

// hashOf returns the hash of a shard's records, and the buffer it used.
func (v *Snapshot) hashOf(sh *shard, buf []byte) (Digest, []byte) {
	f := codec{Coder: wire.NewWriter(buf)}
	for _, k := range v.keys(sh) {
		for m := f.Message(1, true); f.Visit(&m); {
			f.item(&k, &sh.records[k].record)
		}
	}
	return sha256.Sum256(f.Bytes()), f.Bytes()
}
