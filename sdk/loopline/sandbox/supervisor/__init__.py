"""The scripts that run inside a sandbox. They import only the standard library, because an image needs only Python."""
