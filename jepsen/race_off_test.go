//go:build !race

package jepsen_test

const raceEnabled = false
