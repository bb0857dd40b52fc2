"""Images to batches on the device: order, workers, loader."""
