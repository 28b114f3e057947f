"""The edges: YAML read, results written whole, how commands end."""
