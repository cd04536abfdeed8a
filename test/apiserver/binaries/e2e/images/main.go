// Command images prints the names of the images that upstream's end-to-end tests run. It is run and not kept, so it does
// not matter to the names of what is.
package main

import (
	"fmt"

	"k8s.io/kubernetes/test/utils/image"
)

func main() {
	for _, config := range image.GetImageConfigs() {
		fmt.Println(config.GetE2EImage())
	}
}
