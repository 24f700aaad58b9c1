package client_test

import (
	"testing"

	"example.com/govnode/client"
)

// wires are the ways in which operations travel on streams.
var wires = map[string]func(*client.Config){"fast": func(*client.Config) {}, "plain": client.Plain}

// over is the one that streaming takes.
var over = wires["fast"]

// What holds of streams holds whichever way operations travel on them.
func TestStreamsOverThePlainWire(t *testing.T) {
	over = wires["plain"]
	defer func() { over = wires["fast"] }()
	for name, test := range map[string]func(*testing.T){
		"AnswersAreWhole":                        TestAnswersAreWhole,
		"AnswerToSomethingElse":                  TestAnswerToSomethingElse,
		"CallerGoesAway":                         TestCallerGoesAway,
		"CallsCoalesce":                          TestCallsCoalesce,
		"CloseEndsTheStream":                     TestCloseEndsTheStream,
		"CloseEndsWhatIsUnderWayOnAStream":       TestCloseEndsWhatIsUnderWayOnAStream,
		"FallsBackToUnary":                       TestFallsBackToUnary,
		"FrameErrors":                            TestFrameErrors,
		"GoesOnWhereNobodyDrains":                TestGoesOnWhereNobodyDrains,
		"LargeFrameGoesByItself":                 TestLargeFrameGoesByItself,
		"MalformedMessageEndsTheStream":          TestMalformedMessageEndsTheStream,
		"StreamNamesTheLeader":                   TestStreamNamesTheLeader,
		"StreamsAreCutAndNothingCountsTwice":     TestStreamsAreCutAndNothingCountsTwice,
		"TheWindowIsNotWidenedByWhatWasSetApart": TestTheWindowIsNotWidenedByWhatWasSetApart,
		"ComesBackToStreams":                     TestComesBackToStreams,
		"EndOverAStreamOutlivesItsCaller":        TestEndOverAStreamOutlivesItsCaller,
		"SilentStream":                           TestSilentStream,
		"WaitsOverAStream":                       TestWaitsOverAStream,
	} {
		t.Run(name, test)
	}
}
