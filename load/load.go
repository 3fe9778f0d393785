// Package load measures: it has callers repeat an operation and tells rates,
// medians and tails. `miwnode bench` and the comparison with etcd in bench/
// share it, so that both sides are measured by the same code.
package load

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Row is one line of a benchmark, as `miwnode bench -o json` prints it.
type Row struct {
	Cell    string  `json:"cell"`
	Variant string  `json:"variant,omitempty"`
	Product string  `json:"product"`
	Callers int     `json:"callers,omitempty"`
	PerS    float64 `json:"per_s,omitempty"`
	P50     float64 `json:"p50_ms,omitempty"`
	P99     float64 `json:"p99_ms,omitempty"`
	CPU     float64 `json:"cpu_pct,omitempty"` // of one core
	RSS     float64 `json:"rss_mb,omitempty"`
	Overlap int     `json:"overlaps,omitempty"`
	Entries float64 `json:"log_entries,omitempty"`
	Runs    int     `json:"runs"`
}

// Repeat has callers repeat op for d, after a warm-up of a fifth of it, and
// returns the rate over d and the quantiles of all calls.
func Repeat(ctx context.Context, d time.Duration, callers int, op func(ctx context.Context, caller int) error) (Row, error) {
	warm := time.Now().Add(d / 5)
	end := warm.Add(d)
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			var mine []time.Duration
			for {
				begin := time.Now()
				if begin.After(end) {
					break
				}
				if err := op(ctx, caller); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				if begin.After(warm) {
					mine = append(mine, time.Since(begin))
				}
			}
			mu.Lock()
			all = append(all, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if failed != nil {
		return Row{}, failed
	}
	return Row{Callers: callers, PerS: float64(len(all)) / d.Seconds(), P50: MS(Quantile(all, 0.5)), P99: MS(Quantile(all, 0.99))}, nil
}

// Quantile is the q-quantile of ds, 0 for none.
func Quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	return ds[min(len(ds)-1, int(q*float64(len(ds))))]
}

// MS is d in milliseconds with microseconds behind the point.
func MS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Median sums up several runs of one cell: the median of every figure, the
// largest number of overlaps.
func Median(rows []Row) Row {
	if len(rows) == 0 {
		return Row{}
	}
	m := rows[0]
	m.Runs = len(rows)
	m.PerS = median(rows, func(r Row) float64 { return r.PerS })
	m.P50 = median(rows, func(r Row) float64 { return r.P50 })
	m.P99 = median(rows, func(r Row) float64 { return r.P99 })
	m.CPU = median(rows, func(r Row) float64 { return r.CPU })
	m.RSS = median(rows, func(r Row) float64 { return r.RSS })
	m.Entries = median(rows, func(r Row) float64 { return r.Entries })
	for _, r := range rows {
		m.Overlap = max(m.Overlap, r.Overlap)
	}
	return m
}

func median(rows []Row, of func(Row) float64) float64 {
	vs := make([]float64, len(rows))
	for i, r := range rows {
		vs[i] = of(r)
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}
