"""Train or apply many models at once."""
