"""Tests of shared conversations, without a server."""
