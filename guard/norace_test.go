//go:build linux && !race

package guard_test

const raceEnabled = false
