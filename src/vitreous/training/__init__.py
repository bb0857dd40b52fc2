"""From images to a trained model with a report."""
