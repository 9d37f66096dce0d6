"""Config nodes as plain values: read, checked and built into objects. No Hydra here."""
