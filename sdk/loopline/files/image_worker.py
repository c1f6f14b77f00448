"""The process that decodes an image, with limits for its time and memory: every frame, to its last row.

The file comes on standard input; the number of frames, or the problem with it, goes to standard output as JSON.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import warnings

FRAMES = 500
PIXELS = 300_000_000
"""How many pixels all frames may have together, so that decoding takes about two seconds."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, SyntaxError),
    *(TypeError, ValueError),
)
"""What decoding a damaged file may raise."""


def decode(data: bytes) -> dict[str, int | str]:
    """Return how many `frames` the image has, or the `problem` if it cannot be shown."""
    from PIL import Image, ImageSequence, UnidentifiedImageError

    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = PIXELS
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            count = int(getattr(image, "n_frames", 1))
            if count > FRAMES:
                return {"problem": f"has {count:,} frames: an image may have {FRAMES:,}"}
            if count * image.width * image.height > PIXELS:
                return {
                    "problem": f"has {count * image.width * image.height:,} pixels in all frames: an image may have {PIXELS:,}"
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
    """Decode the file on standard input; the arguments are the limits of seconds and bytes."""
    cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.stdout.write(json.dumps(decode(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
