package version

import (
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestBuild(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Of().Print(&out))
	for _, text := range []string{Of().Version, runtime.Version(), "commands ", "log ", "snapshot "} {
		require.NotEmpty(t, text)
		require.Contains(t, out.String(), text)
	}
}

// What is built without knowing its commit still has all labels.
func TestMetric(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(Metric())
	families, err := r.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "govnode_build_info", families[0].GetName())
	labels := map[string]string{}
	for _, l := range families[0].GetMetric()[0].GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	require.Equal(t, map[string]string{"version": Of().Version, "commit": Of().Commit, "goversion": runtime.Version()}, labels)
	require.EqualValues(t, 1, families[0].GetMetric()[0].GetGauge().GetValue())
}
