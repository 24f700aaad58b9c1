package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The driver of a peer whose client must not become a dependency of govnode is a
// program of its own, built around this package. Serve is its side, Remote the
// other: lines of JSON, one request at a time.
type remoteRequest struct {
	Plan      *Plan    `json:"plan,omitempty"` // the first request: what is to be set up,
	Addresses []string `json:"addresses,omitempty"`
	Load      *Load    `json:"load,omitempty"`   // or a run,
	Verify    bool     `json:"verify,omitempty"` // or the comparison of the ledgers
}

type remoteAnswer struct {
	Second *Second `json:"second,omitempty"` // of a run; another answer follows
	Run    *Run    `json:"run,omitempty"`
	Audit  *Audit  `json:"audit,omitempty"`
	Ready  bool    `json:"ready,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Serve answers requests with a target that open makes, until the input ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer, open func(ctx context.Context, addresses []string, plan Plan) (Target, error)) error {
	requests, answers := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	var t Target
	defer func() {
		if t != nil {
			_ = t.Close()
		}
	}()
	for {
		var req remoteRequest
		if err := requests.Decode(&req); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var a remoteAnswer
		var err error
		switch {
		case req.Plan != nil && t == nil:
			if err = req.Plan.check(); err == nil {
				t, err = open(ctx, req.Addresses, *req.Plan)
			}
			a.Ready = err == nil
		case t == nil:
			err = errors.New("plan: must come first")
		case req.Load != nil:
			var run Run
			run, err = Drive(ctx, t, *req.Load, func(s Second) { _ = answers.Encode(remoteAnswer{Second: &s}) })
			a.Run = &run
		case req.Verify:
			var audit Audit
			audit, err = t.Verify(ctx)
			a.Audit = &audit
		default:
			err = errors.New("request: must be a plan, a load or verify")
		}
		if err != nil {
			a = remoteAnswer{Error: err.Error()}
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// A Remote is a driver that Serve answers for.
type Remote struct {
	requests *json.Encoder
	answers  *json.Decoder
}

// NewRemote sets a target up in a driver, given its input and output.
func NewRemote(in io.Writer, out io.Reader, addresses []string, plan Plan) (*Remote, error) {
	r := &Remote{json.NewEncoder(in), json.NewDecoder(bufio.NewReader(out))}
	_, err := r.ask(remoteRequest{Plan: &plan, Addresses: addresses}, nil)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Drive is Drive in the driver's process.
func (r *Remote) Drive(l Load, progress func(Second)) (Run, error) {
	a, err := r.ask(remoteRequest{Load: &l}, progress)
	if err != nil || a.Run == nil {
		return Run{}, errors.Join(err, missing(err, a.Run == nil))
	}
	return *a.Run, nil
}

// Verify is Target.Verify in the driver's process.
func (r *Remote) Verify() (Audit, error) {
	a, err := r.ask(remoteRequest{Verify: true}, nil)
	if err != nil || a.Audit == nil {
		return Audit{}, errors.Join(err, missing(err, a.Audit == nil))
	}
	return *a.Audit, nil
}

func missing(err error, absent bool) error {
	if err == nil && absent {
		return errors.New("driver: answered something else than was asked: build it anew with `make bench-peers`")
	}
	return nil
}

func (r *Remote) ask(req remoteRequest, progress func(Second)) (remoteAnswer, error) {
	if err := r.requests.Encode(req); err != nil {
		return remoteAnswer{}, fmt.Errorf("driver: %w", err)
	}
	for {
		var a remoteAnswer
		if err := r.answers.Decode(&a); err != nil {
			return a, fmt.Errorf("driver: has ended: %w", err)
		}
		switch {
		case a.Error != "":
			return a, errors.New(a.Error)
		case a.Second == nil:
			return a, nil
		case progress != nil:
			progress(*a.Second)
		}
	}
}
