"""Facts about engine releases: data made by running each release's own code."""
