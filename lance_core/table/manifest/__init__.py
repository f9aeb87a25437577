"""Manifests of versions, and faster readers for parts of a manifest: its files, its header, its summary."""
