package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// row is one line of the benchmark, the same as `miwnode bench -o json` prints.
type row struct {
	Cell    string  `json:"cell"`
	Variant string  `json:"variant,omitempty"`
	Product string  `json:"product"`
	Callers int     `json:"callers,omitempty"`
	PerS    float64 `json:"per_s,omitempty"`
	P50     float64 `json:"p50_ms,omitempty"`
	P99     float64 `json:"p99_ms,omitempty"`
	CPU     float64 `json:"cpu_pct,omitempty"`
	RSS     float64 `json:"rss_mb,omitempty"`
	Runs    int     `json:"runs"`
}

// measure has callers repeat op for d, after a warm-up of a fifth of it.
func measure(ctx context.Context, d time.Duration, callers int, op func(ctx context.Context, caller int) error) (row, error) {
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
		return row{}, failed
	}
	return row{Callers: callers, PerS: float64(len(all)) / d.Seconds(), P50: ms(quantile(all, 0.5)), P99: ms(quantile(all, 0.99))}, nil
}

func quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	return ds[min(len(ds)-1, int(q*float64(len(ds))))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	vs = slices.Sorted(slices.Values(vs))
	return vs[len(vs)/2]
}
