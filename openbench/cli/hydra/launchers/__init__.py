"""What Hydra's launchers leave to be done about jobs that are killed or interrupted, a file for each launcher."""
