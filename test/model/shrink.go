package model

// Shrink returns the shortest steps that it finds which still fail: it leaves
// out commands as long as that is so, and until it has applied about so many
// steps. The steps have to fail.
func Shrink(steps []Step, work int) ([]Step, *Failure) {
	failure := func(s []Step) *Failure {
		f, _ := Check(s).(*Failure)
		if work -= 50 + len(s); f != nil { // empty states take time as well
			work += len(s) - f.Step
		}
		return f
	}
	worst := failure(steps)
	if worst == nil {
		return steps, nil
	}
	steps = single(steps[:min(len(steps), worst.Step+1)])
	if f := failure(steps); f != nil {
		worst = f
	}
	for size := (len(steps) + 1) / 2; size > 0 && work > 0; {
		shorter := false
		for from := len(steps) - size; from > -size && work > 0; from -= size {
			low := max(0, from)
			less := append(append([]Step(nil), steps[:low]...), steps[from+size:]...)
			if f := failure(less); f != nil {
				steps, worst, shorter = less[:min(len(less), f.Step+1)], f, true
				from = min(from, len(steps))
			}
		}
		if !shorter || size > 1 {
			size = size / 2
		}
	}
	return steps, worst
}

// single takes entries apart where they still fail, so that commands go one by
// one.
func single(steps []Step) []Step {
	var all []Step
	for _, s := range steps {
		if len(s.Commands) == 0 {
			all = append(all, s)
		}
		for i := range s.Commands {
			one := Step{At: s.At, Commands: s.Commands[i : i+1]}
			if i == 0 {
				one.Cut = s.Cut
			}
			all = append(all, one)
		}
	}
	if f, _ := Check(all).(*Failure); f != nil {
		return all[:min(len(all), f.Step+1)]
	}
	return steps
}
