//go:build race

package coord_test

// scale makes the long tests short where every step costs ten times as much.
const scale = 10
