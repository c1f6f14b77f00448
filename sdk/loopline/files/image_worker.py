"""A script that decodes all frames of an image, with limits for its time and memory.

It reads the file from stdin, and prints the number of frames, or the problem with the file, as JSON.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import warnings

FRAMES = 500
PIXELS = 300_000_000
"""The largest number of pixels of all frames together; decoding so many takes about two seconds."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, SyntaxError),
    *(TypeError, ValueError),
)
"""The exceptions that Pillow raises for a damaged file."""


def decode(data: bytes) -> dict[str, int | str]:
    """Return the number of `frames` of an image, or the `problem` for which it may not be attached."""
    from PIL import Image, ImageSequence, UnidentifiedImageError

    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = PIXELS
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            count = int(getattr(image, "n_frames", 1))
            if count > FRAMES:
                return {"problem": f"has {count:,} frames: an image may have {FRAMES:,}"}
            pixels = count * image.width * image.height
            if pixels > PIXELS:
                return {
                    "problem": f"has {pixels:,} pixels in all frames: an image may have {PIXELS:,}"
                }
            for frame in ImageSequence.Iterator(image):
                frame.load()
    except UnidentifiedImageError:
        return {"problem": "cannot be decoded as an image: it is damaged"}
    except Image.DecompressionBombError:
        return {"problem": f"has more than {PIXELS:,} pixels"}
    except _DAMAGE as error:
        return {"problem": f"cannot be decoded as an image: {error}"}
    return {"frames": count}


def main() -> None:
    """Decode the file on stdin. The command-line arguments are the limits of CPU seconds and bytes of memory."""
    cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.stdout.write(json.dumps(decode(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
