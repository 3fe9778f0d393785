//go:build !race

package coord_test

const scale = 1
