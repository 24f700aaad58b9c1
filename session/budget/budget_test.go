package budget

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is used stays within its bounds, and a period ends as a whole.
func TestAddAndSettle(t *testing.T) {
	b := Budget{Amount: 10, Per: time.Minute, Made: time.Second}
	b.Add(time.Second, 4)
	b.Add(time.Minute, -9)
	require.Zero(t, b.Used)
	require.Zero(t, b.Period)
	_, due := b.Due()
	require.False(t, due, "nothing of it ends")
	b.Add(2*time.Minute, 7)
	at, due := b.Due()
	require.True(t, due)
	require.Equal(t, 2*time.Minute+time.Second, at)
	b.Settle(at - 1)
	require.EqualValues(t, 7, b.Used)
	b.Settle(at)
	require.Zero(t, b.Used)
	b.Add(at, MaxUsed-1)
	b.Add(at, MaxUsed)
	require.Equal(t, MaxUsed, b.Used)
	b.Add(at, 1)
	require.Equal(t, MaxUsed, b.Used)
	require.False(t, b.Allows(0))
	require.Zero(t, b.Left())
	b.Add(at, -MaxUsed)
	require.Zero(t, b.Used)
	require.Zero(t, b.Period, "nothing of it ends")
	b.Add(at, 4)
	require.EqualValues(t, 6, b.Left())
}

// The edges of what is told and of what is allowed.
func TestLevels(t *testing.T) {
	for _, tt := range []struct {
		used  int64
		level uint8
		most  int64
	}{{0, 0, 10}, {7, 0, 3}, {8, Warning, 2}, {9, Warning, 1}, {10, Exceeded, 0}} {
		b := Budget{Amount: 10, Used: tt.used}
		require.Equal(t, tt.level, b.Level(), "%d", tt.used)
		require.True(t, b.Allows(tt.most))
		require.False(t, b.Allows(tt.most+1))
	}
}

func TestTotals(t *testing.T) {
	nodes := []Node{{"a", "b", 1}, {"b", "c", 2}, {"c", "", 0}, {"d", "c", MaxAmount}, {"e", "", 5}}
	require.Equal(t, []int64{1, 3, MaxAmount + 3, MaxAmount, 5}, Totals(nodes))
	_, problem := Problem(nodes)
	require.Empty(t, problem)
	_, problem = Problem([]Node{{"root", "", 0}, {"leaf", "root", 1}})
	require.Empty(t, problem)
	at, problem := Problem([]Node{{"a", "", 1}, {"b", "x", 1}})
	require.Equal(t, 1, at)
	require.NotEmpty(t, problem)
	loop := []Node{{"a", "b", 1}, {"b", "a", 1}}
	_, problem = Problem(loop)
	require.NotEmpty(t, problem)
	require.Len(t, Totals(loop), 2, "it ends")
	require.Equal(t, []int64{0, 1}, Totals([]Node{{"free", "", 0}, {"e", "", 1}}), "what costs nothing")
	// No sum of many passes what is counted, nor what a number holds.
	many := []Node{{"root", "", 0}}
	for range 12 {
		many = append(many, Node{"leaf", "root", MaxAmount})
	}
	require.EqualValues(t, MaxUsed, Totals(many)[0])
	most := []Node{{"root", "", math.MaxInt64}, {"leaf", "root", math.MaxInt64}}
	require.Equal(t, []int64{MaxUsed, MaxUsed}, Totals(most))
}
