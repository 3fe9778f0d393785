//go:build race

package jepsen_test

const raceEnabled = true
