"""From the cells of a study to tables and pictures."""
