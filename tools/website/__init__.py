"""The site of the documents: pages and reference entries that are made from other files."""
