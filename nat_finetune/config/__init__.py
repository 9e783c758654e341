"""The YAML file: schema, loading, references, versions."""
