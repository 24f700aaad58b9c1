//go:build seeded

package seeded

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Env names the bug that is there.
const Env = "GOVNODE_SEEDED"

// names are those of the bugs in Env.
var names = [end]string{
	SnapshotForgets: "snapshot-forgets",
	ForgetByAge:     "forget-by-age",
	TimeInApply:     "time-in-apply",
	MapOrder:        "map-order",
	OneTooMany:      "one-too-many",
	CheckOutside:    "check-outside",
	AnswerEarly:     "answer-early",
	ReadUnasked:     "read-unasked",
	NoBarrier:       "no-barrier",
	RestartTTL:      "restart-ttl",
	WallClock:       "wall-clock",
	OldClock:        "old-clock",
	Resurrect:       "resurrect",
	AnyToken:        "any-token",
	TokensAgain:     "tokens-again",
	RelayTwice:      "relay-twice",
	RetryAnew:       "retry-anew",
	NoSync:          "no-sync",
	NotPinned:       "not-pinned",
	ErrorAllows:     "error-allows",
	ClaimStays:      "claim-stays",
	SnapshotLive:    "snapshot-live",
	SkipUnknown:     "skip-unknown",
	AuditGap:        "audit-gap",
	BlindSet:        "blind-set",
	AppendOver:      "append-over",
	ClaimUnderStop:  "claim-under-stop",
	SweepEarly:      "sweep-early",
	ClaimUnpaid:     "claim-unpaid",
	StandsOn:        "stands-on",
	OwnVote:         "own-vote",
	OtherThing:      "other-thing",
}

// chosen is read once, before anything else is done.
var chosen = choose(os.Getenv(Env))

func choose(name string) Bug {
	if name == "" {
		return None
	}
	for b := None + 1; b < end; b++ {
		if names[b] == name {
			return b
		}
	}
	fmt.Fprintf(os.Stderr, "%s=%s: there is no such bug; they are %s\n", Env, name, strings.Join(names[1:], ", "))
	os.Exit(2)
	return None
}

// On reports whether a bug was chosen.
func On(b Bug) bool { return b == chosen }

// Now is the time of day.
func Now() time.Duration { return time.Duration(time.Now().UnixNano()) }

// Toss returns what the order of a map says.
func Toss() bool {
	for b := range map[bool]struct{}{true: {}, false: {}} {
		return b
	}
	return false
}
