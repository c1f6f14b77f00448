"""The one tool of the smallest bundle."""

from typing import Literal

from loopline import tool

Language = Literal["English", "French", "German", "Spanish"]
HELLO: dict[Language, str] = {
    "English": "Hello",
    "French": "Bonjour",
    "German": "Hallo",
    "Spanish": "Hola",
}


@tool(effect="read")
def greet(name: str, language: Language = "English") -> str:
    """Greet somebody by name, in one of the languages."""
    return f"{HELLO[language]}, {name}!"
