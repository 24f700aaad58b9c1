package bench

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// WriteHTML writes a page that needs nothing else: its plots are SVG, its style
// is in it, and it loads nothing.
func (r *Result) WriteHTML(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	return page.Execute(f, pageOf(r))
}

// A pageData is what the template shows.
type pageData struct {
	*Result
	Began  string
	Plots  []plot
	Bars   []bars
	Rows   []pageRow
	Ratios []Ratio
}

type pageRow struct {
	System, Load string
	Run          Run
	Least, Most  float64
	Knee         bool
}

func pageOf(r *Result) pageData {
	d := pageData{Result: r, Began: when(r.Started), Ratios: r.Against()}
	curves := plot{Title: "Distribution of latency at the knee, or at the highest throughput", X: "percentile", Y: "ms", LogY: true, Ticks: percentileTicks}
	for i, s := range r.Series {
		for k, m := range s.medians() {
			least, most := s.Points[k].Spread()
			d.Rows = append(d.Rows, pageRow{s.System, m.Load.String(), m, least, most, k == s.Knee})
		}
		c := line{Name: s.System + ", " + s.Sustained().Load.String(), Color: colorOf(i)}
		for k, us := range s.Sustained().Latency.Curve {
			if k < len(curve) {
				c.Points = append(c.Points, point{X: nines(curve[k]), Y: float64(us) / 1000})
			}
		}
		curves.Lines = append(curves.Lines, c)
	}
	if r.oneLoad() {
		d.Bars = r.bars()
	} else {
		d.Plots = r.byLoad()
	}
	d.Plots = append(d.Plots, curves)
	return d
}

// oneLoad reports whether every system was measured at a single load, so that
// there is no curve to draw.
func (r *Result) oneLoad() bool {
	return !slices.ContainsFunc(r.Series, func(s *Series) bool { return len(s.Points) > 1 })
}

// byLoad are the curves of throughput and latency over the load, or over what
// was done before where that is what differs.
func (r *Result) byLoad() []plot {
	throughput := plot{Title: "Throughput by load", X: "callers", Y: "operations a second", LogX: true}
	latency := plot{Title: "Latency by load (p50, and p99 dashed)", X: "callers", Y: "ms", LogX: true, LogY: true}
	for i, s := range r.Series {
		t := line{Name: s.System, Color: colorOf(i)}
		p50, p99 := line{Name: s.System, Color: colorOf(i)}, line{Color: colorOf(i), Dashed: true}
		runs := s.medians()
		for k, m := range runs {
			x, axis, log := float64(m.Callers), "callers", true
			switch {
			case runs[len(runs)-1].After > 0:
				x, axis, log = float64(m.After), "operations done before", false
			case m.Rate > 0:
				x, axis = m.Rate, "operations a second that are due"
			}
			throughput.X, latency.X, throughput.LogX, latency.LogX = axis, axis, log, log
			least, most := s.Points[k].Spread()
			t.Points = append(t.Points, point{X: x, Y: m.Throughput, Low: least, High: most, Mark: k == s.Knee})
			p50.Points = append(p50.Points, point{X: x, Y: float64(m.Latency.P50) / 1000, Mark: k == s.Knee})
			p99.Points = append(p99.Points, point{X: x, Y: float64(m.Latency.P99) / 1000})
		}
		throughput.Lines = append(throughput.Lines, t)
		latency.Lines = append(latency.Lines, p50, p99)
	}
	return []plot{throughput, latency}
}

// nines spreads the percentiles near 100, of which the last is drawn at five
// nines.
func nines(percent float64) float64 { return -math.Log10(max(1-percent/100, 1e-5)) }

var percentileTicks = []tick{
	{nines(0), "0"}, {nines(50), "50"}, {nines(90), "90"}, {nines(99), "99"}, {nines(99.9), "99.9"}, {nines(99.99), "99.99"}, {nines(100), "max"},
}

var colors = []string{"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b9770e", "#444444", "#16a2a2", "#d6538f"}

func colorOf(i int) string { return colors[i%len(colors)] }

// A plot is drawn by SVG.
type plot struct {
	Title, X, Y string
	LogX, LogY  bool
	Ticks       []tick // of x; made from the points if nil
	Lines       []line
}

type line struct {
	Name, Color string
	Dashed      bool
	Points      []point
}

// A point may have a bar from Low to High, and be marked as the knee.
type point struct {
	X, Y, Low, High float64
	Mark            bool
}

type tick struct {
	At   float64
	Text string
}

// The size of a plot, and its margins.
const (
	plotWidth, plotHeight       = 720.0, 340.0
	left, right, above, beneath = 70.0, 36.0, 14.0, 46.0
)

// SVG draws the plot. Names come from the command line and are escaped.
func (p plot) SVG() template.HTML {
	x, y := p.axis(p.LogX, func(q point) []float64 { return []float64{q.X} }), p.axis(p.LogY, func(q point) []float64 { return []float64{q.Y, q.High} })
	x.from, x.to, y.from, y.to = left, plotWidth-right, plotHeight-beneath, above
	xs, ys := p.Ticks, y.ticks()
	if xs == nil {
		xs = p.loads()
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %v %v" role="img" aria-label="%s">`, plotWidth, plotHeight, template.HTMLEscapeString(p.Title))
	for _, t := range ys {
		at := y.place(t.At)
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, left, plotWidth-right, at, at, left-6, at+4, template.HTMLEscapeString(t.Text))
	}
	for _, t := range apartBy(xs, x) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x.place(t.At), plotHeight-beneath+16, template.HTMLEscapeString(t.Text))
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text><text x="12" y="%.1f" transform="rotate(-90 12 %.1f)" text-anchor="middle">%s</text>`,
		(left+plotWidth-right)/2, plotHeight-10, template.HTMLEscapeString(p.X), plotHeight/2, plotHeight/2, template.HTMLEscapeString(p.Y))
	for _, l := range p.Lines {
		l.draw(&b, x, y)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func (l line) draw(b *strings.Builder, x, y axis) {
	dash := ""
	if l.Dashed {
		dash = ` stroke-dasharray="5 4"`
	}
	fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="`, l.Color, dash)
	for _, q := range l.Points {
		fmt.Fprintf(b, "%.1f,%.1f ", x.place(q.X), y.place(q.Y))
	}
	b.WriteString(`"/>`)
	for _, q := range l.Points {
		cx, cy := x.place(q.X), y.place(q.Y)
		if q.High > q.Low {
			fmt.Fprintf(b, `<line stroke="%s" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, l.Color, cx, cx, y.place(q.Low), y.place(q.High))
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, cx, cy, l.Color)
		if q.Mark {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="8" fill="none" stroke="%s" stroke-width="2"><title>knee</title></circle>`, cx, cy, l.Color)
		}
	}
}

// An axis maps values to places.
type axis struct {
	least, most float64
	log         bool
	from, to    float64
}

// axis spans what the points have. A linear one begins at 0.
func (p plot) axis(log bool, values func(point) []float64) axis {
	a := axis{log: log, least: math.Inf(1), most: math.Inf(-1)}
	for _, l := range p.Lines {
		for _, q := range l.Points {
			for _, v := range values(q) {
				if log && v <= 0 {
					continue
				}
				a.least, a.most = min(a.least, v), max(a.most, v)
			}
		}
	}
	if math.IsInf(a.least, 0) {
		a.least, a.most = 1, 10
	}
	if !log {
		a.least = 0
	}
	if a.most <= a.least {
		a.most = a.least + max(a.least, 1)
	}
	return a
}

func (a axis) place(v float64) float64 {
	least, most := a.least, a.most
	if a.log {
		v, least, most = math.Log(max(v, least)), math.Log(least), math.Log(most)
	}
	return a.from + (v-least)/(most-least)*(a.to-a.from)
}

// ticks are round numbers on the axis.
func (a axis) ticks() []tick {
	var all []tick
	if a.log {
		for e := math.Floor(math.Log10(a.least)); e <= math.Ceil(math.Log10(a.most)); e++ {
			for _, m := range []float64{1, 2, 5} {
				if v := m * math.Pow(10, e); v >= a.least && v <= a.most {
					all = append(all, tick{v, number(v)})
				}
			}
		}
		return all
	}
	step := math.Pow(10, math.Floor(math.Log10(a.most-a.least)))
	for (a.most-a.least)/step < 4 {
		step /= 2
	}
	for v := a.least; v <= a.most*1.0001; v += step {
		all = append(all, tick{v, number(v)})
	}
	return all
}

// loads are the ticks of x where the points have few values.
func (p plot) loads() []tick {
	seen := map[float64]bool{}
	var all []tick
	for _, l := range p.Lines {
		for _, q := range l.Points {
			if !seen[q.X] {
				seen[q.X] = true
				all = append(all, tick{q.X, number(q.X)})
			}
		}
	}
	return all
}

// tickRoom is how wide the text of a tick may be.
const tickRoom = 34.0

// apartBy sorts ticks and leaves out those whose texts would lie on another.
func apartBy(all []tick, x axis) []tick {
	slices.SortFunc(all, func(a, b tick) int { return cmp.Compare(a.At, b.At) })
	var kept []tick
	for _, t := range all {
		if len(kept) == 0 || x.place(t.At)-x.place(kept[len(kept)-1].At) >= tickRoom {
			kept = append(kept, t)
		}
	}
	return kept
}

// number prints thousands with a comma.
func number(v float64) string {
	if v >= 1000 {
		return Thousands(int64(math.Round(v)))
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
