package podnet

func fake([]string) int { return 2 }
