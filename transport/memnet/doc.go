// Package memnet is a network in memory for tests, made for testing/synctest bubbles.
package memnet
