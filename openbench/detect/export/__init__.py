"""A detector in the formats of other run times."""
