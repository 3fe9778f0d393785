//go:build !race

package worker_test

const scale = 1
