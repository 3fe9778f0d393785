// Package transport moves bytes between nodes.
package transport
