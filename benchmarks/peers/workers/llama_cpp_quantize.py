"""llama.cpp's own quantiser: python -m ... SOURCE TARGET TYPE."""

from __future__ import annotations

import sys

import llama_cpp as ll

_TYPES = {
    "q8_0": ll.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": ll.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": ll.LLAMA_FTYPE_MOSTLY_Q4_1,
}


def main() -> None:
    source, target, kind = sys.argv[1:]
    settings = ll.llama_model_quantize_default_params()
    settings.ftype = _TYPES[kind]
    if ll.llama_model_quantize(source.encode(), target.encode(), settings):
        raise SystemExit(f"llama.cpp did not quantise {source}")


if __name__ == "__main__":
    main()
