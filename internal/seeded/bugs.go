package seeded

// A Bug is one slip that the proof has to catch.
type Bug uint8

// None is no bug. What the others are is said in package test/seeded.
const (
	None Bug = iota
	SnapshotForgets
	ForgetByAge
	TimeInApply
	MapOrder
	OneTooMany
	CheckOutside
	AnswerEarly
	ReadUnasked
	NoBarrier
	RestartTTL
	WallClock
	OldClock
	Resurrect
	AnyToken
	TokensAgain
	RelayTwice
	RetryAnew
	NoSync
	NotPinned
	ErrorAllows
	ClaimStays
	SnapshotLive
	SkipUnknown
	AuditGap
	BlindSet
	AppendOver
	ClaimUnderStop
	SweepEarly
	ClaimUnpaid
	StandsOn
	OwnVote
	OtherThing
	end
)
