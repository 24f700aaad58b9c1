package client_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Values, lists and scans through a node: what is written is read, and who comes
// too late is told what is there.
func TestStateAndScans(t *testing.T) {
	h, stop := service(t)
	defer stop()
	listener := httptest.NewServer(h)
	defer listener.Close()
	c, err := client.New(client.Config{Addresses: []string{listener.URL}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx := t.Context()

	none, err := c.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, client.Value{Version: client.Absent}, none)
	version, err := c.Set(ctx, "k", "one", client.Write{IfVersion: none.Version, TTL: time.Hour})
	require.NoError(t, err)
	_, err = c.Set(ctx, "k", "two", client.Write{IfVersion: none.Version})
	today, ok := client.Conflict(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, version, today)
	got, err := c.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, client.Value{Found: true, Text: "one", Version: version}, got)
	found, err := c.Delete(ctx, "k", today)
	require.NoError(t, err)
	require.True(t, found)
	_, ok = client.Conflict(errors.New("of another kind"))
	require.False(t, ok)

	sum, err := c.Increment(ctx, "n", "")
	require.NoError(t, err)
	require.Equal(t, "1", sum)
	sum, err = c.Increment(ctx, "n", "-0.25")
	require.NoError(t, err)
	require.Equal(t, "0.75", sum)
	_, err = c.Set(ctx, "k", "one", client.Write{})
	require.NoError(t, err)
	_, err = c.Increment(ctx, "k", "1")
	var objection *client.Error
	require.ErrorAs(t, err, &objection)
	require.Equal(t, client.ReasonNotANumber, objection.Reason)
	many, err := c.GetMany(ctx, "n", "k", "none")
	require.NoError(t, err)
	require.Len(t, many, 2)
	require.Equal(t, []string{"0.75", "one"}, []string{many["n"].Text, many["k"].Text})
	require.True(t, many["n"].Found && many["k"].Version != "" && many["k"].Version != client.Absent)
	_, err = c.GetMany(ctx)
	require.ErrorContains(t, err, "keys")

	length, err := c.Append(ctx, "l", []string{"a", "b"}, client.Appending{TTL: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 2, length)
	_, err = c.Append(ctx, "l", []string{"c"}, client.Appending{TTL: time.Hour, IfLength: new(int64)})
	today, ok = client.Conflict(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "2", today)
	items, err := c.Range(ctx, "l", 1, 0)
	require.NoError(t, err)
	require.Equal(t, client.Items{Items: []client.Item{{Index: 1, Text: "b"}}, Length: 2, Next: 2}, items)
	_, err = c.Range(ctx, "l", 0, -1)
	require.ErrorContains(t, err, "limit")
	full := strings.Repeat("x", 64<<10)
	for range 64 {
		_, err = c.Append(ctx, "full", []string{full}, client.Appending{TTL: time.Hour})
		require.NoError(t, err)
	}
	_, err = c.Append(ctx, "full", []string{""}, client.Appending{TTL: time.Hour})
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, client.ReasonListFull, e.Reason)
	found, err = c.DeleteList(ctx, "l")
	require.NoError(t, err)
	require.True(t, found)

	_, err = c.PutPolicy(ctx, "", servicePolicy)
	require.NoError(t, err)
	scan, err := c.Scan(ctx, &govnodev1.ScanRequest{
		Policy: &govnodev1.PolicyRef{Ref: &govnodev1.PolicyRef_Name{Name: "p"}}, Kind: govnodev1.ScanKind_SCAN_KIND_MESSAGE, Text: "a@b.co"})
	require.NoError(t, err)
	require.Equal(t, "[REDACTED:email]", scan.GetRedacted())
}
