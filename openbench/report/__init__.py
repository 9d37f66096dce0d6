"""What people look at: pages and pictures made from records and kept scores alone, never from a model."""
