//go:build !unix

package demo

import "time"

// machineTime is the time of day where there is no monotonic clock that
// processes share: setting it during a demo spoils its order.
func machineTime() time.Duration { return time.Duration(time.Now().UnixNano()) }
