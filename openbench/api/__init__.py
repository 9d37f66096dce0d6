"""What `import openbench as ob` offers: evaluating one's own model, features or scores, and results as data."""
