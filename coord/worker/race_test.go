//go:build race

package worker_test

// scale is how much less there is of what takes ten times as long here.
const scale = 10
