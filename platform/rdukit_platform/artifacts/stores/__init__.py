"""Stores of content: a folder that all nodes mount, or a bucket of S3."""
