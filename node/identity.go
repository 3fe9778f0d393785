package node

type identity struct{}
