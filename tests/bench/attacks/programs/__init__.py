"""Programs that attack the package class by class; each says what must hold."""
