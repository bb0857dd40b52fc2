"""How a run trains: protocols, loop, step, optimizer, run folder."""
