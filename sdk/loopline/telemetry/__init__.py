"""Telemetry: the spans of a turn, and their export by OpenTelemetry."""
