"""How files get to disk and back: written whole, with a digest of their content; read back checked."""
