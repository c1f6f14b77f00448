"""The smallest bundle: what the model is told, and one function that it can call."""

from typing import Literal

from loopline import Bundle, tool

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


bundle = Bundle(
    id="hello", instructions="You greet people in the language they ask for.", tools=[greet]
)
