package demo

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The most slots in use follow from when each was entered and left; leaving
// comes before entering at the same instant.
func TestMostSlots(t *testing.T) {
	tests := []struct {
		name          string
		uses          []use
		highest, over int
	}{
		{"nobody", nil, 0, 0},
		{"one after the other", []use{{1, 2, 1}, {2, 3, 2}, {3, 4, 3}}, 1, 0},
		{"at the limit", []use{{1, 5, 1}, {2, 5, 2}}, 2, 0},
		{"one too many", []use{{1, 5, 1}, {2, 5, 2}, {4, 6, 3}}, 3, 1},
		{"two too many", []use{{1, 5, 1}, {2, 5, 2}, {3, 6, 3}, {4, 6, 4}}, 4, 2},
		{"one too many, twice", []use{{1, 9, 1}, {1, 9, 2}, {2, 3, 3}, {4, 5, 4}}, 3, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			highest, over := most(tt.uses, 2)
			require.Equal(t, tt.highest, highest)
			require.Equal(t, tt.over, over)
		})
	}
	require.Zero(t, repeatedTokens([]use{{1, 2, 1}, {2, 3, 2}}))
	require.Equal(t, 2, repeatedTokens([]use{{1, 2, 1}, {2, 3, 1}, {5, 6, 1}}))
}
