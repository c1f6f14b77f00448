"""The programs that run inside a sandbox. They use nothing but the standard library, for nothing else is there."""
