package bench

import (
	"fmt"
	"html/template"
)

// The template of the page that html.go writes.

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"ms": ms, "number": number, "times": times,
	"whole": func(v float64) string { return number(float64(int64(v + 0.5))) },
	"few":   func(v float64) string { return fmt.Sprintf("%.3g", v) },
}).Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>govnode bench: {{.Scenario}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222; background: #fff; overflow-wrap: anywhere }
.box { overflow-x: auto }
.box svg { min-width: 640px }
table { border-collapse: collapse; min-width: 100%; font-size: 13px; font-variant-numeric: tabular-nums }
td, th { white-space: nowrap }
td, th { padding: .2em .5em; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child, td:nth-child(2), th:nth-child(2) { text-align: left }
svg { width: 100%; height: auto; font-size: 12px; fill: #333 }
.grid { stroke: #e3e3e3 }
.key span { display: inline-block; width: 1em; height: .7em; margin: 0 .4em 0 1em }
</style>
<h1>govnode bench: {{.Scenario}}</h1>
<p>{{.Began}}, {{.Machine.Go}} on {{.Machine.OS}}/{{.Machine.Arch}}, {{.Machine.CPUs}} CPUs.
Latency counts from when an operation was due. Of several rounds the one with the median throughput is shown; bars go from the least to the most.
A ring marks the knee, the point behind which more load brings little more throughput.</p>
{{range .Bars}}
<h2>{{.Title}}</h2>
<div class="box">{{.SVG}}</div>
{{end}}
{{range .Plots}}
<h2>{{.Title}}</h2>
<div class="box">{{.SVG}}</div>
<p class="key">{{range .Lines}}{{if .Name}}<span style="background:{{.Color}}"></span>{{.Name}}{{end}}{{end}}</p>
{{end}}
<h2>Figures</h2>
<div class="box"><table>
<tr><th>system<th>load<th>ops/s<th>least<th>most<th>p50<th>p90<th>p99<th>p99.9<th>max<th>CPU/op<th>errors</tr>
{{range .Rows}}<tr><td>{{.System}}<td>{{.Load}}{{if .Knee}} (knee){{end}}<td>{{whole .Run.Throughput}}<td>{{whole .Least}}<td>{{whole .Most}}<td>{{ms .Run.Latency.P50}}<td>{{ms .Run.Latency.P90}}<td>{{ms .Run.Latency.P99}}<td>{{ms .Run.Latency.P999}}<td>{{ms .Run.Latency.Max}}<td>{{.Run.CPUCell}}<td>{{.Run.Errors}}</tr>
{{end}}</table></div>
{{range $s := .Series}}{{with .NoKnee}}<p>{{$s.System}}: {{.}}.</p>
{{end}}{{end}}{{if .HasProcesses}}<h2>CPU</h2>
<p>µs for each operation, user + system, and the memory that was resident at the end.</p>
<div class="box"><table>
<tr><th>system<th>load<th>cores busy<th>processes</tr>
{{range .Rows}}<tr><td>{{.System}}<td>{{.Load}}<td>{{few .Run.CoresBusy}}<td>{{range .Run.Uses}}{{.}}<br>{{end}}</tr>
{{end}}</table></div>
{{end}}
{{if .Ratios}}<h2>Ratios</h2>
<div class="box"><table>
<tr><th>system<th>against<th>load<th>throughput<th>p50<th>p99<th></tr>
{{range .Ratios}}<tr><td>{{.System}}<td>{{.Against}}<td>{{.Load}}<td>{{times .Throughput}}<td>{{times .P50}}<td>{{times .P99}}<td>{{if not .Apart}}rounds overlap{{end}}</tr>
{{end}}</table></div>{{end}}
{{with .Fit}}<h2>Agents</h2>
<p>{{.Agents}} agents fit that make {{few .CallsPerMinute}} calls a minute and hold each for {{.Hold}}: at {{whole .Throughput}} operations a second and {{few .OpsPerCall}} operations a call. {{.OpenCalls}} calls are open at a time.</p>{{end}}
</html>
`))
