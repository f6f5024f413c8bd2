"""Ways to the tools that people have: Polars."""
