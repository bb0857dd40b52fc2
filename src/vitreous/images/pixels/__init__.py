"""From the bytes of an image to the network's input."""
