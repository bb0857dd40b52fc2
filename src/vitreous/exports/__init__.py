"""A model for other runtimes: a folder with preprocessing inside, parity proven, and a script that runs it."""
