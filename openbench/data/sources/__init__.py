"""Where images come from: folders, archives, arrays, generators, corruptions."""
