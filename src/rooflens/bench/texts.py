"""Prompts with meaning: ones whose answers repeat them, and ones with nothing to copy from."""

from __future__ import annotations

from typing import Literal

from rooflens.runtime.tokenizer import Tokenizer

Text = Literal["repeat", "free", "random"]
#: Texts for a model with a tokenizer; ``random`` is for random weights.
TEXTS: tuple[Text, ...] = ("repeat", "free")

_PASSAGES = (
    "The lighthouse stood at the end of the harbour wall. Every evening Anna climbed its ninety steps with a"
    " lamp and a bottle of oil. The ships that came from the north looked for her light, because the rocks"
    " below the wall were sharp and the current was strong. In the winter of the great storm she stayed awake"
    " for three nights. Not one ship was lost, and in spring the captains brought her a brass telescope.",
    "def count_words(lines):\n    count = {}\n    for line in lines:\n        for word in line.split():\n"
    "            word = word.lower().strip('.,;:')\n            if word in count:\n"
    "                count[word] = count[word] + 1\n            else:\n                count[word] = 1\n"
    "    return count\n",
    "Minutes of the meeting on Tuesday. Present: Marta, Jonas, Li and Amir. Marta reported that the new pump"
    " was delivered and that the old pump will be removed on Friday. Jonas asked who pays the electrician."
    " Li will ask the office and report next week. Amir found two leaks in the north greenhouse and one in"
    " the south greenhouse. The next meeting is on Tuesday at ten.",
    "To make the bread, mix five hundred grams of flour with ten grams of salt and seven grams of yeast. Add"
    " three hundred grams of warm water and mix until no dry flour is left. Let the dough rest for one hour."
    " Fold the dough four times, shape it, and let it rest for one hour more. Bake the bread for forty"
    " minutes in a very hot oven, and let it cool before you cut it.",
)
_REPEATING = (
    ("Repeat the following text word for word.", 0),
    ("Rename the variable count to total in this function and write the whole function.", 1),
    ("Correct the mistakes in this text and write it again in full.", 2),
    ("Summarise this text in its own words, sentence by sentence.", 3),
    ("List every sentence of this text with a number before it.", 0),
    ("Add a docstring to this function and write the whole function again.", 1),
    ("Copy every sentence of this text that has a name in it.", 2),
    ("Write this recipe again with one step on each line.", 3),
)
_FREE = (
    "Write a short story about a dragon who learns to cook.",
    "Why is the sky blue? Explain it to a child.",
    "Give me some ideas for a birthday party by a lake.",
    "Describe a town that lies under the sea.",
    "What should somebody know before they buy a bicycle?",
    "Write a letter to a friend who has moved to another country.",
    "How do trees drink water?",
    "Invent a game that can be played with three stones.",
)


def prompts_of(text: Text, tokenizer: Tokenizer, *, count: int, limit: int) -> list[list[int]]:
    """``count`` prompts of at most ``limit`` tokens, in the model's own chat form where it has one.

    ``repeat``: a passage to copy, edit or sum up, shortened from its end where it would be too long;
    ``free``: questions that have nothing to copy from. Of eight there are, the ninth is the first again.
    """
    made = []
    for index in range(count):
        if text == "repeat":
            task, passage = _REPEATING[index % len(_REPEATING)]
            made.append(_longest(task, _PASSAGES[passage], tokenizer, limit))
        else:
            made.append(_encode(_FREE[index % len(_FREE)], tokenizer)[-limit:])
    return made


def _longest(task: str, passage: str, tokenizer: Tokenizer, limit: int) -> list[int]:
    """The task with as much of its passage as there is room for."""
    words = passage.split(" ")
    fewest, most = 0, len(words)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if len(_encode(f"{task}\n\n{' '.join(words[:middle])}", tokenizer)) <= limit:
            fewest = middle
        else:
            most = middle - 1
    return _encode(f"{task}\n\n{' '.join(words[:fewest])}", tokenizer)[-limit:]


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])
