package bench

import (
	"fmt"
	"html/template"
	"strings"
)

// A bars is a plot of systems that have one load in common.
type bars struct {
	Title string
	Rows  []bar
}

// A bar is drawn to Value; a whisker goes from Low to High.
type bar struct {
	Name, Color      string
	Value, Low, High float64
	Text             string // the value in words
	Pale             bool
}

// bars are the throughput and the latency of each system, at its one load.
func (r *Result) bars() []bars {
	throughput, latency := bars{Title: "Throughput in operations a second"}, bars{Title: "Latency: p50, and p99 pale"}
	for i, s := range r.Series {
		for k, m := range s.medians() {
			least, most := s.Points[k].Spread()
			name := s.System + ", " + m.Load.String()
			throughput.Rows = append(throughput.Rows, bar{Name: name, Color: colorOf(i), Value: m.Throughput, Low: least, High: most, Text: number(m.Throughput)})
			latency.Rows = append(latency.Rows,
				bar{Name: name, Color: colorOf(i), Value: float64(m.Latency.P50), Text: ms(m.Latency.P50)},
				bar{Color: colorOf(i), Value: float64(m.Latency.P99), Text: ms(m.Latency.P99), Pale: true})
		}
	}
	return []bars{throughput, latency}
}

// The size of a row, and of what stands above and behind its bar.
const (
	nameHeight, barHeight, rowGap = 16.0, 14.0, 10.0
	behindBar                     = 70.0
)

// SVG draws the bars. Names come from the command line and are escaped.
func (p bars) SVG() template.HTML {
	most := 0.0
	for _, r := range p.Rows {
		most = max(most, r.Value, r.High)
	}
	width := func(v float64) float64 { return v / max(most, 1e-9) * (plotWidth - behindBar) }
	var b strings.Builder
	y := 0.0
	for _, r := range p.Rows {
		if r.Name != "" {
			y += rowGap + nameHeight
			fmt.Fprintf(&b, `<text x="0" y="%.1f">%s</text>`, y-4, template.HTMLEscapeString(r.Name))
		}
		pale := ""
		if r.Pale {
			pale = ` opacity="0.45"`
		}
		fmt.Fprintf(&b, `<rect x="0" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s/>`, y, width(r.Value), barHeight-2, r.Color, pale)
		end := width(r.Value)
		if r.High > r.Low {
			fmt.Fprintf(&b, `<line stroke="#222" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, width(r.Low), width(r.High), y+barHeight/2-1, y+barHeight/2-1)
			end = max(end, width(r.High))
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s</text>`, end+6, y+barHeight-4, template.HTMLEscapeString(r.Text))
		y += barHeight
	}
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %v %.0f" role="img" aria-label="%s">%s</svg>`, plotWidth, y+rowGap, template.HTMLEscapeString(p.Title), b.String()))
}
