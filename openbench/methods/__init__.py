"""One file per post-hoc method; `_`-modules hold maths that several share."""
