"""How files get to disk and back: written whole, with a digest of their content; read back checked.

`files` (whole or not at all), `checksum` (with a digest), `locks` (between processes), `array_file`, `plain_json`,
`yaml_file`.
"""
