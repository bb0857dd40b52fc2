"""A model for other runtimes: a folder with its preprocessing inside, its parity proven, and a script that runs it."""

__all__: list[str] = []
