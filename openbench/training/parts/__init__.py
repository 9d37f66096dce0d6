"""What several training methods are made of."""
