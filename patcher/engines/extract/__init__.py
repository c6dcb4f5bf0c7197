"""Makes facts from an engine's source tree. Maintainers' code, and ``engines probe``."""
