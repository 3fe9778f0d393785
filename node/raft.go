package node

type raftHost struct{}
