"""Models as users have them: torch modules, functions, files and published names, each made into a backbone."""
