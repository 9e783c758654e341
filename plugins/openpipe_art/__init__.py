"""OpenPipe ART as a backend: NAT's `_type` names, fields and defaults."""
