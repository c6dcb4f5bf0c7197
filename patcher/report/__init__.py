"""Results as text: for a terminal, for Markdown, for GitHub, for machines."""
