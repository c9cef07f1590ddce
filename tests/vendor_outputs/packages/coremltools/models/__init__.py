"""As in the real package."""
