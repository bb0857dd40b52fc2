"""What a run will do, and why: decided before the first step."""
