"""Files: atomic writes and locks (`files`), digests of content (`checksum`), and formats that are checked when read."""
