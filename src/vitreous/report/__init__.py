"""Pages and figures; knows nothing of what is reported."""
